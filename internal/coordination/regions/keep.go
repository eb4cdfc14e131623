package regions

import (
	"context"
	"errors"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// kept are claims of one boot, in order; or, where from is not nil, the identities of the manifests that this retired region has of it.
type kept struct {
	boot   identity.Boot
	claims []claims.Claim
	from   *Region
	ids    []identity.Batch
}

// keep folds what was decided in regions that were retired: that an identity is decided, and for which frame. It precedes all deletes of a
// recovery, so one that dies and is begun again finds the same claims, unless etcd was restored meanwhile: then it may find those of any
// earlier time. Claims stand for the manifests that nobody can read any more, with the stamps of these, and are taken as a recovery takes
// manifests: unless one with a higher stamp contradicts them. Where etcd may lack some, and the region's bucket answers, that is read.
func (f *filler) keep(ctx context.Context) error {
	s := &scanner{k: f.k, epoch: f.epoch, homes: homes(f.epoch, f.retired), looker: folds.NewLooker(f.k.Folder(f.epoch, f.retired), 0)}
	for _, name := range f.reads {
		if err := f.keepRegion(ctx, s, Region{name, f.k.store(name)}); err != nil {
			return err
		}
	}
	return f.keepClaims(ctx, s)
}

// keepClaims folds what etcd has of regions that were retired.
func (f *filler) keepClaims(ctx context.Context, s *scanner) error {
	all := f.k.cfg.Keys.Claims()
	for from := all; ; {
		r, err := f.k.cfg.KV.Commit(ctx, claims.Txn{Guards: f.guard(), Parts: []claims.Part{{Reads: []claims.Range{{From: from, End: beyond(all), Limit: claims.MaxScan}}}}})
		if err := f.judge(r, err, "read "+all); err != nil {
			return err
		}
		entries := r.Parts[0].Reads[0]
		boots, err := f.remembered(entries)
		if err != nil {
			return err
		}
		for len(boots) > 0 {
			n := min(len(boots), scanBoots)
			if err := f.keepBoots(ctx, s, boots[:n]); err != nil {
				return err
			}
			boots = boots[n:]
		}
		if len(entries) < claims.MaxScan {
			return nil
		}
		from = entries[len(entries)-1].Key + "\x00"
	}
}

// remembered are the claims that say what a retired region may have decided. A recovered one is among them: it may have been acknowledged in
// an earlier epoch. By others that are CLAIMED nobody was answered.
func (f *filler) remembered(entries []claims.Entry) (out []kept, _ error) {
	for _, e := range entries {
		b, start, err := f.k.cfg.Keys.ParseClaim(e.Key)
		if err != nil {
			return nil, err
		}
		c, err := claims.ParseClaim(b, start, e.Value)
		if err != nil {
			return nil, err
		}
		if !f.epoch.Retired(c.Home) || c.State == claims.Claimed && !c.Recovered {
			continue
		}
		if n := len(out); n == 0 || out[n-1].boot != b {
			out = append(out, kept{boot: b})
		}
		// Of a region whose bucket was read an older etcd knows nothing better; but somebody may be about to move the head by what it says.
		if last := &out[len(out)-1]; !slices.Contains(f.reads, c.Home) {
			last.claims = append(last.claims, c)
		}
	}
	return out, nil
}

// keepBoots folds what claims of retired regions say of boots, if nothing that is known elsewhere speaks against it. The heads of all of them
// are moved: one who was overtaken, and has decided otherwise, writes to them no more.
func (f *filler) keepBoots(ctx context.Context, s *scanner, boots []kept) error {
	for try := 0; len(boots) > 0; try++ {
		folded := make([]*foldedBoot, len(boots))
		for i, b := range boots {
			folded[i] = &foldedBoot{boot: b.boot, touched: true}
		}
		if err := s.readFolds(ctx, folded); err != nil {
			return err
		}
		if err := f.k.holds(ctx, f.epoch); err != nil {
			return err
		}
		moved := make([]bool, len(boots))
		if err := f.k.each(len(boots), func(i int) error {
			add, err := f.add(ctx, folded[i], boots[i])
			if err == nil && (len(add) > 0 || boots[i].from == nil) {
				err = s.looker.Folder().Raise(ctx, folded[i].standing, folds.Bulk{Entries: add}, nil)
			}
			if moved[i] = errors.Is(err, folds.ErrMoved); moved[i] && try < raiseTries {
				return nil
			}
			return err
		}); err != nil {
			return err
		}
		var again []kept
		for i, b := range boots {
			if moved[i] {
				again = append(again, b)
			}
		}
		boots = again
	}
	return nil
}

// add is what is added to what is folded of a boot.
func (f *filler) add(ctx context.Context, folded *foldedBoot, of kept) (out []folds.Entry, _ error) {
	if of.from != nil {
		return f.addManifests(ctx, folded, *of.from, of.ids)
	}
	left := slices.DeleteFunc(slices.Clone(of.claims), func(c claims.Claim) bool { return folded.meets(c.Identity) })
	if len(left) == 0 {
		return nil, nil
	}
	var ids []identity.Batch
	for _, c := range left {
		ids = append(ids, c.Identity)
	}
	there, err := f.standing(ctx, folded, ids, "")
	if err != nil {
		return nil, err
	}
	for _, c := range left {
		if !slices.ContainsFunc(there, func(m manifest) bool { return m.outdates(c) }) {
			out = append(out, folds.Entry{Start: c.Identity.SeqStart, End: c.Identity.SeqEnd, Home: c.Home, Digest: folds.DigestOf(c.Hash)})
		}
	}
	return out, nil
}

// addManifests takes those that a recovery would take, if the region still took part.
func (f *filler) addManifests(ctx context.Context, folded *foldedBoot, r Region, ids []identity.Batch) (out []folds.Entry, _ error) {
	left := slices.DeleteFunc(slices.Clone(ids), folded.meets)
	if len(left) == 0 {
		return nil, nil
	}
	all, err := r.manifests(ctx, folded, left)
	if err != nil {
		return nil, &RegionError{"read manifests", r.Name, err}
	}
	there, err := f.standing(ctx, folded, left, r.Name)
	if err != nil {
		return nil, err
	}
	for _, m := range choose(append(all, there...)) {
		if m.region == r.Name {
			out = append(out, folds.Entry{Start: m.id.SeqStart, End: m.id.SeqEnd, Home: r.Name, Digest: folds.DigestOf(m.hash)})
		}
	}
	return out, nil
}

// outdates reports that the manifest was written, or affirmed, for a claim that followed this one in its place. Then this one was never
// durable in the etcd in which the other was made: it became so in a copy, by a request that came late; or it was recovered, and an epoch
// that followed recovered another one, which nothing could be claimed against in its own.
func (m manifest) outdates(c claims.Claim) bool {
	return m.id.Intersects(c.Identity) && m.stamp.Compare(c.Stamp) > 0
}

// standing are the manifests of the regions that are left, and of others that are read, but for one, which meet identities of a boot, in order, and
// nothing that is folded.
func (f *filler) standing(ctx context.Context, folded *foldedBoot, left []identity.Batch, but claims.Region) (out []manifest, _ error) {
	for _, r := range f.k.cfg.Regions {
		if r.Name == but || f.epoch.Retired(r.Name) && !slices.Contains(f.reads, r.Name) {
			continue
		}
		found, err := r.standing(ctx, folded, left)
		if err != nil {
			return nil, &RegionError{"read manifests", r.Name, err}
		}
		out = append(out, found...)
	}
	return out, nil
}

func (r Region) standing(ctx context.Context, folded *foldedBoot, left []identity.Batch) (out []manifest, _ error) {
	// What begins before the end of something that is folded, and reaches one of them, meets what is folded.
	after := layout.BootFrom(layout.AcceptedPrefix, folded.boot, folded.below(left[0].SeqStart))
	last := left[0].SeqEnd
	for _, id := range left {
		last = max(last, id.SeqEnd)
	}
	var ids []identity.Batch
	for info, err := range objstore.List(ctx, r.Store, objstore.ListOptions{Prefix: layout.AcceptedBoot(folded.boot), StartAfter: after}) {
		if err != nil {
			return nil, err
		}
		id, err := layout.ParseAccepted(info.Key)
		if err != nil {
			return nil, err
		}
		if id.SeqStart > last {
			break
		}
		if !folded.meets(id) && slices.ContainsFunc(left, id.Intersects) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return r.manifests(ctx, folded, ids)
}

// manifests reads manifests of one boot, which are in order, with the highest stamps that they stand for.
func (r Region) manifests(ctx context.Context, folded *foldedBoot, ids []identity.Batch) (out []manifest, _ error) {
	affirmed, err := r.affirmed(ctx, folded, ids)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		m, err := r.manifest(ctx, id)
		if err != nil {
			return nil, err
		}
		if s := affirmed[id]; s.Compare(m.stamp) > 0 {
			m.stamp = s
		}
		out = append(out, m)
	}
	return out, nil
}
