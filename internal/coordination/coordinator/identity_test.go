package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// linear is a linearizer over a store in memory.
func linear(t *testing.T) *linearizer.Linearizer {
	t.Helper()
	const keys = claims.Keys("/t/")
	store, epoch := mem.New(), claims.Epoch{Number: 3, ID: claims.ID{1}, Regions: []claims.Region{"east", "west"}}
	if _, err := store.Commit(bg, claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Epoch(), Value: epoch.Marshal()}}}}}); err != nil {
		t.Fatal(err)
	}
	l, err := linearizer.New(store, linearizer.Options{Config: claims.DefaultConfig(), Keys: keys, Epoch: epoch, Folds: mem.NoFolds{Epoch: epoch.Number}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func serveClaims(t *testing.T, c coordinator.Claimer, opts ...grpc.ServerOption) *coordinator.Claims {
	t.Helper()
	return coordinator.NewClaims(serve(t, coordinator.NewIdentityServer(c, func() time.Time { return time.Unix(100, 0) }).Register, opts...), 0)
}

func claimOf(n int) claims.Op {
	return claims.Op{
		Kind: claims.DoClaim, Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: uint64(10 * n), SeqEnd: uint64(10*n + 9)},
		Hash: identity.Sum([]byte("red")), ID: claims.ID{byte(n + 1)}, Region: "east", Epoch: 3,
	}
}

func changed(op claims.Op, change func(*claims.Op)) claims.Op { change(&op); return op }

// TestACallerThatIsRefused: credentials that are refused, or bound to other regions, are an error of their own, and are not tried again:
// nothing was done. What the caller is bound to is compared before anything is done of a call.
func TestACallerThatIsRefused(t *testing.T) {
	l := linear(t)
	var calls atomic.Int64
	p := rpc.Principal{Name: "collector", Roles: []rpc.Role{rpc.RoleWorker}, Regions: []string{"east"}}
	auth := grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		calls.Add(1)
		return h(rpc.WithPrincipal(ctx, p), req)
	})
	c := serveClaims(t, l, auth)
	if r := c.Do(bg, []claims.Op{claimOf(0)})[0]; r.Err != nil || r.Answer.Outcome != claims.Held {
		t.Fatalf("of its own region: %+v", r)
	}
	west := changed(claimOf(1), func(o *claims.Op) { o.Region = "west" })
	before := calls.Load()
	for _, r := range c.Do(bg, []claims.Op{claimOf(2), west}) {
		if !errors.Is(r.Err, claims.ErrDenied) || errors.Is(r.Err, claims.ErrUnknown) || !strings.Contains(r.Err.Error(), "west") {
			t.Errorf("%+v", r)
		}
	}
	if n := calls.Load() - before; n != 1 {
		t.Errorf("%d calls", n)
	}
	found, err := c.List(bg, identity.Batch{Agent: "a", Boot: "b", SeqStart: 10, SeqEnd: 1000})
	if err != nil || len(found.Claims) > 0 {
		t.Errorf("%+v, %v", found.Claims, err)
	}
	// Nobody else releases another region's claim, whatever region the call says.
	other := l.Do(bg, []claims.Op{west})[0]
	release := west
	release.Kind = claims.DoRelease
	for region, want := range map[claims.Region]error{"west": claims.ErrDenied, "": claims.ErrDenied, "east": nil} {
		release.Region = region
		if r := c.Do(bg, []claims.Op{release})[0]; other.Err != nil || !errors.Is(r.Err, want) || want == nil && r.Answer.Outcome != claims.Moved {
			t.Errorf("release by %q: %+v", region, r)
		}
	}
	scan := claims.Scan{Home: "east", States: []claims.State{claims.Claimed}, Limit: 10}
	if p, err := c.Scan(bg, scan, 0); err != nil {
		t.Errorf("%+v, %v", p, err)
	}
	scan.Home = "west"
	if _, err := c.Scan(bg, scan, 0); !errors.Is(err, claims.ErrDenied) {
		t.Errorf("a scan of another region: %v", err)
	}
	// One that is bound to none acts for any; and a server that knows no callers refuses nobody.
	p.Regions = nil
	if r := c.Do(bg, []claims.Op{west})[0]; r.Err != nil {
		t.Errorf("%+v", r)
	}
	for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied} {
		refuses := serveClaims(t, l, grpc.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
			return nil, status.Error(code, "no")
		}))
		if r := refuses.Do(bg, []claims.Op{claimOf(0)})[0]; !errors.Is(r.Err, claims.ErrDenied) {
			t.Errorf("%s: %+v", code, r)
		}
	}
}

