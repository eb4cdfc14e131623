package coordinator

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

// slow is a bucket whose first LIST in an epoch with its region waits for an event. Before it nothing has changed yet.
type slow struct {
	regions.Store
	once *sync.Once
	wait func()
}

func (s slow) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if _, _, err := s.Store.Get(ctx, layout.RegionsKey, objstore.GetOptions{}); err == nil {
		s.once.Do(s.wait)
	}
	return s.Store.List(ctx, o)
}

func stores(buckets map[claims.Region]*mem.Store) map[claims.Region]regions.Store {
	out := map[claims.Region]regions.Store{}
	for n, b := range buckets {
		out[n] = b
	}
	return out
}

// claimAlways makes claims until the test ends, so that a transaction meets another epoch soon.
func (r *running) claimAlways() {
	c := r.claims()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for seq := uint64(1001); ctx.Err() == nil; seq += 10 {
			a := c.Do(ctx, []claims.Op{op(claims.DoClaim, seq, "x", "eu", 7, 0)})[0].Answer
			if a.Epoch > 0 {
				c.Do(ctx, []claims.Op{op(claims.DoRelease, seq, "x", "eu", 7, a.Epoch)})
			}
		}
	})
	r.t.Cleanup(func() { cancel(); wg.Wait() })
}

// epochIn is the number of the epoch that a bucket has.
func epochIn(t testing.TB, b *mem.Store) uint64 {
	t.Helper()
	body, _, err := b.Get(t.Context(), layout.RegionsKey, objstore.GetOptions{})
	must(t, err)
	r, err := regions.ParseRecord(body)
	must(t, err)
	return r.Number
}

// begun is a fleet of two regions over one etcd, in epoch 1.
func begun(t *testing.T, buckets map[claims.Region]*mem.Store) func(map[claims.Region]regions.Store) *running {
	t.Helper()
	m := external(t, t.TempDir())
	t.Cleanup(func() { m.Close() }) // after the coordinators
	two := map[claims.Region]*mem.Store{"eu": buckets["eu"], "us": buckets["us"]}
	first := startRegions(t, withRegions(shared(m), two), two)
	first.openedEpoch(1)
	first.end()
	return func(s map[claims.Region]regions.Store) *running {
		r := startStores(t, withRegions(shared(m), buckets), s)
		r.openedEpoch(1)
		return r
	}
}

// While a region is added, the coordinator finds in etcd an epoch that is not filled. That is no recovery that died.
func TestAnAdditionIsNotRecovered(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	start := begun(t, buckets)
	var s *running
	with := stores(buckets)
	with["asia"] = slow{with["asia"], new(sync.Once), func() {
		until(t, "the linearizer to find the epoch", func() bool { return s.back.Load().identities.open.Load() == nil })
		// Time for it to overtake, if it would; a faster pass proves less, and fails nothing.
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && epochIn(t, buckets["eu"]) < 3; {
			time.Sleep(10 * time.Millisecond)
		}
	}}
	s = start(with)
	until(t, "a leader", s.back.Load().recoverer.Chosen)
	s.claimAlways()
	o, err := s.back.Load().identities.AddRegion(t.Context(), "asia")
	if err != nil || o.Epoch.Number != 2 || !slices.Contains(o.Epoch.Regions, "asia") || epochIn(t, buckets["asia"]) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	s.openedEpoch(2)
}

// The coordinator that leads can't tell an addition elsewhere from a recovery that died, and begins anew: with the region.
func TestAnAdditionThatIsOvertaken(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	start := begun(t, buckets)
	leads := start(stores(buckets))
	until(t, "a leader", leads.back.Load().recoverer.Chosen)
	with := stores(buckets)
	with["asia"] = slow{with["asia"], new(sync.Once), func() { leads.openedEpoch(3) }}
	other := start(with)
	leads.claimAlways()
	o, err := other.back.Load().identities.AddRegion(t.Context(), "asia")
	if err != nil || o.Epoch.Number != 3 || !slices.Contains(o.Epoch.Regions, "asia") {
		t.Errorf("%+v, %v", o, err)
	}
	ask(t, other.claims(), op(claims.DoClaim, 1, "x", "asia", 9, 0), claims.Held)
}
