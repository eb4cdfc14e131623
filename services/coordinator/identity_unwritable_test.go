package coordinator

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// readOnly is a bucket whose record of the epoch can be read, and not written while it is locked.
type readOnly struct {
	regions.Store
	locked  *atomic.Bool
	refused *atomic.Int64
}

func (s readOnly) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	if s.locked.Load() && key == layout.RegionsKey {
		s.refused.Add(1)
		return objstore.Info{}, fmt.Errorf("%w: the bucket is read-only", objstore.ErrDenied)
	}
	return s.Store.Replace(ctx, key, body, etag, o)
}

// TestABucketThatCanNotBeWritten: a recovery takes the number of an epoch at each attempt, so attempts become rare where the record can't be
// written; that of an operator, who retires the region or adds one, ends the wait.
func TestABucketThatCanNotBeWritten(t *testing.T) {
	t.Parallel()
	buckets, locked, refused := threeBuckets(), new(atomic.Bool), new(atomic.Int64)
	with := stores(buckets)
	with["us"] = readOnly{with["us"], locked, refused}
	s := startStores(t, withRegions(quick(t.TempDir()), buckets), with)
	s.openedEpoch(1)
	v := s.back.Load().identities
	locked.Store(true)
	must(t, v.keeper.Distrust(t.Context(), v.open.Load().Opened))
	s.claimAlways()
	until(t, "two attempts", func() bool { return refused.Load() >= 2 })
	before, began := refused.Load(), time.Now()
	time.Sleep(4 * time.Second)
	// Each wait is at least half of 2, 4, … seconds by now; without the pauses there would be one attempt a second, or more.
	if n := refused.Load() - before; n > 2 {
		t.Errorf("%d attempts in %s", n, time.Since(began))
	}
	// The bucket is given back. Nobody waits for a minute who asks for something.
	locked.Store(false)
	o, err := v.AddRegion(t.Context(), "us")
	must(t, err)
	s.openedEpoch(o.Epoch.Number)
	if n := epochIn(t, buckets["us"]); n != o.Epoch.Number {
		t.Errorf("epoch %d in the bucket, %d is open", n, o.Epoch.Number)
	}
}
