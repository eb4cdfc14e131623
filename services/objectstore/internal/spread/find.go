package spread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

// source is something that a body can be read from: a copy, the shards of one generation, or a file
// of the time before places.
type source struct {
	reader interface {
		io.ReaderAt
		Size() int64
	}
	info  *erasure.Info // nil: from before places
	where []Located
	set   *erasure.Set
	close func()
}

// fragment is one that was opened.
type fragment struct {
	Located
	file   *erasure.File
	reader place.Reader
}

// openFragment opens a file and checks header and footer.
func (s *Store) openFragment(ctx context.Context, p place.Place, name string, f erasure.Fragment) (*fragment, error) {
	r, err := p.Open(ctx, f.Name())
	if err != nil {
		return nil, err
	}
	file, err := erasure.OpenFile(r, r.Size())
	if err == nil && file.Info().Fragment != f {
		err = fmt.Errorf("%w: it is %s", erasure.ErrCorrupt, file.Info().Fragment)
	}
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("place %s: %s: %w", name, f, err)
	}
	return &fragment{Located{name, f}, file, r}, nil
}

// search looks for sources of a body, cheap ones first, and remembers what it saw.
type search struct {
	s      *Store
	id     string
	random bool // small pieces will be read here and there
	errs   []error
	// seen are copies that were tried, and shards that cannot be used: shards that can be count again
	// with others that are found later.
	seen map[Located]bool
}

// failed notes why a fragment cannot be used.
func (q *search) failed(l Located, err error) {
	q.seen[l] = true
	q.errs = append(q.errs, err)
	if !errors.Is(err, place.ErrOut) {
		q.s.degraded(l, err)
	}
}

// copies calls fn with a source for each copy on local places.
func (q *search) copies(ctx context.Context, fn func(*source) bool) bool {
	for _, sl := range q.s.order(q.id, q.s.local()) {
		p := sl.use()
		if p == nil {
			continue
		}
		if !q.copy(ctx, sl.Name, p, fn) {
			return false
		}
	}
	return true
}

// copy gives the copy of one place, if there is one. It is false when fn has enough.
func (q *search) copy(ctx context.Context, name string, p place.Place, fn func(*source) bool) bool {
	l := Located{name, erasure.CopyOf(q.id)}
	if q.seen[l] {
		return true
	}
	f, err := q.s.openFragment(ctx, p, name, l.Fragment)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	q.seen[l] = true
	if err != nil {
		q.failed(l, err)
		return true
	}
	src, err := q.newSource([]*fragment{f})
	if err != nil {
		q.failed(l, err)
		return true
	}
	return fn(src)
}

// listed calls fn with the sources among located fragments: for each policy, highest first, its
// generations.
func (q *search) listed(ctx context.Context, list []Located, fn func(*source) bool) bool {
	byPolicy := map[uint32][]Located{}
	for _, l := range list {
		if l.IsCopy() {
			p, err := q.s.slot(l.Place)
			if err == nil && !q.copy(ctx, l.Place, p, fn) {
				return false
			}
			continue
		}
		if !q.seen[l] {
			byPolicy[l.Policy] = append(byPolicy[l.Policy], l)
		}
	}
	policies := make([]uint32, 0, len(byPolicy))
	for p := range byPolicy {
		policies = append(policies, p)
	}
	slices.SortFunc(policies, func(a, b uint32) int { return int(int64(b) - int64(a)) })
	for _, p := range policies {
		all := byPolicy[p]
		// A bucket that does not answer must not hold up what the drives of this machine can give.
		if near := q.s.near(all); len(near) < len(all) && len(near) >= all[0].K && !q.give(ctx, near, fn) {
			return false
		}
		if !q.give(ctx, all, fn) {
			return false
		}
	}
	return true
}

// give calls fn with the sources among shards of one policy.
func (q *search) give(ctx context.Context, list []Located, fn func(*source) bool) bool {
	for _, src := range q.shards(ctx, list) {
		if !fn(src) {
			return false
		}
	}
	return true
}

// near gives the fragments on local places.
func (s *Store) near(list []Located) []Located {
	return slices.DeleteFunc(slices.Clone(list), func(l Located) bool {
		return !slices.ContainsFunc(s.slots, func(sl *slot) bool { return sl.Name == l.Place && sl.Local })
	})
}

