package coordinator

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// hanging is a bucket that answers nothing while hangs holds, as one behind a network that drops packets.
type hanging struct {
	regions.Store
	hangs *atomic.Bool
}

func (s hanging) wait(ctx context.Context) error {
	if !s.hangs.Load() {
		return nil
	}
	<-ctx.Done()
	return fmt.Errorf("%w: %w", objstore.ErrUnavailable, ctx.Err())
}

func (s hanging) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if err := s.wait(ctx); err != nil {
		return nil, objstore.Info{}, err
	}
	return s.Store.Get(ctx, key, o)
}

func (s hanging) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := s.wait(ctx); err != nil {
		return objstore.Page{}, err
	}
	return s.Store.List(ctx, o)
}

// A list of the regions has what the others say when one does not answer: that is when people ask.
func TestListRegionsWithoutARegion(t *testing.T) {
	t.Parallel()
	buckets, hangs := threeBuckets(), new(atomic.Bool)
	with := stores(buckets)
	with["asia"] = hanging{with["asia"], hangs}
	s := startStores(t, withRegions(quick(t.TempDir()), buckets), with)
	s.openedEpoch(1)
	hangs.Store(true)
	conn, err := rpc.Dial(s.addr(), rpc.ClientConfig{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := coordinatorv1.NewIdentityServiceClient(conn).ListRegions(ctx, &coordinatorv1.ListRegionsRequest{})
	must(t, err)
	if len(r.GetRegions()) != 3 {
		t.Fatal(r)
	}
	for _, one := range r.GetRegions() {
		if lost := one.GetRegion() == "asia"; !one.GetMember() || (one.GetError() != "") != lost || lost && !strings.Contains(one.GetError(), "no answer within 5s") || !lost && one.GetEpoch() != 1 {
			t.Error(one)
		}
	}
	hangs.Store(false)
	if r, err = coordinatorv1.NewIdentityServiceClient(conn).ListRegions(ctx, &coordinatorv1.ListRegionsRequest{}); err != nil || r.GetRegions()[0].GetError() != "" {
		t.Errorf("a region that answers again: %v, %v", r, err)
	}
}
