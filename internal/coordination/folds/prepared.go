package folds

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Preparer writes down what a region has accepted on its own, before it takes part: of each boot a prepared head in the region's bucket, with
// the bytes of a head of folds, and the parts that it names, where those of folds are, in the buckets of all regions. None of it has any
// force: a recovery that takes the region in decides which of it is folded. Any number of preparers may work at once.
//
// The bucket of every other region has a prepared head of the boot, too, before the region's own has the first one. It is empty: it says
// which boots a recovery may have written to, whatever becomes of the region.
type Preparer struct {
	Own    Region
	Others []Region
	// SealAt is how many entries of a tail become a part, up to the package's; 0 is that.
	SealAt int
}

// Prepared is what became of entries.
type Prepared struct {
	// Added were not there before.
	Added int
	// Left share numbers with others that are prepared, and are not equal to them.
	Left int
}

// PreparedBoots gives the boots of which a bucket has a prepared head of a region, in the order of their keys.
func PreparedBoots(ctx context.Context, s objstore.Lister, region claims.Region) iter.Seq2[identity.Boot, error] {
	return func(yield func(identity.Boot, error) bool) {
		for info, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.PreparedOf(string(region))}) {
			var b identity.Boot
			if err == nil {
				_, b, err = layout.ParsePreparedHead(info.Key)
			}
			if err != nil {
				err = fmt.Errorf("list what is prepared: %w", err)
			}
			if !yield(b, err) || err != nil {
				return
			}
		}
	}
}

// ReadPrepared reads the prepared head of a boot of a region. Where there is none the error wraps objstore.ErrNotFound.
func ReadPrepared(ctx context.Context, s objstore.Getter, region claims.Region, boot identity.Boot) (Head, error) {
	h, _, err := readPrepared(ctx, s, region, boot)
	return h, err
}

func readPrepared(ctx context.Context, s objstore.Getter, region claims.Region, boot identity.Boot) (Head, string, error) {
	b, info, err := s.Get(ctx, layout.PreparedHead(string(region), boot), objstore.GetOptions{Limit: MaxObject})
	if err != nil {
		return Head{}, "", fmt.Errorf("read what is prepared: %w", err)
	}
	h, err := ParseHead(boot, b)
	return h, info.ETag, err
}

// Add adds entries, which are in order and have their home in the region, to what is prepared of a boot. To call it again with the same
// entries is harmless. Errors wrap ErrFull, claims.ErrInvalid, or one of objstore.
func (p Preparer) Add(ctx context.Context, boot identity.Boot, add []Entry) (Prepared, error) {
	out, err := p.add(ctx, boot, add)
	if err != nil {
		return Prepared{}, fmt.Errorf("prepare boot %s of region %s: %w", boot, p.Own.Name, err)
	}
	return out, nil
}

func (p Preparer) add(ctx context.Context, boot identity.Boot, add []Entry) (out Prepared, err error) {
	for i, e := range add {
		if e.Home != p.Own.Name || e.End < e.Start || i > 0 && e.Start <= add[i-1].End {
			return out, fmt.Errorf("%w: entry %d-%d of %s is not one of the region, or does not follow the one before", claims.ErrInvalid, e.Start, e.End, e.Home)
		}
	}
	for try := 0; ; try++ {
		h, etag, err := readPrepared(ctx, p.Own.Store, p.Own.Name, boot)
		if errors.Is(err, objstore.ErrNotFound) {
			h, err = Head{Boot: boot}, nil
		}
		if err != nil {
			return out, err
		}
		fresh, left, err := p.fresh(ctx, h, add)
		if err != nil {
			return out, err
		}
		// After a write of unknown outcome they may be there.
		if out = (Prepared{Added: max(out.Added, len(fresh)), Left: left}); len(fresh) == 0 {
			return out, nil
		}
		if err = p.write(ctx, h, etag, fresh); err == nil {
			return out, nil
		}
		if !passes(err) || ctx.Err() != nil || try == tries {
			return out, err
		}
	}
}

// fresh are the entries that share no numbers with what is prepared, and how many others are not there.
func (p Preparer) fresh(ctx context.Context, h Head, add []Entry) (fresh []Entry, left int, _ error) {
	parts := map[identity.Digest][]Entry{}
	for _, e := range add {
		met := meeting(h.Tail, e.Start, e.End)
		for _, of := range h.Meeting(e.Start, e.End) {
			es, ok := parts[of.Name]
			if !ok {
				var err error
				if es, err = ReadPart(ctx, p.Own.Store, h.Boot, of); err != nil {
					return nil, 0, err
				}
				parts[of.Name] = es
			}
			met = append(met[:len(met):len(met)], meeting(es, e.Start, e.End)...)
		}
		switch {
		case len(met) == 0:
			fresh = append(fresh, e)
		case len(met) > 1 || !met[0].same(e):
			left++
		}
	}
	return fresh, left, nil
}

// write moves the prepared head to one with more entries, which share no numbers with those that it has.
func (p Preparer) write(ctx context.Context, h Head, etag string, fresh []Entry) error {
	h, bodies, err := h.grow(fresh, p.SealAt)
	if err != nil {
		return err
	}
	for _, r := range append(p.Others[:len(p.Others):len(p.Others)], p.Own) {
		for _, b := range bodies {
			if err := create(ctx, r.Store, h.Boot, b); err != nil {
				return fmt.Errorf("region %s: %w", r.Name, err)
			}
		}
	}
	key := layout.PreparedHead(string(p.Own.Name), h.Boot)
	o := objstore.PutOptions{ContentType: "application/octet-stream"}
	if h.Generation++; etag != "" {
		_, err = p.Own.Store.Replace(ctx, key, h.Marshal(), etag, o)
		return err
	}
	for _, r := range p.Others {
		// One of unknown outcome is tried again with everything else.
		if err := Mark(ctx, r.Store, p.Own.Name, h.Boot); err != nil {
			return fmt.Errorf("region %s: %w", r.Name, err)
		}
	}
	_, err = p.Own.Store.Create(ctx, key, h.Marshal(), o)
	return err
}

// Mark notes in the bucket of another region that a region has prepared something of a boot.
func Mark(ctx context.Context, s Store, region claims.Region, boot identity.Boot) error {
	key := layout.PreparedHead(string(region), boot)
	_, err := s.Create(ctx, key, Head{Boot: boot, Generation: 1}.Marshal(), objstore.PutOptions{ContentType: "application/octet-stream"})
	if err != nil && !errors.Is(err, objstore.ErrExists) {
		return fmt.Errorf("note what is prepared: %w", err)
	}
	return nil
}

// grow adds entries to the tail, as many as there are, and moves what is too long for one into parts, whose objects it gives.
func (h Head) grow(add []Entry, at int) (Head, [][]byte, error) {
	if at == 0 {
		at = SealAt
	}
	var bodies [][]byte
	all, err := unite(h.Tail, add, func(claims.Region) (retired, known bool) { return false, true })
	for err == nil {
		h.Tail = all[:min(len(all), at)]
		all = all[len(h.Tail):]
		var body []byte
		if h, body, err = h.seal(at); body != nil {
			bodies = append(bodies, body)
		}
		if len(all) == 0 {
			break
		}
	}
	return h, bodies, err
}