// TestAnswersOfTheLinearizerTravel: every outcome, with all that belongs to it.
func TestAnswersOfTheLinearizerTravel(t *testing.T) {
	l := linear(t)
	c := serveClaims(t, l)
	do := func(o claims.Outcome, op claims.Op) claims.Answer {
		t.Helper()
		r := c.Do(bg, []claims.Op{op})[0]
		if r.Err != nil || r.Answer.Outcome != o || r.Answer.Epoch != 3 {
			t.Fatalf("%s: %+v, want %s", op.Kind, r, o)
		}
		return r.Answer
	}
	kind := func(op claims.Op, k claims.Kind) claims.Op { op.Kind = k; return op }
	first := claimOf(0)
	held := do(claims.Held, first).Claim
	want := claims.Claim{
		Identity: first.Identity, Hash: first.Hash, State: claims.Claimed, ID: first.ID, Stamp: claims.Stamp{Epoch: 3, Fence: held.Stamp.Fence},
		Home: "east", ClaimedAt: time.Unix(100, 0).UnixNano(),
	}
	if held != want || held.Stamp.Fence == 0 {
		t.Errorf("%+v, want %+v", held, want)
	}
	other := changed(first, func(o *claims.Op) { o.ID = claims.ID{99} })
	blue := changed(other, func(o *claims.Op) { o.Hash = identity.Sum([]byte("blue")) })
	do(claims.Pending, other)
	do(claims.Contested, blue)
	do(claims.Moved, kind(other, claims.DoComplete))
	do(claims.Held, changed(kind(other, claims.DoTakeOver), func(o *claims.Op) { o.Expect = first.ID }))
	do(claims.Held, kind(blue, claims.DoReplace))
	do(claims.Decided, kind(blue, claims.DoComplete))
	if a := do(claims.Decided, kind(blue, claims.DoSettle)); a.Claim.State != claims.Settled || a.Claim.DurableAt == 0 {
		t.Errorf("%+v", a)
	}
	if a := do(claims.Conflict, first); a.Claim.Hash != blue.Hash {
		t.Errorf("%+v", a)
	}
	do(claims.RangeConflict, changed(claimOf(1), func(o *claims.Op) { o.Identity.SeqStart = 5 }))
	do(claims.Held, claimOf(1))
	do(claims.Released, kind(claimOf(1), claims.DoRelease))
	do(claims.Held, claimOf(2))
	listed, err := c.List(bg, identity.Batch{Agent: "a", Boot: "b", SeqEnd: 100})
	if err != nil || len(listed.Claims) != 2 || listed.Claims[0].Hash != blue.Hash || listed.Claims[1].Identity != claimOf(2).Identity || listed.Epoch != 3 {
		t.Errorf("%+v, %v", listed, err)
	}
	span := []claims.Span{{Start: 0, End: 9, Home: "east"}}
	folded := claims.Answer{Outcome: claims.Found, Epoch: 3, Spans: span}
	c = serveClaims(t, scripted(func([]claims.Op) []linearizer.Result { return []linearizer.Result{{Answer: folded}} }))
	if listed, err = c.List(bg, first.Identity); err != nil || !reflect.DeepEqual(listed.Spans, span) || len(listed.Claims) != 0 {
		t.Errorf("%+v, %v", listed, err)
	}
}

// scripted answers by a function.
type scripted func([]claims.Op) []linearizer.Result

func (s scripted) Do(_ context.Context, ops []claims.Op) []linearizer.Result { return s(ops) }

