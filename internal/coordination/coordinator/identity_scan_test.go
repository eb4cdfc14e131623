package coordinator_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// TestScansTravel: a reconciler finds the claims of its region, page by page, by the coordinator's clock.
func TestScansTravel(t *testing.T) {
	l := linear(t)
	now := time.Unix(100, 0)
	c := coordinator.NewClaims(serve(t, coordinator.NewIdentityServer(l, func() time.Time { return now }).Register), 0)
	want := map[uint64]claims.Claim{}
	for n := range 25 {
		op := claimOf(n)
		if n%3 == 0 {
			op.Region = "west"
		}
		r := c.Do(bg, []claims.Op{op})[0]
		if r.Err == nil && n%5 == 0 {
			op.Kind = claims.DoComplete
			r = c.Do(bg, []claims.Op{op})[0]
		}
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if op.Region == "east" {
			want[op.Identity.SeqStart] = r.Answer.Claim
		}
	}
	s := claims.Scan{Home: "east", States: []claims.State{claims.Claimed, claims.Durable}, Limit: 4}
	now = now.Add(time.Minute)
	all := func(age time.Duration) (n int) {
		t.Helper()
		for s.After = ""; ; {
			p, err := c.Scan(bg, s, age)
			if err != nil || p.Epoch != 3 || p.Read > 4 {
				t.Fatalf("%+v, %v", p, err)
			}
			for _, got := range p.Claims {
				if n++; got != want[got.Identity.SeqStart] {
					t.Errorf("%+v, want %+v", got, want[got.Identity.SeqStart])
				}
			}
			if s.After = p.Next; p.Next == "" {
				return n
			}
		}
	}
	if n := all(59 * time.Second); n != len(want) {
		t.Errorf("%d claims, want %d", n, len(want))
	}
	if n := all(time.Minute); n != 0 {
		t.Errorf("%d claims that are older than a minute", n)
	}
	if n := all(math.MaxInt64); n != 0 {
		t.Errorf("%d claims that are older than time", n)
	}
	for name, bad := range map[string]claims.Scan{"nothing": {}, "no region": {States: s.States, Limit: 1}, "too long a page": {Home: "east", States: s.States, Limit: 1001}, "no state": {Home: "east", Limit: 1}} {
		if _, err := c.Scan(bg, bad, 0); !errors.Is(err, claims.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Scan(bg, s, -1); !errors.Is(err, claims.ErrInvalid) {
		t.Errorf("a negative age: %v", err)
	}
}

// scanning answers scans by a function.
type scanning struct {
	scripted
	scan func(claims.Scan) (claims.Page, error)
}

func (s scanning) Scan(_ context.Context, q claims.Scan) (claims.Page, error) { return s.scan(q) }

// TestScansThatAreRefused: by each reason; what a scan asks for arrives as it was asked.
func TestScansThatAreRefused(t *testing.T) {
	asked := claims.Scan{Home: "east", States: []claims.State{claims.Settled, claims.Durable}, After: "61/62/3", Limit: 17}
	var got claims.Scan
	for _, want := range []error{claims.ErrEpoch, claims.ErrFull, claims.ErrInvalid, claims.ErrUnavailable} {
		c := serveClaims(t, scanning{scan: func(s claims.Scan) (claims.Page, error) { got = s; return claims.Page{}, want }})
		if _, err := c.Scan(bg, asked, time.Second); !errors.Is(err, want) {
			t.Errorf("%v: %v", want, err)
		}
		if got.Before != time.Unix(99, 0).UnixNano() || got.Home != asked.Home || len(got.States) != 2 || got.States[0] != claims.Settled || got.After != asked.After || got.Limit != 17 {
			t.Errorf("%+v, want %+v", got, asked)
		}
	}
	raw := coordinatorv1.NewIdentityServiceClient(serve(t, coordinator.NewIdentityServer(linear(t), time.Now).Register))
	for name, r := range map[string]*coordinatorv1.ScanClaimsRequest{
		"nothing": {}, "no state": {Region: "east"}, "state 0": {Region: "east", States: []coordinatorv1.ClaimState{0}}, "state 257": {Region: "east", States: []coordinatorv1.ClaimState{257}},
		"state -255": {Region: "east", States: []coordinatorv1.ClaimState{-255}}, "a state twice": {Region: "east", States: []coordinatorv1.ClaimState{1, 1}},
		"a page of 1001": {Region: "east", States: []coordinatorv1.ClaimState{1}, PageSize: 1001}, "a huge page": {Region: "east", States: []coordinatorv1.ClaimState{1}, PageSize: math.MaxUint32},
		"a long token": {Region: "east", States: []coordinatorv1.ClaimState{1}, PageToken: strings.Repeat("x", 3000)}, "a region of blanks": {Region: " ", States: []coordinatorv1.ClaimState{1}},
	} {
		if _, err := raw.ScanClaims(bg, r); status.Code(err) != codes.InvalidArgument || rpc.Reason(err) != "CLAIMS_INVALID" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := raw.ScanClaims(bg, &coordinatorv1.ScanClaimsRequest{Region: "east", States: []coordinatorv1.ClaimState{1}, OlderThanNs: math.MaxUint64}); err != nil {
		t.Error(err)
	}
	// A coordinator without scans, and one whose claims are not whole.
	if _, err := serveClaims(t, scripted(nil)).Scan(bg, asked, 0); !errors.Is(err, claims.ErrUnavailable) {
		t.Error(err)
	}
	whole := claims.Claim{Identity: claimOf(0).Identity, Hash: claimOf(0).Hash, State: claims.Durable, ID: claims.ID{1}, Stamp: claims.Stamp{Epoch: 1, Fence: 1}, Home: "east"}
	for name, change := range map[string]func(*claims.Claim){
		"no hash": func(c *claims.Claim) { c.Hash = [32]byte{} }, "no id": func(c *claims.Claim) { c.ID = claims.ID{} }, "no stamp": func(c *claims.Claim) { c.Stamp = claims.Stamp{} },
		"no home": func(c *claims.Claim) { c.Home = "" }, "no identity": func(c *claims.Claim) { c.Identity.Agent = "" },
	} {
		bad := whole
		change(&bad)
		c := serveClaims(t, scanning{scan: func(claims.Scan) (claims.Page, error) { return claims.Page{Claims: []claims.Claim{whole, bad}}, nil }})
		if _, err := c.Scan(bg, asked, 0); !errors.Is(err, claims.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var _ = []coordinator.Scanner{(*linearizer.Linearizer)(nil)}
