package spread

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

// Remove implements body.Store. While a reader has the body open it is only hidden: the reader may
// need another copy, and a bucket gives nothing of an object that was deleted. Files on places that
// are out stay there as garbage.
func (s *Store) Remove(id string) error {
	if s.opt.ReadOnly {
		return nil
	}
	s.mu.Lock()
	if s.hidden[id] {
		s.mu.Unlock()
		return fmt.Errorf("remove body %s: %w", id, fs.ErrNotExist)
	}
	if s.open[id] > 0 {
		s.hidden[id] = true
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	return s.removeNow(id)
}

func (s *Store) removeNow(id string) error {
	ctx := context.Background()
	// A client waits for this, and a bucket may take minutes to answer. So files on buckets are left to whoever is told.
	slots := s.slots
	if s.opt.Hooks.Removed != nil {
		slots = s.local()
	}
	all := len(slots) == len(s.slots)
	removed, errs := false, []error(nil)
	note := func(err error) {
		if err == nil {
			removed = true
		} else if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, sl := range s.local() {
		if p := sl.use(); p != nil {
			note(p.Remove(ctx, erasure.CopyOf(id).Name()))
		}
	}
	if s.scattered() {
		found, lerrs := s.listOn(ctx, id, slots)
		errs = append(errs, lerrs...)
		for _, l := range found {
			if p, err := s.slot(l.Place); err == nil {
				note(p.Remove(ctx, l.Name()))
			}
		}
	}
	if s.opt.Old != nil {
		note(s.opt.Old.Remove(id))
	}
	if h := s.opt.Hooks.Removed; h != nil && (removed || errs != nil || !all) {
		h(id)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove body %s: %w", id, err)
	}
	if !removed && all && s.outs() == nil {
		return fmt.Errorf("remove body %s: %w", id, fs.ErrNotExist)
	}
	return nil
}

// SetAside implements body.Store: all files of the body go to the quarantine of their places.
func (s *Store) SetAside(id string) (string, error) {
	if s.opt.ReadOnly {
		return "", nil
	}
	ctx := context.Background()
	found, errs := s.list(ctx, id)
	var where []string
	for _, l := range found {
		p, err := s.slot(l.Place)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		at, err := p.SetAside(ctx, l.Name())
		switch {
		case err == nil:
			where = append(where, at)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	if s.opt.Old != nil {
		at, err := s.opt.Old.SetAside(id)
		if at != "" {
			where = append(where, at)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return strings.Join(where, ", "), fmt.Errorf("set aside body %s: %w", id, err)
	}
	return strings.Join(where, ", "), nil
}

// List implements body.Store: the bodies of which a place that is there has any file.
func (s *Store) List(fn func(id string) error) error {
	for id, err := range s.bodies(context.Background()) {
		if err != nil {
			s.log.Error("a place could not be listed; garbage on it is found at the next start", "error", err)
			continue
		}
		s.mu.Lock()
		hidden := s.hidden[id]
		s.mu.Unlock()
		if hidden {
			continue
		}
		if err := fn(id); err != nil {
			return err
		}
	}
	if s.opt.Old == nil {
		return nil
	}
	return s.opt.Old.List(fn)
}

// bodies merges the lists of all places, which are in the order of the names: each id comes once. An
// error ends the list of its place.
func (s *Store) bodies(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var lists []*bodyList
		for _, sl := range s.slots {
			if p := sl.use(); p != nil {
				next, stop := iter.Pull2(ids(ctx, p))
				defer stop()
				lists = append(lists, &bodyList{next: next})
			}
		}
		for last := ""; ; {
			least := ""
			for _, l := range lists {
				if err := l.pass(last); err != nil && !yield("", err) {
					return
				}
				if !l.ended && (least == "" || l.head < least) {
					least = l.head
				}
			}
			if last = least; last == "" || !yield(last, nil) {
				return
			}
		}
	}
}

// bodyList is the list of the bodies of one place.
type bodyList struct {
	next  func() (string, error, bool)
	head  string
	ended bool
}

// pass goes on to the first body behind one. After an error the list has ended.
func (l *bodyList) pass(last string) error {
	for !l.ended && l.head <= last {
		id, err, ok := l.next()
		if !ok || err != nil {
			l.ended = true
			return err
		}
		l.head = id
	}
	return nil
}

// ids gives the bodies of a place.
func ids(ctx context.Context, p place.Place) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		stopped := errors.New("stopped")
		err := p.List(ctx, "", "", func(f place.File) error {
			if fr, ok := erasure.Parse(f.Name); ok && !yield(fr.Body, nil) {
				return stopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, stopped) {
			yield("", err)
		}
	}
}

var _ body.Store = (*Store)(nil)