// TestRefusalsOfTheLinearizerTravel: each error reaches the caller as itself; one of several changes does not spoil others.
func TestRefusalsOfTheLinearizerTravel(t *testing.T) {
	for _, want := range []error{claims.ErrUnknown, claims.ErrEpoch, claims.ErrInvalid, claims.ErrFull, claims.ErrTooMany, claims.ErrBusy, claims.ErrCanceled, claims.ErrCorrupt, claims.ErrNewer, claims.ErrUnavailable} {
		calls := 0
		c := serveClaims(t, scripted(func(ops []claims.Op) []linearizer.Result {
			calls++
			out := make([]linearizer.Result, len(ops))
			for i, op := range ops {
				if out[i].Answer = (claims.Answer{Outcome: claims.Released, Epoch: 3}); op.Identity.SeqStart == 0 {
					out[i] = linearizer.Result{Err: fmt.Errorf("%w: why", want)}
				}
			}
			return out
		}))
		r := c.Do(bg, []claims.Op{claimOf(0), claimOf(1)})
		var e *claims.Error
		if !errors.Is(r[0].Err, want) || !errors.As(r[0].Err, &e) || e.Key != claimOf(0).Identity {
			t.Errorf("%v: %v", want, r[0].Err)
		}
		if r[1].Err != nil || r[1].Answer.Outcome != claims.Released {
			t.Errorf("%v: the other one: %+v", want, r[1])
		}
		// What may pass by itself is tried again.
		again := errors.Is(want, claims.ErrUnknown) || errors.Is(want, claims.ErrUnavailable) || errors.Is(want, claims.ErrBusy)
		if (calls > 1) != again {
			t.Errorf("%v: %d calls", want, calls)
		}
		_, err := c.List(bg, claimOf(0).Identity)
		if !errors.Is(err, want) {
			t.Errorf("%v: list: %v", want, err)
		}
	}
	c := serveClaims(t, scripted(func([]claims.Op) []linearizer.Result { return []linearizer.Result{{Err: errors.New("anything")}} }))
	if r := c.Do(bg, []claims.Op{claimOf(0)}); !errors.Is(r[0].Err, claims.ErrUnknown) {
		t.Errorf("an error without a name: %v", r[0].Err)
	}
}

// TestWrongAnswersAreNotBelieved: nothing may be acknowledged by an answer to something else.
func TestWrongAnswersAreNotBelieved(t *testing.T) {
	op := claimOf(0)
	right := claims.Claim{Identity: op.Identity, Hash: op.Hash, State: claims.Claimed, ID: op.ID, Stamp: claims.Stamp{Epoch: 3, Fence: 1}, Home: "east"}
	with := func(o claims.Outcome, change func(*claims.Claim)) claims.Answer {
		c := right
		change(&c)
		return claims.Answer{Outcome: o, Epoch: 3, Claim: c}
	}
	blue := func(c *claims.Claim) { c.Hash = identity.Sum([]byte("blue")) }
	elsewhere := func(c *claims.Claim) { c.Identity.SeqEnd++ }
	far := func(c *claims.Claim) { c.Identity.SeqStart, c.Identity.SeqEnd = 50, 60 }
	for name, a := range map[string]claims.Answer{
		"held, another hash": with(claims.Held, blue), "held, another identity": with(claims.Held, elsewhere), "held, another id": with(claims.Held, func(c *claims.Claim) { c.ID[0]++ }),
		"held, another home": with(claims.Held, func(c *claims.Claim) { c.Home = "west" }), "held, durable": with(claims.Held, func(c *claims.Claim) { c.State = claims.Durable }),
		"held, no fence": with(claims.Held, func(c *claims.Claim) { c.Stamp.Fence = 0 }), "held, nothing": {Outcome: claims.Held, Epoch: 3},
		"held, recovered, no id": with(claims.Held, func(c *claims.Claim) { c.ID, c.Recovered = claims.ID{}, true }),
		"decided, another hash":  with(claims.Decided, blue), "pending, another identity": with(claims.Pending, elsewhere),
		"conflict with itself": with(claims.Conflict, func(*claims.Claim) {}), "conflict with another identity": with(claims.Conflict, func(c *claims.Claim) { blue(c); elsewhere(c) }),
		"range conflict with itself": with(claims.RangeConflict, func(*claims.Claim) {}), "range conflict far away": with(claims.RangeConflict, far),
		"folded": {Outcome: claims.Folded, Epoch: 3}, "no outcome": {Epoch: 3}, "the outcome of a fold": {Outcome: claims.Applied, Epoch: 3},
	} {
		c := serveClaims(t, scripted(func([]claims.Op) []linearizer.Result { return []linearizer.Result{{Answer: a}} }))
		if r := c.Do(bg, []claims.Op{op}); !errors.Is(r[0].Err, claims.ErrUnknown) {
			t.Errorf("%s: %+v", name, r[0])
		}
	}
}

