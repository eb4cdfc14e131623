package folds

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Store is the bucket of a region.
type Store interface {
	objstore.Getter
	objstore.Lister
	objstore.Creator
	objstore.Replacer
}

// Region has a copy of every head.
type Region struct {
	Name  claims.Region
	Store Store
}

// epochShift: a generation has the epoch that it was made in above this bit. Another epoch may have another first region, and if both
// made the same generation, a copy of one would be taken for the other.
const epochShift = 32

// tries bounds how often a head that others move is read again.
const tries = 8

// Boots gives the boots of which a region has a head, in the order of their keys.
func Boots(ctx context.Context, s objstore.Lister) iter.Seq2[identity.Boot, error] {
	return func(yield func(identity.Boot, error) bool) {
		for info, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.FoldsPrefix}) {
			if err != nil {
				yield(identity.Boot{}, fmt.Errorf("list heads of folds: %w", err))
				return
			}
			b, err := layout.ParseFoldHead(info.Key)
			if err == nil && !yield(b, nil) {
				return
			}
			if err == nil {
				continue
			}
			// A part, or something that a later release wrote: then what it stands for is not known.
			if _, _, err := layout.ParseFoldPart(info.Key); err != nil {
				yield(identity.Boot{}, fmt.Errorf("list heads of folds: %w", err))
				return
			}
		}
	}
}

// Read reads the head of a boot. Where there is none the error wraps objstore.ErrNotFound.
func Read(ctx context.Context, s objstore.Getter, boot identity.Boot) (Head, error) {
	h, _, err := read(ctx, s, boot)
	return h, err
}

func read(ctx context.Context, s objstore.Getter, boot identity.Boot) (Head, string, error) {
	b, info, err := s.Get(ctx, layout.FoldHead(boot), objstore.GetOptions{Limit: MaxObject})
	if err != nil {
		return Head{}, "", fmt.Errorf("read the head of folds: %w", err)
	}
	h, err := ParseHead(boot, b)
	return h, info.ETag, err
}

// readOrNone is read where the head may be absent: then the etag is empty.
func readOrNone(ctx context.Context, s objstore.Getter, boot identity.Boot) (Head, string, error) {
	h, etag, err := read(ctx, s, boot)
	if errors.Is(err, objstore.ErrNotFound) {
		return Head{Boot: boot}, "", nil
	}
	return h, etag, err
}

// ReadPart reads a part that a head of the boot names.
func ReadPart(ctx context.Context, s objstore.Getter, boot identity.Boot, p Part) ([]Entry, error) {
	b, _, err := s.Get(ctx, layout.FoldPart(boot, p.Name), objstore.GetOptions{Limit: MaxObject})
	if err != nil {
		return nil, fmt.Errorf("read a part of folds: %w", err)
	}
	return ParsePart(boot, p, b)
}

// Folder moves heads. It has no state: any number of them may work at once.
type Folder struct {
	// Epoch of the linearizer, which etcd's transactions compare.
	Epoch uint64
	// Regions of the epoch, in its order: heads are moved in the first, and copied to the others.
	Regions []Region
	Retired Homes
	// SealAt is how many entries of a tail become a part, up to the package's; 0 is that.
	SealAt int
}

// Moved is what became of a fold.
type Moved struct {
	// Generation of a head that has all the entries: etcd's may be set to it, and their claims deleted.
	Generation uint64
	// Copies is how many regions have such a head, the first one among them; Failed says why others have not.
	Copies int
	Failed []error
}

// Fold adds entries, which are in order, to the head of a boot of which etcd knows generation g. When it returns nil the head is in
// the first region, and in another one where there are several. To call it again, after any error or with the same entries, is
// harmless. Errors wrap ErrContradiction, ErrBehind, ErrFull, ErrBusy, ErrCopies,
// claims.ErrInvalid, claims.ErrEpoch or one of objstore.
func (f Folder) Fold(ctx context.Context, boot identity.Boot, g uint64, add []Entry) (Moved, error) {
	fail := func(err error) (Moved, error) { return Moved{}, fmt.Errorf("fold boot %s: %w", boot, err) }
	if err := f.check(add); err != nil {
		return fail(err)
	}
	h, err := f.move(ctx, boot, g, add)
	if err != nil {
		return fail(err)
	}
	m := Moved{Generation: h.Generation, Copies: 1}
	for _, r := range f.Regions[1:] {
		if err := f.copyTo(ctx, r, h); err != nil {
			m.Failed = append(m.Failed, fmt.Errorf("region %s: %w", r.Name, err))
			continue
		}
		m.Copies++
	}
	if m.Copies < min(2, len(f.Regions)) {
		return fail(fmt.Errorf("%w: %d of %d: %w", ErrCopies, m.Copies, len(f.Regions), errors.Join(m.Failed...)))
	}
	return m, nil
}

