package regions

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
)

var (
	// ErrForgets: to retire the region now would forget what was decided there.
	ErrForgets = errors.New("etcd does not have everything that was decided in the region")
	// ErrRetiring: somebody has begun to retire the other one of the two regions of etcd's epoch. To go on with that is always safe; to forget,
	// once nobody is at it any more.
	ErrRetiring = errors.New("another region is being retired")
)

// Retire takes a region out of the epoch for good, by a new one: its bucket need not be there any more. What etcd has of it is folded into
// the buckets of the others, and says for ever which frame an identity belongs to. Its name is never used again. A region that is not
// one of the epoch's is retired already if the records say so.
//
// Etcd that was restored, or is being recovered, does not have everything: then the region has to be there for a recovery first. Where it
// never will be, forget says to go on without: identities that only it had may be given to another frame. It also overrules ErrRetiring.
func (k *Keeper) Retire(ctx context.Context, name claims.Region, forget bool) (Opened, error) {
	fail := func(err error) (Opened, error) { return Opened{}, fmt.Errorf("retire region %s: %w", name, err) }
	if err := name.Validate(); err != nil {
		return fail(err)
	}
	var c change
	if forget {
		c.forget = name
	}
	s, err := k.look(ctx)
	if err != nil {
		return fail(err)
	}
	newest, ok := s.newest()
	switch {
	case !ok:
		return fail(fmt.Errorf("%w: no region has an epoch", ErrRegionSettings))
	case newest.retired(name):
		// An attempt that died is gone on with by whoever opens, unless it has to forget what an emptied bucket had. By these records: another look may
		// miss the only one that says so.
		o, err := k.openBy(ctx, s, true, c)
		if err == nil && !slices.Contains(o.Retired, name) {
			err = fmt.Errorf("%w: epoch %d has the regions %v, by another retirement at once; try again", ErrOvertaken, o.Epoch.Number, o.Epoch.Regions)
		}
		if err != nil {
			return fail(err)
		}
		return o, nil
	case !slices.Contains(newest.Regions, name):
		return fail(fmt.Errorf("%w: it takes no part", ErrRegionSettings))
	case len(newest.Regions) == 1:
		return fail(fmt.Errorf("%w: it is the last one", ErrRegionSettings))
	}
	c.retire = name
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