// shards opens the shards of one policy and gives what can be read from them.
func (q *search) shards(ctx context.Context, list []Located) (out []*source) {
	opened, errs := make([]*fragment, len(list)), make([]error, len(list))
	var wg sync.WaitGroup
	for i, l := range list {
		wg.Go(func() {
			p, err := q.s.slot(l.Place)
			if err == nil {
				opened[i], err = q.s.openFragment(ctx, p, l.Place, l.Fragment)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	generations := map[erasure.Hash][]*fragment{}
	for i, f := range opened {
		if errs[i] != nil {
			q.failed(list[i], errs[i])
			continue
		}
		g := f.file.Info().Generation
		generations[g] = append(generations[g], f)
	}
	for _, fs := range generations {
		src, err := q.newSource(fs)
		if err != nil {
			q.errs = append(q.errs, err)
			continue
		}
		out = append(out, src)
	}
	return out
}

// newSource makes a source of fragments of one generation. It closes them when they are not enough.
func (q *search) newSource(list []*fragment) (*source, error) {
	s := q.s
	info := list[0].file.Info()
	files := make([]*erasure.File, info.K+info.M)
	where := make([]string, len(files))
	src := &source{info: &info}
	for _, f := range list {
		files[f.Index], where[f.Index] = f.file, f.Place
		src.where = append(src.where, f.Located)
	}
	closeAll := func() {
		for _, f := range list {
			_ = f.reader.Close()
		}
	}
	set, err := erasure.NewSet(files)
	if err == nil && !set.Readable() {
		err = fmt.Errorf("%w: %s has %d of %d shards under policy %d", erasure.ErrTooFew, info.Fragment.Body, len(list), info.K+info.M, info.Policy)
	}
	if err != nil {
		closeAll()
		return nil, err
	}
	set.Bad = func(i int, err error) {
		f := info.Fragment
		f.Index = i
		s.degraded(Located{where[i], f}, fmt.Errorf("place %s: %s: %w", where[i], f, err))
	}
	budget := s.budget
	if q.random {
		budget = nil // a stripe that is decoded whole for a small piece of it is seldom used again
	}
	r := erasure.NewReader(set, budget)
	r.Decoded = func(n int64) { s.counts.decoded.Add(n) }
	if s.allLocal(list) {
		r.Piece = erasure.LocalPiece
	}
	src.reader, src.set = r, set
	src.close = func() { r.Close(); closeAll() }
	return src, nil
}

// allLocal reports whether no fragment is in a bucket, where each read is a request.
func (s *Store) allLocal(list []*fragment) bool {
	for _, f := range list {
		if p, err := s.slot(f.Place); err != nil || !p.Local() {
			return false
		}
	}
	return true
}

// list gives all fragments of a body on all places that are there. errs are of places that could not
// be listed.
func (s *Store) list(ctx context.Context, id string) (found []Located, errs []error) {
	return s.listOn(ctx, id, s.slots)
}

// listOn gives those on some of the places.
func (s *Store) listOn(ctx context.Context, id string, slots []*slot) (found []Located, errs []error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, sl := range s.order(id, slots) {
		p := sl.use()
		if p == nil {
			continue
		}
		wg.Go(func() {
			err := p.List(ctx, id, "", func(f place.File) error {
				if fr, ok := erasure.Parse(f.Name); ok && fr.Body == id {
					mu.Lock()
					found = append(found, Located{sl.Name, fr})
					mu.Unlock()
				}
				return nil
			})
			if err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(found, func(a, b Located) int { return a.Index - b.Index })
	return found, errs
}

// find calls fn with sources of a body until it is false; a source may come again with more shards. The
// error is nil when fn was called at all. Without hints it looks everywhere at once.
func (s *Store) find(ctx context.Context, id string, hints, random bool, fn func(*source) bool) error {
	q := &search{s: s, id: id, random: random, seen: map[Located]bool{}}
	called := false
	give := func(src *source) bool { called = true; return fn(src) }
	if !q.copies(ctx, give) {
		return nil
	}
	if hints && s.opt.Hooks.Locate != nil {
		if list, ok := s.opt.Hooks.Locate(id); ok && !q.listed(ctx, list, give) {
			return nil
		}
	}
	if src := s.old(id); src != nil && !give(src) {
		return nil
	}
	if s.scattered() {
		list, errs := s.list(ctx, id)
		q.errs = append(q.errs, errs...)
		if !q.listed(ctx, list, give) {
			return nil
		}
	}
	if called {
		return nil
	}
	if s.opt.Hooks.Offered != nil {
		if b := s.opt.Hooks.Offered(id); b != nil {
			fn(&source{reader: b, close: func() { _ = b.Close() }})
			return nil
		}
	}
	return q.nothing()
}

// scattered: bodies may be elsewhere than in copies on local places.
func (s *Store) scattered() bool {
	if s.coded.Load() {
		return true
	}
	for _, sl := range s.slots {
		if !sl.Local {
			return true
		}
	}
	return false
}

// nothing says why no source was found. A body is absent only when all places say so; no other error
// wraps fs.ErrNotExist.
func (q *search) nothing() error {
	cause := errors.Join(q.errs...)
	out := q.s.outs()
	switch {
	case out != nil:
		return fmt.Errorf("body %s: %w: %v", q.id, out, cause)
	case cause == nil:
		return fmt.Errorf("body %s: %w", q.id, fs.ErrNotExist)
	case damaged(q.errs):
		return fmt.Errorf("body %s: %w: %v", q.id, body.ErrDamaged, cause)
	}
	return fmt.Errorf("body %s: %w: %v", q.id, body.ErrUnavailable, cause)
}

// damaged reports whether errors say that the bytes are wrong or gone, all of them: what could not be
// asked may be whole.
func damaged(errs []error) bool {
	for _, err := range errs {
		wrong := errors.Is(err, erasure.ErrCorrupt) || errors.Is(err, erasure.ErrTooFew) || errors.Is(err, fs.ErrNotExist)
		if !wrong || errors.Is(err, erasure.ErrUnread) || errors.Is(err, place.ErrOut) {
			return false
		}
	}
	return true
}

// old opens a body of the time before places; nil when there is none.
func (s *Store) old(id string) *source {
	if s.opt.Old == nil {
		return nil
	}
	size, err := s.opt.Old.Size(id)
	if err != nil {
		return nil
	}
	r, err := s.opt.Old.Open(id)
	if err != nil {
		return nil
	}
	return &source{reader: io.NewSectionReader(r, 0, size), close: func() { _ = r.Close() }}
}
