package folds

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

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

// Region has a head of each boot of its own, which is moved by If-Match: so each has all that the one before it had.
type Region struct {
	Name  claims.Region
	Store Store
}

// tries bounds how often a head that others move is read again.
const tries = 8

// Listed is what a region has of a boot.
type Listed struct {
	Boot identity.Boot
	// Head: there is a head.
	Head bool
	// Parts that are there, whether a head names them or not.
	Parts []identity.Digest
}

// List gives what a region has of boots, in the order of their keys.
func List(ctx context.Context, s objstore.Lister) iter.Seq2[Listed, error] {
	return func(yield func(Listed, error) bool) {
		var l Listed
		for info, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.FoldsPrefix}) {
			var b identity.Boot
			var part identity.Digest
			head := false
			if err == nil {
				if b, err = layout.ParseFoldHead(info.Key); err == nil {
					head = true
				} else if b, part, err = layout.ParseFoldPart(info.Key); err != nil {
					// Something that a later release wrote: then what it stands for is not known.
					err = fmt.Errorf("%w: %w", ErrNewer, err)
				}
			}
			if err != nil {
				yield(Listed{}, fmt.Errorf("list folds: %w", err))
				return
			}
			if b != l.Boot {
				if l.Boot != (identity.Boot{}) && !yield(l, nil) {
					return
				}
				l = Listed{Boot: b}
			}
			if l.Head = l.Head || head; !head {
				l.Parts = append(l.Parts, part)
			}
		}
		if l.Boot != (identity.Boot{}) {
			yield(l, nil)
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
	b, err := readPart(ctx, s, boot, p)
	if err != nil {
		return nil, err
	}
	return ParsePart(boot, p, b)
}

func readPart(ctx context.Context, s objstore.Getter, boot identity.Boot, p Part) ([]byte, error) {
	b, _, err := s.Get(ctx, layout.FoldPart(boot, p.Name), objstore.GetOptions{Limit: MaxObject})
	if err != nil {
		return nil, fmt.Errorf("read a part of folds: %w", err)
	}
	return b, nil
}

// Folder moves heads. It has no state: any number of them may work at once.
type Folder struct {
	// Regions of the epoch. Heads are moved in all that answer.
	Regions []Region
	// Homes of the epoch.
	Homes Homes
	// SealAt is how many entries of a tail become a part, up to the package's; 0 is that.
	SealAt int
	// Lenient: entries that contradict what is folded are left out of a fold, which else is an error.
	Lenient bool
}

// Moved is what became of a fold.
type Moved struct {
	// Heads have all the entries, and all that was folded before: etcd may note them, and forget the claims. They are in two
	// regions, where there are two.
	Heads claims.Heads
	// Region has Head, which is one of them, unless there is none in any region.
	Region claims.Region
	Head   Head
	// Failed says why other regions have no such head.
	Failed []error
	// Left is how many entries a lenient folder has left out.
	Left int
}

// found is the head that a region has; its boot's, of generation 0, where it has none.
type found struct {
	Region
	head Head
	etag string
}

// Fold adds entries, which are in order, to the heads of a boot, of which etcd knows what it knows. To call it again, after any error
// or with the same entries, is harmless; without entries it makes heads of what all regions have. Errors wrap ErrContradiction,
// ErrBehind, ErrFull, ErrCopies, claims.ErrInvalid, or one of objstore.
func (f Folder) Fold(ctx context.Context, boot identity.Boot, known claims.Folds, add []Entry) (Moved, error) {
	fail := func(err error) (Moved, error) { return Moved{}, fmt.Errorf("fold boot %s: %w", boot, err) }
	if err := f.check(add); err != nil {
		return fail(err)
	}
	there, away, err := f.read(ctx, boot, known)
	if err != nil {
		return fail(err)
	}
	m := Moved{Failed: away}
	p := &parts{there: there, sealed: map[identity.Digest][]byte{}}
	want, left, err := f.target(ctx, boot, p, add)
	if err != nil {
		return fail(err)
	}
	m.Left = left
	for _, r := range there {
		h, err := f.move(ctx, p, r, want)
		if err != nil {
			m.Failed = append(m.Failed, fmt.Errorf("region %s: %w", r.Name, err))
			continue
		}
		m.Heads, m.Region, m.Head = append(m.Heads, claims.HeadAt{Region: r.Name, Generation: h.Generation}), r.Name, h
	}
	if len(m.Heads) < min(2, len(f.Regions)) {
		return fail(fmt.Errorf("%w: %d of %d: %w", ErrCopies, len(m.Heads), len(f.Regions), errors.Join(m.Failed...)))
	}
	sortHeads(m.Heads)
	return m, nil
}

