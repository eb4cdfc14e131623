package coordinator

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// The last region goes back to accept by itself: the linearizer is dissolved once everything is settled, stays so whatever becomes of etcd,
// and begins again when a region is added.
func TestTheLinearizerIsDissolved(t *testing.T) {
	t.Parallel()
	buckets := map[claims.Region]*mem.Store{"eu": mem.New(nil), "us": mem.New(nil)}
	dir := t.TempDir()
	cfg := withRegions(quick(dir), buckets)
	s := startRegions(t, cfg, buckets)
	s.openedEpoch(1)
	c := s.claims()
	settle(t, c, buckets["eu"], "eu", 1, "x")
	settle(t, c, buckets["us"], "us", 11, "y")
	api := s.identityAPI()
	dissolve := func(region string) (uint64, error) {
		r, err := api.DissolveLinearizer(t.Context(), &coordinatorv1.DissolveLinearizerRequest{Region: region})
		return r.GetEpoch(), err
	}
	if _, err := dissolve("Eu!"); rpc.Reason(err) != "CLAIMS_INVALID" {
		t.Error(err)
	}
	if _, err := dissolve("eu"); rpc.Reason(err) != coordinator.ReasonRegions {
		t.Errorf("one of two: %v", err)
	}
	retired, err := api.RetireRegion(t.Context(), &coordinatorv1.RetireRegionRequest{Region: "us"})
	must(t, err)
	s.openedEpoch(retired.GetEpoch())
	// What the retirement found is nobody's yet.
	if _, err := dissolve("eu"); rpc.Reason(err) != coordinator.ReasonUndecided {
		t.Errorf("with a claim: %v", err)
	}
	a := ask(t, c, op(claims.DoClaim, 1, "x", "eu", 8, 0), claims.Held)
	for _, k := range []claims.Kind{claims.DoComplete, claims.DoSettle} {
		next := op(k, 1, "x", "eu", 0, a.Epoch)
		next.ID = a.Claim.ID
		ask(t, c, next, claims.Decided)
		if _, err := dissolve("eu"); (err == nil) != (k == claims.DoSettle) {
			t.Errorf("behind %s: %v", k, err)
		}
	}
	closed := func() {
		t.Helper()
		until(t, "the linearizer to be closed for good", func() bool {
			r := c.Do(t.Context(), []claims.Op{op(claims.DoClaim, 1, "x", "eu", 9, 0)})[0]
			return errors.Is(r.Err, claims.ErrDissolved)
		})
		l, err := api.ListRegions(t.Context(), &coordinatorv1.ListRegionsRequest{})
		must(t, err)
		if !l.GetDissolved() || l.GetNotOpen() == "" || l.GetEpoch() != 0 || !l.GetRegions()[0].GetMember() || !l.GetRegions()[1].GetRetired() {
			t.Errorf("%v", l)
		}
	}
	closed()
	n, err := dissolve("eu")
	if err != nil || n != retired.GetEpoch()+1 {
		t.Errorf("a second time: %d, %v", n, err)
	}
	s.end()
	// Neither the same etcd nor another one begins by itself.
	for _, lost := range []bool{false, true} {
		if lost {
			must(t, os.RemoveAll(dir))
			must(t, os.MkdirAll(dir, 0o700))
		}
		s = startRegions(t, cfg, buckets)
		c, api = s.claims(), s.identityAPI()
		closed()
		if !lost {
			s.end()
		}
	}
	added, err := api.AddRegion(t.Context(), &coordinatorv1.AddRegionRequest{Region: "eu"})
	must(t, err)
	// What was settled is folded.
	if added.GetEpoch() != n+1 || added.GetClaims() != 0 {
		t.Errorf("%v", added)
	}
	s.openedEpoch(n + 1)
	ask(t, c, op(claims.DoClaim, 1, "y", "eu", 9, 0), claims.Conflict)
}

func (r *running) identityAPI() coordinatorv1.IdentityServiceClient {
	r.t.Helper()
	conn, err := rpc.Dial(r.addr(), rpc.ClientConfig{})
	must(r.t, err)
	r.t.Cleanup(func() { conn.Close() })
	return coordinatorv1.NewIdentityServiceClient(conn)
}

// Every cause has one reason, and what a caller gets is a refusal of its own: what became of an attempt to open the epoch is not what
// became of its change.
func TestWhyTheLinearizerIsClosed(t *testing.T) {
	v := &identities{}
	for reason, err := range map[closedReason]error{
		closedStarting:      errNotOpened,
		closedDissolved:     fmt.Errorf("open: %w", regions.ErrDissolved),
		closedDissolving:    fmt.Errorf("open: %w: %w", regions.ErrDissolving, &regions.RegionError{Op: "x", Region: "eu", Err: objstore.ErrUnavailable}),
		closedSettings:      fmt.Errorf("open: %w", regions.ErrRegionSettings),
		closedRegion:        fmt.Errorf("recover: %w", &regions.RegionError{Op: "list manifests", Region: "eu", Err: objstore.ErrUnavailable}),
		closedRestored:      fmt.Errorf("check: %w: %w", claims.ErrUnknown, claims.ErrForgot),
		closedNotLeading:    fmt.Errorf("open: %w", regions.ErrMustRecover),
		closedOvertaken:     fmt.Errorf("recover: %w", &regions.RegionError{Op: "check the epoch", Region: "eu", Err: regions.ErrOvertaken}),
		closedNotAdded:      fmt.Errorf("open: %w: region us", regions.ErrNotAdded),
		closedTooManyClaims: fmt.Errorf("recover: %w", regions.ErrTooManyClaims),
		closedForgets:       fmt.Errorf("recover: %w: region us", regions.ErrForgets),
		closedEtcd:          fmt.Errorf("read the epoch: %w", claims.ErrUnknown),
		closedOther:         errors.New("something else"),
	} {
		v.closed(err)
		c := v.closure()
		if c.reason != reason || (c.region == "eu") != (reason == closedRegion) {
			t.Errorf("%v: %+v, want %s", err, c, reason)
		}
		want := claims.ErrUnavailable
		if reason == closedDissolved {
			want = claims.ErrDissolved
		}
		if got := v.refusal(); !errors.Is(got, want) || errors.Is(got, claims.ErrUnknown) || errors.Is(got, claims.ErrEpoch) {
			t.Errorf("%s: refused with %v", reason, got)
		}
	}
	v.recovering.Store(true)
	if c := v.closure(); c.reason != closedRecovering {
		t.Errorf("%+v", c)
	}
	v.open.Store(&opened{Opened: regions.Opened{Epoch: claims.Epoch{Number: 1}}})
	if v.closure() != nil || v.notOpen() != nil || !errors.Is(v.refusal(), claims.ErrUnavailable) {
		t.Error("it is open")
	}
}
