package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// BodyState is what the log says of a body.
type BodyState uint8

const (
	// BodyUnknown comes with an error.
	BodyUnknown BodyState = iota
	// BodyNamed: a record names the body, or a segment is one.
	BodyNamed
	// BodyAwaited: its writer has not ended, and may still have a record written that names it, or a reader of an object that
	// was replaced has yet to open it.
	BodyAwaited
	// BodyDead: no record names the body, and none will. Who wrote a body of an earlier process is gone with it.
	BodyDead
)

// awaited are the bodies whose writers have not ended: from before a body is created until a record names it or its writer
// discards it. Their number is bounded by the writes that are under way.
type awaited struct {
	mu     sync.Mutex
	bodies map[string]struct{}
}

func (a *awaited) begin(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bodies == nil {
		a.bodies = map[string]struct{}{}
	}
	a.bodies[id] = struct{}{}
}

func (a *awaited) end(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.bodies, id)
}

func (a *awaited) has(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.bodies[id]
	return ok
}

// StateOf says whether a body is needed. No clock decides it: a body is dead because its writer has ended, however short ago
// that was. It is an error while the log has damage that may hide the record of a body.
func (e *Engine) StateOf(id string) (BodyState, error) {
	// The writer first: it ends when the index has the record, so a body without a writer and without a record has none.
	waits := e.awaited.has(id) || e.pins.holds(id)
	err := e.idx.get(spaceKey(spaceFile, id), func([]byte) error { return nil })
	switch {
	case err == nil:
		return BodyNamed, nil
	case !errors.Is(err, ErrNotFound):
		return BodyUnknown, fmt.Errorf("body %s: %w", id, err)
	case waits:
		return BodyAwaited, nil
	}
	if e.namesSegment(id) {
		return BodyNamed, nil
	}
	if err := e.Uncertain(); err != nil {
		return BodyUnknown, fmt.Errorf("body %s: %w", id, err)
	}
	if e.mayHideStub() {
		return BodyUnknown, fmt.Errorf("body %s: %w: it may be a segment", id, ErrUncertain)
	}
	return BodyDead, nil
}

// BodiesAfter gives up to limit bodies that records of the log name, or that segments are, in the order of their ids, from behind one on; the
// empty id is before all.
func (e *Engine) BodiesAfter(after string, limit int) (ids []string, err error) {
	err = e.idx.scanFrom(spaceFile, after+"\x00", func(name, _ []byte) error {
		if len(ids) == limit {
			return errEnough
		}
		ids = append(ids, string(name))
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("list bodies: %w", err)
	}
	e.mu.RLock()
	for id := range e.codedBy {
		if id > after {
			ids = append(ids, id)
		}
	}
	e.mu.RUnlock()
	slices.Sort(ids)
	return ids[:min(len(ids), limit)], nil
}

var errEnough = errors.New("enough")
