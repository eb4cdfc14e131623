package coordinator

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// losable is a bucket that is lost at some time.
type losable struct {
	regions.Store
	lost *atomic.Bool
}

func (s losable) gone() error {
	if s.lost.Load() {
		return fmt.Errorf("%w: the region is lost", objstore.ErrUnavailable)
	}
	return nil
}

func (s losable) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if err := s.gone(); err != nil {
		return nil, objstore.Info{}, err
	}
	return s.Store.Get(ctx, key, o)
}

func (s losable) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := s.gone(); err != nil {
		return objstore.Page{}, err
	}
	return s.Store.List(ctx, o)
}

func (s losable) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if err := s.gone(); err != nil {
		return objstore.Info{}, err
	}
	return s.Store.Create(ctx, key, body, o)
}

func (s losable) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	if err := s.gone(); err != nil {
		return objstore.Info{}, err
	}
	return s.Store.Replace(ctx, key, body, etag, o)
}

// A region is lost for good, and retired: the others go on, accept its batches again with the same frame, and refuse any other; also after
// etcd has lost everything.
func TestARegionIsRetired(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	var lost atomic.Bool
	with := stores(buckets)
	with["asia"] = losable{with["asia"], &lost}
	s := startStores(t, withRegions(quick(t.TempDir()), buckets), with)
	s.openedEpoch(1)
	c := s.claims()
	settle(t, c, buckets["asia"], "asia", 1, "x")
	settle(t, c, buckets["asia"], "asia", 11, "y")
	settle(t, c, buckets["eu"], "eu", 21, "z")
	ask(t, c, op(claims.DoClaim, 31, "w", "asia", 4, 0), claims.Held)
	lost.Store(true)

	conn, err := rpc.Dial(s.addr(), rpc.ClientConfig{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	api := coordinatorv1.NewIdentityServiceClient(conn)
	if _, err := api.RetireRegion(t.Context(), &coordinatorv1.RetireRegionRequest{Region: "mars"}); rpc.Reason(err) != "REGIONS" {
		t.Error(err)
	}
	r, err := api.RetireRegion(t.Context(), &coordinatorv1.RetireRegionRequest{Region: "asia"})
	must(t, err)
	if r.GetEpoch() < 2 || r.GetClaims() != 1 {
		t.Errorf("%v", r)
	}
	s.openedEpoch(r.GetEpoch())
	check := func() {
		t.Helper()
		if a := ask(t, c, op(claims.DoClaim, 1, "other", "eu", 5, 0), claims.Conflict); a.Claim.Home != "asia" {
			t.Errorf("%+v", a)
		}
		a := ask(t, c, op(claims.DoClaim, 1, "x", "us", 6, 0), claims.Held)
		if !a.Claim.Bound || a.Claim.Home != "us" {
			t.Errorf("%+v", a)
		}
		ask(t, c, op(claims.DoRelease, 1, "x", "us", 6, a.Epoch), claims.Released)
	}
	check()
	a := ask(t, c, op(claims.DoClaim, 31, "w", "eu", 7, 0), claims.Held)
	if a.Claim.Bound {
		t.Errorf("nobody was answered: %+v", a)
	}
	if a = settle(t, c, buckets["eu"], "eu", 11, "y"); a.Claim.Home != "eu" {
		t.Errorf("%+v", a)
	}
	l, err := api.ListRegions(t.Context(), &coordinatorv1.ListRegionsRequest{})
	must(t, err)
	if p := l.GetRegions()[0]; p.GetRegion() != "asia" || !p.GetRetired() || p.GetMember() || l.GetNotOpen() != "" {
		t.Errorf("%v", l)
	}
	s.end()

	// Another etcd, which knows nothing.
	s = startStores(t, withRegions(quick(t.TempDir()), buckets), with)
	s.openedEpoch(r.GetEpoch() + 1)
	c = s.claims()
	check()
	if a := ask(t, c, op(claims.DoClaim, 11, "y", "us", 8, 0), claims.Pending); a.Claim.Home != "eu" || !a.Claim.Recovered {
		t.Errorf("%+v", a)
	}
}