func sortHeads(h claims.Heads) {
	slices.SortFunc(h, func(a, b claims.HeadAt) int { return strings.Compare(string(a.Region), string(b.Region)) })
}

func (f Folder) check(add []Entry) error {
	if len(f.Regions) == 0 || f.Homes == nil || f.SealAt < 0 || f.SealAt > SealAt || len(add) > MaxAdd {
		return fmt.Errorf("%w: %d regions, %d entries", claims.ErrInvalid, len(f.Regions), len(add))
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

// read gives the heads of all regions that answer, if together they have everything that was folded: one of those that etcd knows
// of is among them, or, where it knows of none, all but one answer. Two regions have each head before etcd forgets a claim, so one of
// them is among all but one.
func (f Folder) read(ctx context.Context, boot identity.Boot, known claims.Folds) (there []found, errs []error, _ error) {
	enough := false
	for _, r := range f.Regions {
		h, etag, err := readOrNone(ctx, r.Store, boot)
		if err != nil {
			errs = append(errs, fmt.Errorf("region %s: %w", r.Name, err))
			continue
		}
		there = append(there, found{r, h, etag})
		if g, named := known.Heads.Of(r.Name); named && h.Generation >= g {
			enough = true
		} else if named {
			errs = append(errs, fmt.Errorf("region %s has generation %d, etcd knows of %d", r.Name, h.Generation, g))
		}
	}
	if known.Modified == 0 {
		enough = len(there) >= max(1, len(f.Regions)-1)
	}
	if !enough {
		return nil, nil, fmt.Errorf("%w: %w", ErrBehind, errors.Join(errs...))
	}
	return there, errs, nil
}

// target is what every region is to have: everything that one of them has, and the entries, but for those that are left out.
func (f Folder) target(ctx context.Context, boot identity.Boot, p *parts, add []Entry) (want Head, left int, err error) {
	want = Head{Boot: boot}
	for _, r := range p.there {
		if want, err = f.unite(ctx, p, want, r.head); err != nil {
			return Head{}, 0, err
		}
	}
	if n := len(add); f.Lenient {
		if add, err = f.fitting(ctx, p, want, add); err != nil {
			return Head{}, 0, err
		}
		left = n - len(add)
	}
	if add, err = f.fresh(ctx, p, want, add); err == nil {
		want.Tail, err = unite(want.Tail, add, f.Homes)
	}
	if err != nil {
		return Head{}, 0, err
	}
	want, err = f.seal(want, p)
	return want, left, err
}

// fitting are the entries that contradict nothing in a head.
func (f Folder) fitting(ctx context.Context, from *parts, h Head, add []Entry) (out []Entry, _ error) {
	for _, e := range add {
		met := meeting(h.Tail, e.Start, e.End)
		for _, p := range h.Meeting(e.Start, e.End) {
			es, err := from.entries(ctx, h.Boot, p)
			if err != nil {
				return nil, err
			}
			met = append(met[:len(met):len(met)], meeting(es, e.Start, e.End)...)
		}
		fits := true
		for _, o := range met {
			_, err := f.Homes.later(o, e)
			if errors.Is(err, ErrUnknownHome) {
				return nil, err
			}
			fits = fits && o.same(e) && err == nil
		}
		if fits {
			out = append(out, e)
		}
	}
	return out, nil
}

func (f Folder) seal(h Head, p *parts) (Head, error) {
	at := f.SealAt
	if at == 0 {
		at = SealAt
	}
	h, body, err := h.seal(at)
	if body != nil {
		p.sealed[identity.Sum(body)] = body
	}
	return h, err
}

// move brings a region's head to what is wanted, united with what is there. Whatever the outcome of a write is: what is there then is
// what counts, and what was written may come later, when its condition does not hold.
func (f Folder) move(ctx context.Context, p *parts, r found, want Head) (Head, error) {
	for try := 0; ; try++ {
		next, err := f.unite(ctx, p, want, r.head)
		if err != nil || next.equal(r.head) {
			return r.head, err
		}
		if next, err = f.seal(next, p); err != nil {
			return Head{}, err
		}
		next.Generation = r.head.Generation + 1
		// Parts precede the head that names them.
		if err = p.bring(ctx, r, next, nil); err == nil {
			err = write(ctx, r, next)
		}
		if err == nil {
			return next, nil
		}
		if !passes(err) || ctx.Err() != nil || try == tries {
			return Head{}, err
		}
		if r.head, r.etag, err = readOrNone(ctx, r.Store, want.Boot); err != nil {
			return Head{}, err
		}
		// Others may have sealed parts meanwhile.
		p.there = append(slices.DeleteFunc(slices.Clone(p.there), func(o found) bool { return o.Name == r.Name }), r)
	}
}

// passes reports whether a write failed because of another one, or nobody knows whether it did.
func passes(err error) bool {
	return errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrPreconditionFailed) ||
		errors.Is(err, objstore.ErrConflict) || errors.Is(err, objstore.ErrUnknown)
}

// fresh are the entries that the head's parts do not have, or with a home that is retired. Errors wrap ErrContradiction or what reading
// the parts gave.
func (f Folder) fresh(ctx context.Context, from *parts, h Head, add []Entry) ([]Entry, error) {
	var out []Entry
	for _, e := range add {
		known := false
		for _, p := range h.Meeting(e.Start, e.End) {
			es, err := from.entries(ctx, h.Boot, p)
			if err != nil {
				return nil, err
			}
			for _, o := range meeting(es, e.Start, e.End) {
				if !o.same(e) {
					return nil, contradiction(o, e)
				}
				l, err := f.Homes.later(o, e)
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

// unite merges what another region has into a head. A tail that was sealed since is not taken along.
func (f Folder) unite(ctx context.Context, p *parts, h, there Head) (Head, error) {
	if len(h.Parts) == 0 && len(h.Tail) == 0 || h.equal(there) {
		return Head{Boot: h.Boot, Parts: there.Parts, Tail: there.Tail}, nil
	}
	tail := there.Tail
	there.Tail = nil
	next, err := Unite(h, there, f.Homes)
	if err != nil {
		return Head{}, err
	}
	var extra []Entry
	for _, e := range tail {
		if !slices.Contains(meeting(h.Tail, e.Start, e.End), e) {
			extra = append(extra, e)
		}
	}
	if extra, err = f.fresh(ctx, p, next, extra); err == nil {
		next.Tail, err = unite(next.Tail, extra, f.Homes)
	}
	return next, err
}

// parts are those of a boot that the heads of regions name, and that were sealed and are in none yet.
type parts struct {
	there  []found
	sealed map[identity.Digest][]byte
	read   map[identity.Digest][]Entry
	// anywhere are parts that lie in the bucket of some region, although no head names them.
	anywhere []Part
}

func (p *parts) body(ctx context.Context, boot identity.Boot, of Part) ([]byte, error) {
	if b := p.sealed[of.Name]; b != nil {
		return b, nil
	}
	var errs []error
	for _, r := range p.there {
		if !r.head.names(of) && !slices.Contains(p.anywhere, of) {
			continue
		}
		b, err := readPart(ctx, r.Store, boot, of)
		if err == nil {
			return b, nil
		}
		errs = append(errs, fmt.Errorf("region %s: %w", r.Name, err))
	}
	return nil, errors.Join(append(errs, fmt.Errorf("part %s is in no region that answers", of.Name))...)
}

func (p *parts) entries(ctx context.Context, boot identity.Boot, of Part) ([]Entry, error) {
	if es, ok := p.read[of.Name]; ok {
		return es, nil
	}
	b, err := p.body(ctx, boot, of)
	if err != nil {
		return nil, err
	}
	es, err := ParsePart(boot, of, b)
	if p.read == nil {
		p.read = map[identity.Digest][]Entry{}
	}
	p.read[of.Name] = es
	return es, err
}

// bring creates the parts in a region that its head does not name yet, and that has, if it is not nil, does not know to be there.
func (p *parts) bring(ctx context.Context, to found, next Head, has func(claims.Region, identity.Digest) bool) error {
	for _, of := range next.Parts {
		if to.head.names(of) || has != nil && has(to.Name, of.Name) {
			continue
		}
		b, err := p.body(ctx, next.Boot, of)
		if err == nil {
			_, err = ParsePart(next.Boot, of, b)
		}
		if err == nil {
			err = create(ctx, to.Store, next.Boot, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h Head) names(of Part) bool {
	return slices.ContainsFunc(h.Parts, func(o Part) bool { return o.Name == of.Name })
}

// write puts a head into a region, in the place of the one that was found.
func write(ctx context.Context, r found, h Head) error {
	o := objstore.PutOptions{ContentType: "application/octet-stream"}
	key := layout.FoldHead(h.Boot)
	var err error
	if r.etag == "" {
		_, err = r.Store.Create(ctx, key, h.Marshal(), o)
	} else {
		_, err = r.Store.Replace(ctx, key, h.Marshal(), r.etag, o)
	}
	if err != nil {
		return fmt.Errorf("move the head of folds: %w", err)
	}
	return nil
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
