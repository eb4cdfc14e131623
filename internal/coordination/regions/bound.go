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

// Bounds of what a recovery enters into etcd, unless the settings say otherwise.
const (
	// DefaultMaxUnprepared is how many batches of regions that are added may be neither folded nor prepared: each becomes a claim.
	DefaultMaxUnprepared = 100_000
	// DefaultMaxClaims is how many claims a recovery enters at most.
	DefaultMaxClaims = 1_000_000
)

var (
	// ErrUnprepared: a region that is to be added has accepted too much that was not prepared. Prepare it first; nothing has changed.
	ErrUnprepared = errors.New("too many batches of the region are not prepared")
	// ErrNotAdded: the settings name regions that were prepared, and no region takes part yet. Somebody has to say that they do, once their
	// collectors accept nothing on their own any more.
	ErrNotAdded = errors.New("a region was prepared, and was not added")
	// ErrTooManyClaims: more identities are not folded than a recovery may enter into etcd. Their regions' journals can be folded by Prepare.
	ErrTooManyClaims = errors.New("too many batches are not folded")
)

// mayJoin checks, before anything changes, that regions which are to take part from the next epoch on have little that every recovery would
// have to enter. asked: somebody has asked for it.
func (k *Keeper) mayJoin(ctx context.Context, s *state, c change, asked bool) error {
	added := k.added(s, c)
	if len(added) == 0 {
		return nil
	}
	if !asked {
		for _, n := range added {
			p, err := k.preparation(ctx, n)
			if err != nil {
				return err
			}
			if p.Through > 0 {
				return fmt.Errorf("%w: region %s", ErrNotAdded, n)
			}
		}
	}
	newest, _ := s.newest()
	e := claims.Epoch{Number: newest.Number + 1, Regions: append(slices.Clone(newest.Regions), added...)}
	if err := k.answered(s, e.Regions); err != nil {
		return err
	}
	slices.Sort(e.Regions)
	e.Regions = slices.Compact(e.Regions)
	// Only of those that join is used what was prepared: not of one whose preparation has died before anything of it was noted.
	joining, err := k.joining(ctx, s, c)
	if err != nil {
		return err
	}
	n, err := k.count(ctx, e, names(newest.Retired), joining, added, k.cfg.MaxUnprepared)
	if err == nil && n > k.cfg.MaxUnprepared {
		err = fmt.Errorf("%w: more than %d of %v", ErrUnprepared, k.cfg.MaxUnprepared, added)
	}
	return err
}

// mayFill checks, before anything changes, that a recovery does not end where one before it has ended, for too many claims: each that enters them
// all the same leaves a history in etcd.
func (k *Keeper) mayFill(ctx context.Context, s *state, c change) error {
	newest, ok := s.newest()
	if !ok || s.value == nil || s.filled {
		return nil
	}
	e := newest.Epoch()
	e.Regions = slices.DeleteFunc(slices.Clone(e.Regions), func(n claims.Region) bool { return n == c.retire })
	n, err := k.count(ctx, e, append(names(newest.Retired), c.retire), newest.Joining, e.Regions, k.cfg.MaxClaims)
	if err == nil && n > k.cfg.MaxClaims {
		err = fmt.Errorf("%w: more than %d", ErrTooManyClaims, k.cfg.MaxClaims)
	}
	return err
}

// count counts the identities that a recovery would have to read in the listed regions, at least until they are more than most. It changes
// nothing.
func (k *Keeper) count(ctx context.Context, e claims.Epoch, retired, joining, listed []claims.Region, most uint64) (n uint64, _ error) {
	s := &scanner{
		k: k, epoch: e, homes: homes(e, retired), joining: joining, dry: true, listed: listed,
		looker: folds.NewLooker(k.Folder(e, retired), 0),
	}
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.stop()
	for n <= most {
		boots, err := s.take(ctx)
		if err != nil || len(boots) == 0 {
			return n, err
		}
		for _, b := range boots {
			ids := map[identity.Batch]bool{}
			for _, of := range b.ids {
				for _, id := range of {
					ids[id] = true
				}
			}
			n += uint64(len(ids))
		}
	}
	return n, nil
}
