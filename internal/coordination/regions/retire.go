package regions

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ErrForgets: to retire the region now would forget what was decided there.
var ErrForgets = errors.New("etcd does not have everything that was decided in the region")

// Retire takes a region out of the epoch for good, by a new one: its bucket need not be there any more. What etcd has of it is folded into
// the buckets of the others, and says for ever which frame an identity belongs to. Its name is never used again. A region that is not
// one of the epoch's is retired already if the records say so.
//
// Etcd that was restored, or is being recovered, does not have everything: then the region has to be there for a recovery first. Where it
// never will be, forget says to go on without: identities that only it had may be given to another frame.
func (k *Keeper) Retire(ctx context.Context, name claims.Region, forget bool) (Opened, error) {
	fail := func(err error) (Opened, error) { return Opened{}, fmt.Errorf("retire region %s: %w", name, err) }
	if err := name.Validate(); err != nil {
		return fail(err)
	}
	s, err := k.look(ctx)
	if err != nil {
		return fail(err)
	}
	newest, ok := s.newest()
	switch {
	case !ok:
		return fail(fmt.Errorf("%w: no region has an epoch", ErrRegionSettings))
	case slices.ContainsFunc(newest.Retired, func(t Retired) bool { return t.Name == name }):
		// An attempt that died is gone on with by whoever opens.
		o, err := k.Open(ctx, true)
		if err != nil {
			return fail(err)
		}
		return o, nil
	case !slices.Contains(newest.Regions, name):
		return fail(fmt.Errorf("%w: it takes no part", ErrRegionSettings))
	case len(newest.Regions) == 1:
		return fail(fmt.Errorf("%w: it is the last one", ErrRegionSettings))
	}
	c := change{retire: name, forget: forget}
	if err := c.allowed(k, s); err != nil {
		return fail(err)
	}
	if err := k.answered(s, slices.DeleteFunc(slices.Clone(newest.Regions), func(n claims.Region) bool { return n == name })); err != nil {
		return fail(err)
	}
	o, err := k.recover(ctx, s, c)
	if err != nil {
		return fail(err)
	}
	return o, nil
}

// spread brings the folds of all boots to every region that is left: of two that had one, the other may be gone.
func (f *filler) spread(ctx context.Context, folder folds.Folder) error {
	looker := folds.NewLooker(folder, 0)
	for _, r := range folder.Regions {
		var boots []identity.Boot
		flush := func() error {
			err := f.k.each(len(boots), func(i int) error {
				_, err := looker.All(ctx, boots[i])
				return err
			})
			boots = boots[:0]
			return err
		}
		for boot, err := range folds.Boots(ctx, r.Store) {
			if boots = append(boots, boot); err == nil && len(boots) == scanBoots {
				err = flush()
			}
			if err != nil {
				return &RegionError{"spread folds", r.Name, err}
			}
		}
		if err := flush(); err != nil {
			return &RegionError{"spread folds", r.Name, err}
		}
	}
	return nil
}

// keep folds what etcd has of regions that were retired: that an identity is decided, and for which frame. It precedes all deletes of a
// recovery, so one that dies and is begun again finds the same claims. What is durable in a copy of etcd is as true; a recovered claim of
// a copy may be another's since.
func (f *filler) keep(ctx context.Context, s *state) error {
	newest, _ := s.newest()
	trusted := s.value != nil && s.cluster == newest.Cluster
	all := f.k.cfg.Keys.Claims()
	folder := f.k.Folder(f.epoch)
	var boot identity.Boot
	var add []folds.Entry
	flush := func() error {
		for len(add) > 0 {
			n := min(len(add), folds.MaxAdd)
			if _, err := folder.Fold(ctx, boot, claims.Folds{}, add[:n]); err != nil {
				return fmt.Errorf("keep what retired regions had: %w", err)
			}
			add = add[n:]
		}
		return nil
	}
	for from := all; ; {
		r, err := f.k.cfg.KV.Commit(ctx, claims.Txn{Guards: f.guard(), Parts: []claims.Part{{Reads: []claims.Range{{From: from, End: all[:len(all)-1] + "0", Limit: claims.MaxScan}}}}})
		if err := f.judge(r, err, "read "+all); err != nil {
			return err
		}
		entries := r.Parts[0].Reads[0]
		for _, e := range entries {
			b, start, err := f.k.cfg.Keys.ParseClaim(e.Key)
			if err != nil {
				return err
			}
			c, err := claims.ParseClaim(b, start, e.Value)
			if err != nil {
				return err
			}
			if !f.epoch.Retired(c.Home) || c.State == claims.Claimed && !(c.Recovered && trusted) {
				continue
			}
			if b != boot {
				if err := flush(); err != nil {
					return err
				}
				boot = b
			}
			add = append(add, folds.Entry{Start: c.Identity.SeqStart, End: c.Identity.SeqEnd, Home: c.Home, Digest: folds.DigestOf(c.Hash)})
		}
		if len(entries) < claims.MaxScan {
			if err := flush(); err != nil {
				return err
			}
			return f.spread(ctx, folder)
		}
		from = entries[len(entries)-1].Key + "\x00"
	}
}
