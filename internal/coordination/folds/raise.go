package folds

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ErrMoved: others have moved a head since it was read. What was decided by it has to be decided again.
var ErrMoved = errors.New("others have moved a head of folds")

// Standing is what the heads of all regions have of a boot, as they were read at one time.
type Standing struct {
	// Head has everything that any of them has; its generation is none.
	Head Head
	p    *parts
}

// Bulk is what is added to all heads of a boot at once: parts as a whole, and entries. All of them have their homes in regions that take part,
// and share no numbers with what the heads have.
type Bulk struct {
	Parts   []Part
	Entries []Entry
}

// Stand reads the heads of a boot in all regions, each of which has to answer. It writes nothing.
func (f Folder) Stand(ctx context.Context, boot identity.Boot) (*Standing, error) {
	there, away, err := f.read(ctx, boot, claims.Folds{})
	if err == nil && len(there) < len(f.Regions) {
		err = fmt.Errorf("%w: %d of %d regions answer: %w", ErrBehind, len(there), len(f.Regions), errors.Join(away...))
	}
	s := &Standing{Head: Head{Boot: boot}, p: &parts{there: there, sealed: map[identity.Digest][]byte{}}}
	for i := 0; err == nil && i < len(there); i++ {
		s.Head, err = f.unite(ctx, s.p, s.Head, there[i].head)
	}
	if err != nil {
		return nil, fmt.Errorf("read folds of boot %s: %w", boot, err)
	}
	return s, nil
}

// Raise puts a head with everything that the standing has, and the bulk, into every region, in the place of the one that was read there: also
// where nothing is added, so that whoever has read a head before can't move it any more. has reports that a region has a part already.
// If others have moved a head the error wraps ErrMoved; some regions may have the new head then, others not.
func (f Folder) Raise(ctx context.Context, s *Standing, add Bulk, has func(claims.Region, identity.Digest) bool) error {
	boot := s.Head.Boot
	want, err := s.grow(add, f.SealAt)
	for i := 0; err == nil && i < len(s.p.there); i++ {
		r := s.p.there[i]
		next := want
		next.Generation = r.head.Generation + 1
		// Parts precede the head that names them.
		if err = s.p.bring(ctx, r, next, has); err == nil {
			err = put(ctx, r, next)
		}
		if err != nil {
			err = fmt.Errorf("region %s: %w", r.Name, err)
		}
	}
	if err != nil {
		return fmt.Errorf("raise folds of boot %s: %w", boot, err)
	}
	return nil
}

// grow is the head with the bulk. Its own parts keep their order.
func (s *Standing) grow(add Bulk, at int) (Head, error) {
	h := Head{Boot: s.Head.Boot, Parts: slices.Clone(s.Head.Parts), Tail: s.Head.Tail}
	for _, p := range add.Parts {
		if !h.names(p) {
			h.Parts = append(h.Parts, p)
		}
	}
	slices.SortFunc(h.Parts, compareParts)
	if len(h.Parts) > MaxParts {
		return Head{}, fmt.Errorf("%w: %d parts", ErrFull, len(h.Parts))
	}
	h, bodies, err := h.grow(add.Entries, at)
	for _, b := range bodies {
		s.p.sealed[identity.Sum(b)] = b
	}
	// What is in no head yet may be in any bucket.
	s.p.anywhere = add.Parts
	return h, err
}

// put writes a head in the place of the one that was read. Whatever the outcome of a write is: what is there then counts.
func put(ctx context.Context, r found, next Head) error {
	for try := 0; ; try++ {
		err := write(ctx, r, next)
		if err == nil || !passes(err) || ctx.Err() != nil || try == tries {
			return err
		}
		now, etag, err2 := readOrNone(ctx, r.Store, next.Boot)
		switch {
		case err2 != nil:
			return err2
		case now.Generation == next.Generation && now.equal(next):
			return nil
		case etag != r.etag:
			return fmt.Errorf("%w: generation %d is there in the place of %d", ErrMoved, now.Generation, r.head.Generation)
		}
	}
}

// Entries gives the entries of a part that the standing's head names. It is not safe for concurrent use.
func (s *Standing) Entries(ctx context.Context, p Part) ([]Entry, error) {
	return s.p.entries(ctx, s.Head.Boot, p)
}
