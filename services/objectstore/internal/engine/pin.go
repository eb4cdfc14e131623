package engine

import (
	"errors"
	"io/fs"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// openAtOnce is the highest number of bodies that a reader opens before it reads. An object of more parts would take a
// file descriptor for each, ten thousand at most, and few such readers would leave the process none.
const openAtOnce = 64

// pins keeps bodies from removal while a reader will open them later. What is to be removed meanwhile goes with the last
// reader; what a crash leaves of it, the next open removes, since no record names it.
type pins struct {
	mu     sync.Mutex
	held   map[string]int  // readers by body
	doomed map[string]bool // of held: remove it with its last reader
}

func (p *pins) hold(extents []Extent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held, p.doomed = map[string]int{}, map[string]bool{}
	}
	for i := range extents {
		p.held[extents[i].File]++
	}
}

// release gives the bodies that are to be removed now.
func (p *pins) release(extents []Extent) (remove []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range extents {
		id := extents[i].File
		if p.held[id]--; p.held[id] > 0 {
			continue
		}
		delete(p.held, id)
		if p.doomed[id] {
			delete(p.doomed, id)
			remove = append(remove, id)
		}
	}
	return remove
}

// defers reports whether a body that is to be removed waits for its readers.
func (p *pins) defers(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[id] == 0 {
		return false
	}
	p.doomed[id] = true
	return true
}

// holds reports whether readers keep a body.
func (p *pins) holds(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[id] > 0
}

// removeBody removes a body that no object names any more. One that cannot be removed is garbage, which the next open
// removes.
func (e *Engine) removeBody(id string) {
	failpoint.Hit("objectstore.body.remove.before")
	if e.pins.defers(id) {
		return
	}
	if err := e.bodies.Remove(id); err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.opt.Log.Warn("remove a body", "body", id, "error", err)
	}
}

// openBodies makes sure that the object can be read to its end after it was replaced: few bodies are opened, many are
// pinned. A missing body is damage, unless the object was replaced since the index was read.
func (h *Handle) openBodies(x *entry) error {
	h.bodies, h.last = make([]body.Reader, len(h.Object.Extents)), 0
	first := len(h.bodies)
	if len(h.bodies) > openAtOnce {
		h.e.pins.hold(h.Object.Extents)
		h.pinned = true
		// Who replaced it before that has not seen the pins, and may have removed what they are to keep.
		if h.wasReplaced(x) {
			h.closeBodies()
			return errMoved
		}
		first = 1 // so that most damage shows before the answer begins
	}
	for i := range first {
		_, err := h.bodyOf(i)
		if err == nil {
			continue
		}
		gone := errors.Is(err, fs.ErrNotExist) && h.wasReplaced(x)
		h.closeBodies()
		if gone {
			return errMoved
		}
		return missingBody(h.Object.Extents[i].File, err)
	}
	return nil
}

func (h *Handle) wasReplaced(x *entry) bool {
	now, err := h.e.idx.record(h.Object.Bucket, recordKey(h.Object.Key, h.Object.Version))
	return err == nil && (now == nil || now.seq != x.seq)
}

// bodyOf gives the body of an extent. Of a pinned handle only one is open at a time.
func (h *Handle) bodyOf(i int) (body.Reader, error) {
	if h.bodies[i] != nil {
		return h.bodies[i], nil
	}
	f, err := h.e.bodies.Open(h.Object.Extents[i].File)
	if err != nil {
		return nil, err
	}
	if before := h.bodies[h.last]; h.pinned && before != nil {
		_ = before.Close()
		h.bodies[h.last] = nil
	}
	h.bodies[i], h.last = f, i
	return f, nil
}

// readable is bodyOf for who reads, with the error that a read of the object has.
func (h *Handle) readable(i int) (body.Reader, error) {
	f, err := h.bodyOf(i)
	if err != nil {
		return nil, missingBody(h.Object.Extents[i].File, err)
	}
	return f, nil
}

func missingBody(file string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &CorruptError{body.Name(file), 0, "the body is missing"}
	}
	return bodyDamaged(file, 0, err)
}

// closeBodies lets go of the bodies.
func (h *Handle) closeBodies() {
	for _, f := range h.bodies {
		if f != nil {
			_ = f.Close()
		}
	}
	h.bodies = nil
	if h.pinned {
		h.pinned = false
		for _, id := range h.e.pins.release(h.Object.Extents) {
			h.e.removeBody(id)
		}
	}
}