func (f Folder) check(add []Entry) error {
	if f.Epoch == 0 || f.Epoch >= 1<<epochShift || len(f.Regions) == 0 || f.Retired == nil || f.SealAt < 0 || f.SealAt > SealAt || len(add) > MaxAdd {
		return fmt.Errorf("%w: epoch %d, %d regions, %d entries", claims.ErrInvalid, f.Epoch, len(f.Regions), len(add))
	}
	for i, e := range add {
		if err := e.Home.Validate(); err != nil {
			return err
		}
		if e.End < e.Start || i > 0 && e.Start <= add[i-1].End {
			return fmt.Errorf("%w: entry %d-%d is not one, or does not follow the one before", claims.ErrInvalid, e.Start, e.End)
		}
	}
	return nil
}

// move moves the head of the first region.
func (f Folder) move(ctx context.Context, boot identity.Boot, g uint64, add []Entry) (Head, error) {
	first := f.Regions[0]
	for range tries {
		was, etag, err := readOrNone(ctx, first.Store, boot)
		if err != nil {
			return Head{}, err
		}
		h := was
		if h.Generation>>epochShift > f.Epoch {
			return Head{}, fmt.Errorf("%w: the head was moved in %d", claims.ErrEpoch, h.Generation>>epochShift)
		}
		if h.Generation < g {
			// The region is the first one since another was retired or added.
			if h, err = f.gather(ctx, h); err != nil {
				return Head{}, err
			}
			if h.Generation < g {
				return Head{}, fmt.Errorf("%w: generation %d, etcd's is %d", ErrBehind, h.Generation, g)
			}
		}
		if h, err = f.with(ctx, h, add); err != nil {
			return Head{}, err
		}
		if h.equal(was) && h.Generation == was.Generation {
			return was, nil
		}
		if !h.equal(was) {
			h.Generation = max(h.Generation+1, f.Epoch<<epochShift)
		}
		h, err = f.write(ctx, first.Store, h, etag)
		if err == nil || !passes(err) || ctx.Err() != nil {
			return h, err
		}
		// Somebody else moved it, or nobody knows whether this move was made. Whatever is there now is what counts; what this one wrote may
		// come later, and then its condition does not hold.
	}
	return Head{}, fmt.Errorf("%w: %d times", ErrBusy, tries)
}

// passes reports whether a write failed because of another one, or nobody knows whether it did.
func passes(err error) bool {
	return errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrPreconditionFailed) ||
		errors.Is(err, objstore.ErrConflict) || errors.Is(err, objstore.ErrUnknown)
}

// gather unites a head with the copies in all other regions, and brings the parts that it lacks. One that does not answer may have the
// newest.
func (f Folder) gather(ctx context.Context, h Head) (Head, error) {
	for _, r := range f.Regions[1:] {
		o, _, err := readOrNone(ctx, r.Store, h.Boot)
		if err == nil {
			err = bring(ctx, f.Regions[0].Store, r.Store, h, o)
		}
		if err == nil {
			h, err = f.unite(ctx, f.Regions[0].Store, h, o)
		}
		if err != nil {
			return Head{}, fmt.Errorf("region %s: %w", r.Name, err)
		}
	}
	return h, nil
}

// with adds entries to the tail, but for those that parts have.
func (f Folder) with(ctx context.Context, h Head, add []Entry) (Head, error) {
	fresh, err := f.fresh(ctx, f.Regions[0].Store, h, add)
	if err == nil {
		h.Tail, err = unite(h.Tail, fresh, f.Retired)
	}
	return h, err
}