func TestChangesThatAreNone(t *testing.T) {
	c := serveClaims(t, scripted(func(ops []claims.Op) []linearizer.Result {
		t.Errorf("%d operations", len(ops))
		return make([]linearizer.Result, len(ops))
	}))
	for name, op := range map[string]claims.Op{
		"nothing": {}, "a fold": {Kind: claims.DoFold, Identity: claimOf(0).Identity}, "a lookup": {Kind: claims.DoLookup, Identity: claimOf(0).Identity},
		"no region":                changed(claimOf(0), func(o *claims.Op) { o.Region = "" }),
		"a release of no region's": changed(claimOf(0), func(o *claims.Op) { o.Kind, o.Epoch, o.Region = claims.DoRelease, 3, "EU!" }),
	} {
		if r := c.Do(bg, []claims.Op{op}); !errors.Is(r[0].Err, claims.ErrInvalid) {
			t.Errorf("%s: %+v", name, r[0])
		}
	}
	if _, err := c.List(bg, identity.Batch{Agent: "a", Boot: "b", SeqStart: 2, SeqEnd: 1}); !errors.Is(err, claims.ErrInvalid) {
		t.Errorf("a backward range: %v", err)
	}
	raw := coordinatorv1.NewIdentityServiceClient(serve(t, coordinator.NewIdentityServer(nil, time.Now).Register))
	for _, n := range []int{0, coordinator.MaxChanges + 1} {
		_, err := raw.ChangeClaims(bg, &coordinatorv1.ChangeClaimsRequest{Changes: make([]*coordinatorv1.ClaimRequest, n)})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d changes: %v", n, err)
		}
	}
	resp, err := raw.ChangeClaims(bg, &coordinatorv1.ChangeClaimsRequest{Changes: []*coordinatorv1.ClaimRequest{{}, {Change: 99},
		{Change: 1, FrameSha256: []byte{1}}, {Change: 1, FrameSha256: make([]byte, 32), ClaimId: []byte{1}}, {Change: 1, FrameSha256: make([]byte, 32), ExpectClaimId: []byte{1}}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range resp.GetResults() {
		if r.GetReason() != "CLAIMS_INVALID" {
			t.Errorf("change %d: %+v", i, r)
		}
	}
}

// A region that takes no part is told apart from an operation that can't be one, and is one to whoever does not tell them apart.
func TestARegionThatTakesNoPart(t *testing.T) {
	c := serveClaims(t, linear(t))
	r := c.Do(bg, []claims.Op{changed(claimOf(0), func(o *claims.Op) { o.Region = "mars" })})[0]
	if !errors.Is(r.Err, claims.ErrNoMember) || !errors.Is(r.Err, claims.ErrInvalid) || !strings.Contains(r.Err.Error(), `"mars" is none of the regions of epoch`) {
		t.Error(r.Err)
	}
	if r := c.Do(bg, []claims.Op{changed(claimOf(0), func(o *claims.Op) { o.Region = "" })})[0]; errors.Is(r.Err, claims.ErrNoMember) {
		t.Error(r.Err)
	}
}

// TestChangesShareCalls: while calls are under way, changes of all callers gather.
func TestChangesShareCalls(t *testing.T) {
	var mu sync.Mutex
	var sizes []int
	may := make(chan struct{})
	c := serveClaims(t, scripted(func(ops []claims.Op) []linearizer.Result {
		mu.Lock()
		sizes = append(sizes, len(ops))
		mu.Unlock()
		<-may
		out := make([]linearizer.Result, len(ops))
		for i := range ops {
			out[i].Answer = claims.Answer{Outcome: claims.Released, Epoch: ops[i].Identity.SeqStart}
		}
		return out
	}))
	const callers = 200
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			if r := c.Do(bg, []claims.Op{claimOf(n)}); r[0].Err != nil || r[0].Answer.Epoch != uint64(10*n) {
				t.Errorf("caller %d: %+v", n, r)
			}
		})
	}
	started := func() int { mu.Lock(); defer mu.Unlock(); return len(sizes) }
	for end := time.Now().Add(time.Minute); started() < 4; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no four calls")
		}
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if r := c.Do(ctx, []claims.Op{claimOf(500)}); !errors.Is(r[0].Err, claims.ErrCanceled) {
		t.Errorf("left before it was sent: %v", r[0].Err)
	}
	close(may)
	wg.Wait()
	total := 0
	for _, n := range sizes {
		total += n
	}
	if total != callers || len(sizes) > callers/2 {
		t.Errorf("%d changes in %d calls", total, len(sizes))
	}
}

// TestAServerThatIsGone: nothing is known of a change that was sent.
func TestAServerThatIsGone(t *testing.T) {
	c := serveClaims(t, scripted(nil), grpc.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return nil, status.Error(codes.Unavailable, "gone")
	}))
	if r := c.Do(bg, []claims.Op{claimOf(0)}); !errors.Is(r[0].Err, claims.ErrUnknown) {
		t.Errorf("%v", r[0].Err)
	}
	if _, err := c.List(bg, claimOf(0).Identity); !errors.Is(err, claims.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}
