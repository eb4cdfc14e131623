package spread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// Reader reads a body from whatever has it. When one source fails, it goes on with another one.
type Reader struct {
	s      *Store
	id     string
	random bool

	mu      sync.RWMutex
	sources []*source // the first one is in use
	all     bool      // there are no more
	closed  bool
}

// Open implements body.Store.
func (s *Store) Open(id string) (body.Reader, error) { return s.OpenBody(context.Background(), id) }

// OpenRandom is Open for somebody who reads small pieces here and there, and keeps the body open for long: what has to be
// decoded is decoded piece by piece, and no memory is kept.
func (s *Store) OpenRandom(id string) (body.Reader, error) {
	return s.openBody(context.Background(), id, true)
}

// OpenBody opens a body for reading.
func (s *Store) OpenBody(ctx context.Context, id string) (*Reader, error) {
	return s.openBody(ctx, id, false)
}

func (s *Store) openBody(ctx context.Context, id string, random bool) (*Reader, error) {
	s.mu.Lock()
	if s.hidden[id] {
		s.mu.Unlock()
		return nil, fmt.Errorf("body %s: %w", id, fs.ErrNotExist)
	}
	s.open[id]++
	s.mu.Unlock()
	r := &Reader{s: s, id: id, random: random}
	err := s.find(ctx, id, true, random, func(src *source) bool {
		r.sources = append(r.sources, src)
		return false
	})
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// IsRead reports whether a reader has a body open, which may be one that was removed.
func (s *Store) IsRead(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[id] > 0
}

// Size is that of the body, bytes.
func (r *Reader) Size() int64 { return r.current().reader.Size() }

func (r *Reader) current() *source {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sources[0]
}

// ReadAt implements body.Reader: the bytes are verified, wherever they come from.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	r.mu.RLock()
	first := r.sources[0]
	n, err := first.reader.ReadAt(p, off)
	r.mu.RUnlock()
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	return r.elsewhere(first, p, off, err)
}

// elsewhere reads from the other sources, also from those that failed before at other bytes.
func (r *Reader) elsewhere(failed *source, p []byte, off int64, cause error) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := []error{cause}
	r.findMore()
	for i, src := range r.sources {
		if src == failed {
			continue
		}
		n, err := src.reader.ReadAt(p, off)
		if err == nil || errors.Is(err, io.EOF) {
			r.sources[0], r.sources[i] = r.sources[i], r.sources[0]
			return n, err
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if out := r.s.outs(); out != nil {
		return 0, fmt.Errorf("read body %s: %w: %v", r.id, out, err)
	}
	if !damaged(errs) {
		return 0, fmt.Errorf("read body %s: %w: %v", r.id, body.ErrUnavailable, err)
	}
	return 0, fmt.Errorf("read body %s: %w: %v", r.id, body.ErrDamaged, err)
}

// findMore opens all other sources, once.
func (r *Reader) findMore() {
	if r.all || r.closed {
		return
	}
	r.all = true
	have, old := map[Located]bool{}, false
	for _, src := range r.sources {
		old = old || src.info == nil
		for _, l := range src.where {
			have[l] = true
		}
	}
	_ = r.s.find(context.Background(), r.id, false, r.random, func(src *source) bool {
		known := src.info != nil || old
		for _, l := range src.where {
			known = known && have[l]
		}
		if known {
			src.close()
		} else {
			r.sources = append(r.sources, src)
		}
		return true
	})
}

// Close lets go of the body. The last reader of a body that was removed meanwhile removes it.
func (r *Reader) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	for _, src := range r.sources {
		src.close()
	}
	r.mu.Unlock()
	s := r.s
	s.mu.Lock()
	s.open[r.id]--
	last := s.open[r.id] == 0
	remove := last && s.hidden[r.id]
	if last {
		delete(s.open, r.id)
	}
	s.mu.Unlock()
	if !remove {
		return nil
	}
	err := s.removeNow(r.id)
	s.mu.Lock()
	delete(s.hidden, r.id)
	s.mu.Unlock()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("a body could not be removed; the next start does it", "body", r.id, "error", err)
	}
	return nil
}
