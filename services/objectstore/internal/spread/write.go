package spread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

// part is a copy that is being written.
type part struct {
	slot *slot
	p    place.Place
	w    place.Writer
	err  error
	done bool
}

// copies writes a body to several local places.
type copies struct {
	s     *Store
	id    string
	sums  *erasure.CopySums
	parts []*part
	spare []*slot // places that were not tried
	begun bool
	told  bool // Hooks.Staged was called
}

// Create implements body.Store. A body needs ack_copies local places that take writes; with fewer it
// is refused, and never written to fewer.
func (s *Store) Create(id string) (body.Writer, error) {
	sums, err := erasure.NewCopy(id)
	if err == nil && s.opt.ReadOnly {
		err = fmt.Errorf("create body %s: the store is open for reading", id)
	}
	if err != nil {
		return nil, err
	}
	c := &copies{s: s, id: id, sums: sums, spare: s.order(id, s.local())}
	if err := c.recruit(s.opt.AckCopies); err != nil {
		c.Discard()
		return nil, fmt.Errorf("create body %s: %w", id, err)
	}
	return c, nil
}

func (s *Store) local() (out []*slot) {
	for _, sl := range s.slots {
		if sl.Local {
			out = append(out, sl)
		}
	}
	return out
}

// recruit begins copies on spare places until there are n good ones.
func (c *copies) recruit(n int) error {
	var errs []error
	for c.good() < n {
		if len(c.spare) == 0 {
			return c.tooFew(errors.Join(errs...))
		}
		sl := c.spare[0]
		c.spare = c.spare[1:]
		p := sl.use()
		if err := c.s.takes(sl); err != nil || p == nil {
			errs = append(errs, err)
			continue
		}
		w, err := p.Create(context.Background(), erasure.CopyOf(c.id).Name())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.parts = append(c.parts, &part{slot: sl, p: p, w: w})
	}
	return nil
}

func (c *copies) good() (n int) {
	for _, p := range c.parts {
		if p.err == nil {
			n++
		}
	}
	return n
}

// tooFew says why there are not enough copies: lack of room where a place is full, for which a
// client gets another answer.
func (c *copies) tooFew(cause error) error {
	errs := []error{cause}
	for _, p := range c.parts {
		errs = append(errs, p.err)
	}
	err := errors.Join(errs...)
	if !vfs.IsFull(err) {
		err = fmt.Errorf("%w: %w", body.ErrUnavailable, err)
	}
	return fmt.Errorf("%d of %d copies can be written: %w", c.good(), c.s.opt.AckCopies, err)
}

// each calls fn for all good parts at the same time, and notes what fails.
func (c *copies) each(fn func(*part) error) {
	var wg sync.WaitGroup
	for _, p := range c.parts {
		if p.err == nil {
			wg.Go(func() { p.err = fn(p) })
		}
	}
	wg.Wait()
}

// Write implements body.Writer.
func (c *copies) Write(b []byte) (int, error) {
	head := c.header()
	c.each(func(p *part) error { return write(p.w, head, b) })
	if c.good() == 0 {
		return 0, fmt.Errorf("write body %s: %w", c.id, c.tooFew(nil))
	}
	c.sums.Add(b)
	return len(b), nil
}

// header is that of the files, once.
func (c *copies) header() []byte {
	if c.begun {
		return nil
	}
	c.begun = true
	return c.sums.Header()
}

func write(w io.Writer, parts ...[]byte) error {
	for _, b := range parts {
		if len(b) > 0 {
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// Finish implements body.Writer. Copies that failed are made again on other places. It never gives
// body.ErrUnsynced: what a place has of a body that is discarded has no meaning, and a place whose
// fsync failed takes no more writes.
func (c *copies) Finish() error {
	head := c.header()
	foot, info := c.sums.Footer()
	c.each(func(p *part) error {
		err := write(p.w, head, foot)
		if err == nil {
			err = p.w.Finish()
		}
		p.done = err == nil
		return err
	})
	if err := c.replace(info); err != nil {
		c.Discard()
		return fmt.Errorf("finish body %s: %w", c.id, err)
	}
	var names []string
	for _, p := range c.parts {
		if p.done {
			names = append(names, p.slot.Name)
		} else {
			p.w.Discard()
		}
	}
	if h := c.s.opt.Hooks.Staged; h != nil {
		h(c.id, c.sums.Size(), names)
		c.told = true
	}
	return nil
}

// replace makes the copies that failed on other places, from one that is done.
func (c *copies) replace(info erasure.Info) error {
	var from *part
	for _, p := range c.parts {
		if p.done {
			from = p
		}
	}
	if from == nil {
		return c.tooFew(nil)
	}
	for c.good() < c.s.opt.AckCopies {
		if err := c.recruit(c.good() + 1); err != nil {
			return err
		}
		p := c.parts[len(c.parts)-1]
		if p.err = c.s.copyFrom(from.p, info, p.w); p.err == nil {
			p.err = p.w.Finish()
		}
		p.done = p.err == nil
	}
	return nil
}

// Discard implements body.Writer.
func (c *copies) Discard() {
	for _, p := range c.parts {
		if p.done {
			if err := p.p.Remove(context.Background(), erasure.CopyOf(c.id).Name()); err != nil {
				c.s.log.Warn("a discarded body could not be removed; the next start does it", "body", c.id, "error", err)
			}
			continue
		}
		p.w.Discard()
	}
	c.parts = nil
	if h := c.s.opt.Hooks.Removed; h != nil && c.told {
		h(c.id)
	}
}