// fresh are the entries that the head's parts, read from a region, do not have, or with a home that is retired. Errors wrap
// ErrContradiction or what reading the parts gave.
func (f Folder) fresh(ctx context.Context, s objstore.Getter, h Head, add []Entry) ([]Entry, error) {
	parts := map[identity.Digest][]Entry{}
	var out []Entry
	for _, e := range add {
		known := false
		for _, p := range h.Meeting(e.Start, e.End) {
			es, ok := parts[p.Name]
			if !ok {
				var err error
				if es, err = ReadPart(ctx, s, h.Boot, p); err != nil {
					return nil, err
				}
				parts[p.Name] = es
			}
			for _, o := range meeting(es, e.Start, e.End) {
				if !o.same(e) {
					return nil, contradiction(o, e)
				}
				l, err := f.Retired.later(o, e)
				if err != nil {
					return nil, err
				}
				known = known || l.Home == o.Home
			}
		}
		if !known {
			out = append(out, e)
		}
	}
	return out, nil
}

// unite merges what a region has into a head, whose parts the region has as well. A tail that was sealed since is not taken along.
func (f Folder) unite(ctx context.Context, s objstore.Getter, h, there Head) (Head, error) {
	tail := there.Tail
	there.Tail = nil
	next, err := Unite(h, there, f.Retired)
	if err != nil {
		return Head{}, err
	}
	var extra []Entry
	for _, e := range tail {
		if !slices.Contains(h.Tail, e) {
			extra = append(extra, e)
		}
	}
	if extra, err = f.fresh(ctx, s, next, extra); err == nil {
		next.Tail, err = unite(next.Tail, extra, f.Retired)
	}
	return next, err
}

// write puts a head into a region, in the place of the one with the etag. Parts precede the head that names them.
func (f Folder) write(ctx context.Context, s Store, h Head, etag string) (Head, error) {
	at := f.SealAt
	if at == 0 {
		at = SealAt
	}
	h, body, err := h.seal(at)
	if err != nil {
		return Head{}, err
	}
	if body != nil {
		if err := create(ctx, s, h.Boot, body); err != nil {
			return Head{}, err
		}
	}
	o := objstore.PutOptions{ContentType: "application/octet-stream"}
	key := layout.FoldHead(h.Boot)
	if etag == "" {
		_, err = s.Create(ctx, key, h.Marshal(), o)
	} else {
		_, err = s.Replace(ctx, key, h.Marshal(), etag, o)
	}
	if err != nil {
		return Head{}, fmt.Errorf("move the head of folds: %w", err)
	}
	return h, nil
}

// create writes a part. One that is there has these bytes, since they name it.
func create(ctx context.Context, s Store, boot identity.Boot, body []byte) error {
	key := layout.FoldPart(boot, identity.Sum(body))
	var err error
	for range tries {
		_, err = s.Create(ctx, key, body, objstore.PutOptions{ContentType: "application/octet-stream"})
		if err == nil || errors.Is(err, objstore.ErrExists) {
			return nil
		}
		if !passes(err) || ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("write a part of folds: %w", err)
}

// bring copies the parts of a head that another one lacks.
func bring(ctx context.Context, to Store, from objstore.Getter, has, all Head) error {
	for _, p := range all.Parts {
		if slices.ContainsFunc(has.Parts, func(o Part) bool { return o.Name == p.Name }) {
			continue
		}
		b, _, err := from.Get(ctx, layout.FoldPart(all.Boot, p.Name), objstore.GetOptions{Limit: MaxObject})
		if err != nil {
			return fmt.Errorf("read a part of folds: %w", err)
		}
		if _, err := ParsePart(all.Boot, p, b); err != nil {
			return err
		}
		if err := create(ctx, to, all.Boot, b); err != nil {
			return err
		}
	}
	return nil
}

// copyTo brings a head to a region, united with what is there.
func (f Folder) copyTo(ctx context.Context, r Region, h Head) error {
	for range tries {
		was, etag, err := readOrNone(ctx, r.Store, h.Boot)
		if err != nil {
			return err
		}
		if err := bring(ctx, r.Store, f.Regions[0].Store, was, h); err != nil {
			return err
		}
		next, err := f.unite(ctx, r.Store, h, was)
		if err != nil {
			return err
		}
		if next.equal(was) && next.Generation == was.Generation {
			return nil
		}
		_, err = f.write(ctx, r.Store, next, etag)
		if err == nil || !passes(err) || ctx.Err() != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %d times", ErrBusy, tries)
}
