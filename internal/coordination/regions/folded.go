package regions

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Folded decides about identities that are folded. It is safe for concurrent use.
type Folded struct {
	*folds.Looker
	stores map[claims.Region]Store
	homes  folds.Homes
}

// foldsCache bounds what is remembered of folds, in bytes.
const foldsCache = 256 << 20

// Folded looks at the folds that a folder of the keeper's moves.
func (k *Keeper) Folded(of folds.Folder) *Folded {
	f := &Folded{Looker: folds.NewLooker(of, foldsCache), stores: map[claims.Region]Store{}, homes: of.Homes}
	for _, r := range k.cfg.Regions {
		f.stores[r.Name] = r.Store
	}
	return f
}

// homes are what an epoch knows of regions, with the names of those that were retired.
func homes(e claims.Epoch, retired []claims.Region) folds.Homes {
	return func(r claims.Region) (gone, known bool) {
		gone = e.Retired(r)
		return gone, !gone || slices.Contains(retired, r)
	}
}

// Folder moves the folds of the epoch's regions.
func (k *Keeper) Folder(e claims.Epoch, retired []claims.Region) folds.Folder {
	f := folds.Folder{Homes: homes(e, retired), SealAt: k.cfg.SealAt}
	for _, r := range k.cfg.Regions {
		if !e.Retired(r.Name) {
			f.Regions = append(f.Regions, folds.Region{Name: r.Name, Store: r.Store})
		}
	}
	return f
}

func (f *Folded) retired(r claims.Region) bool {
	gone, _ := f.homes(r)
	return gone
}

// Decide answers a claim that may be folded, by what etcd said of the boot's folds: DECIDED, CONFLICT or RANGE CONFLICT; or no
// outcome, and what was looked at, where the identity is free. What can't be read is an error.
func (f *Folded) Decide(ctx context.Context, op claims.Op, known claims.Folds) (claims.Answer, claims.Looked, error) {
	found, err := f.Look(ctx, op.Identity, op.Hash, known)
	if err != nil || found.Verdict == folds.Free {
		return claims.Answer{}, found.Looked, err
	}
	id := found.Entry.Identity(op.Identity.BootOf())
	a := claims.Answer{Outcome: claims.Decided, Claim: claims.Claim{
		Identity: id, Hash: op.Hash, State: claims.Settled, Home: found.Entry.Home,
		// A fold has no stamp. The claim is settled in every epoch.
		Stamp: claims.Stamp{Epoch: known.Epoch},
	}}
	if found.Verdict == folds.Same && !f.retired(found.Entry.Home) {
		return a, claims.Looked{}, nil
	}
	if found.Verdict == folds.Same {
		// Its home is gone, perhaps with the batch: it is accepted again, for this hash alone.
		found.Looked.Bound = true
		return claims.Answer{}, found.Looked, nil
	}
	if a.Outcome = claims.Conflict; found.Verdict == folds.OtherRange {
		a.Outcome = claims.RangeConflict
	}
	// The sender that is refused gets the hash of the frame that is accepted: without it no record of the conflict can be written, and the sender would try again
	// for ever.
	a.Claim.Hash, err = f.frame(ctx, id, found.Entry)
	return a, claims.Looked{}, err
}

// frame is the whole hash of an entry, which has a part of it: the manifest of its home tells.
func (f *Folded) frame(ctx context.Context, id identity.Batch, e folds.Entry) (identity.Digest, error) {
	if f.retired(e.Home) {
		return f.lost(ctx, id, e), nil
	}
	s, there := f.stores[e.Home]
	if !there {
		return identity.Digest{}, &RegionError{"read a manifest", e.Home, fmt.Errorf("%w: its bucket is in no settings", ErrRegionSettings)}
	}
	m, err := readManifest(ctx, s, id)
	if err == nil && folds.DigestOf(m.FrameSHA256) != e.Digest {
		err = accept.ManifestKind.Corrupt(layout.Accepted(id), "it has the hash %s, and another one is folded", m.FrameSHA256)
	}
	if err != nil {
		return identity.Digest{}, &RegionError{"read a manifest", e.Home, err}
	}
	return m.FrameSHA256, nil
}

// lost is the hash of an entry whose home is retired: whole if another region has a copy; else what the fold has of it, and zeros.
func (f *Folded) lost(ctx context.Context, id identity.Batch, e folds.Entry) (hash identity.Digest) {
	for name, s := range f.stores {
		if f.retired(name) {
			continue
		}
		if m, err := readManifest(ctx, s, id); err == nil && folds.DigestOf(m.FrameSHA256) == e.Digest {
			return m.FrameSHA256
		}
	}
	copy(hash[:], e.Digest[:])
	return hash
}

// maxSpans bounds the entries that a list of spans is made of.
const maxSpans = 10_000

// Spans lists the runs of sequence numbers with the same home that are folded of a range, of its first identities where there are
// many.
func (f *Folded) Spans(ctx context.Context, id identity.Batch, known claims.Folds) ([]claims.Span, error) {
	es, err := f.Meeting(ctx, id, known, maxSpans)
	if err != nil {
		return nil, err
	}
	var out []claims.Span
	for _, e := range es {
		if n := len(out) - 1; n >= 0 && out[n].Home == e.Home && out[n].End+1 == e.Start {
			out[n].End = e.End
			continue
		}
		out = append(out, claims.Span{Start: e.Start, End: e.End, Home: e.Home})
	}
	return out, nil
}

// readManifest reads the manifest of an identity.
func readManifest(ctx context.Context, s objstore.Getter, id identity.Batch) (accept.Manifest, error) {
	key := layout.Accepted(id)
	b, _, err := s.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return accept.Manifest{}, fmt.Errorf("%q is not there: %w", key, err)
	}
	if err != nil {
		return accept.Manifest{}, err
	}
	m, err := accept.ParseManifest(b)
	if err == nil && m.Identity != id {
		err = accept.ManifestKind.Corrupt(key, "it names the identity %s", m.Identity)
	}
	return m, accept.ManifestKind.Wrap(key, err)
}
