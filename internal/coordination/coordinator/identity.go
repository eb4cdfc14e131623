package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// Bounds of the calls of Claims: while so many are under way, changes gather.
const (
	maxClaimCalls   = 4
	maxClaimWaiting = 16384
)

// claimAttempts bounds the attempts at one call. Every change may be repeated: it has an id, by which the linearizer knows
// it again. A second attempt goes to another coordinator where the first one's connection broke.
var claimAttempts = retry.Policy{Attempts: 3, Base: 20 * time.Millisecond, Cap: 200 * time.Millisecond}

// Claims is the identity linearizer that the coordinators serve. Changes of many callers share calls. It is safe for
// concurrent use.
type Claims struct {
	client coordinatorv1.IdentityServiceClient
	service
	retrier retry.Retrier

	mu      sync.Mutex
	waiting []*claimChange
	calls   int
}

var _ Claimer = (*Claims)(nil)

// claimChange is an operation that waits for its result.
type claimChange struct {
	op     claims.Op
	result linearizer.Result
	left   bool // its caller has left; set under the lock
	taken  bool // it was sent; set under the lock
	done   chan struct{}
}

// NewClaims makes a client over conn, which stays the caller's; timeout bounds one attempt, and 0 is DefaultTimeout.
func NewClaims(conn grpc.ClientConnInterface, timeout time.Duration) *Claims {
	s := newService(timeout, claims.ErrInvalid, claims.ErrUnavailable, func(op, key string, err error) error {
		return fmt.Errorf("%s %s: %w", op, key, err)
	})
	// To try again does not mend credentials.
	s.denied = claims.ErrDenied
	return &Claims{
		client: coordinatorv1.NewIdentityServiceClient(conn), service: s,
		retrier: retry.Retrier{Policy: claimAttempts, Clock: run.WallClock{}, Jitter: rand.Float64},
	}
}

// Do makes changes and gives their results in the same order; DoLookup and DoFold are none. Errors are those of package
// claims. When ctx ends, what was not sent is not done, and of the rest the outcome is unknown.
func (c *Claims) Do(ctx context.Context, ops []claims.Op) []linearizer.Result {
	out, mine := make([]linearizer.Result, len(ops)), make([]*claimChange, len(ops))
	c.mu.Lock()
	for i, op := range ops {
		err := op.Validate()
		if _, known := claimChangesOf[op.Kind]; err == nil && !known {
			err = fmt.Errorf("%w: %s is not a change", claims.ErrInvalid, op.Kind)
		}
		if err == nil && len(c.waiting) >= maxClaimWaiting {
			err = claims.ErrFull
		}
		if err != nil {
			out[i].Err = &claims.Error{Op: op.Kind, Key: op.Identity, Err: err}
			continue
		}
		mine[i] = &claimChange{op: op, done: make(chan struct{})}
		c.waiting = append(c.waiting, mine[i])
	}
	c.pump()
	c.mu.Unlock()
	for i, m := range mine {
		if m != nil {
			out[i] = c.await(ctx, m)
		}
	}
	return out
}

// await waits for the result of a change.
func (c *Claims) await(ctx context.Context, m *claimChange) linearizer.Result {
	select {
	case <-m.done:
		return m.result
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m.left = true
	err := fmt.Errorf("%w: %w", claims.ErrUnknown, ctx.Err())
	if !m.taken {
		err = fmt.Errorf("%w: %w", claims.ErrCanceled, ctx.Err())
	}
	return linearizer.Result{Err: &claims.Error{Op: m.op.Kind, Key: m.op.Identity, Err: err}}
}

// pump sends what waits, as far as calls may be under way; the caller holds the lock.
func (c *Claims) pump() {
	for c.calls < maxClaimCalls && len(c.waiting) > 0 {
		var batch []*claimChange
		for len(c.waiting) > 0 && len(batch) < MaxChanges {
			if m := c.waiting[0]; !m.left {
				m.taken = true
				batch = append(batch, m)
			}
			c.waiting = c.waiting[1:]
		}
		if len(batch) == 0 {
			continue
		}
		c.calls++
		go c.send(batch)
	}
}

func (c *Claims) send(batch []*claimChange) {
	c.try(batch)
	for _, m := range batch {
		close(m.done)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
	c.pump()
}

// try sends changes until each has an answer, or attempts are spent. Only what has none is sent again.
func (c *Claims) try(batch []*claimChange) {
	todo := batch
	// Bounded by the attempts, each with its timeout. Callers that leave do not end it for others.
	_ = c.retrier.Do(context.Background(), func(ctx context.Context) error {
		results, err := c.ask(ctx, todo)
		var again []*claimChange
		var last error
		for i, m := range todo {
			if err != nil {
				m.result = linearizer.Result{Err: &claims.Error{Op: m.op.Kind, Key: m.op.Identity, Err: err}}
			} else {
				m.result = results[i]
			}
			if errors.Is(m.result.Err, claims.ErrUnknown) || errors.Is(m.result.Err, claims.ErrUnavailable) || errors.Is(m.result.Err, claims.ErrBusy) {
				again, last = append(again, m), m.result.Err
			}
		}
		todo = again
		return last
	}, func(error) bool { return true })
}

// ask makes one call.
func (c *Claims) ask(ctx context.Context, batch []*claimChange) ([]linearizer.Result, error) {
	req := &coordinatorv1.ChangeClaimsRequest{}
	for _, m := range batch {
		req.Changes = append(req.Changes, encodeOp(m.op))
	}
	resp, err := call(ctx, c.service, "change claims", batch[0].op.Identity.String(), claims.ErrUnknown, c.client.ChangeClaims, req)
	if err != nil {
		return nil, err
	}
	if len(resp.GetResults()) != len(batch) {
		return nil, fmt.Errorf("%w: %d results of %d changes", claims.ErrUnknown, len(resp.GetResults()), len(batch))
	}
	out := make([]linearizer.Result, len(batch))
	for i, r := range resp.GetResults() {
		if out[i], err = decodeResult(r); err == nil && out[i].Err == nil {
			err = answers(batch[i].op, out[i].Answer)
		}
		if err != nil {
			out[i].Err = fmt.Errorf("%w: %w", claims.ErrUnknown, err)
		}
		if out[i].Err != nil {
			out[i].Err = &claims.Error{Op: batch[i].op.Kind, Key: batch[i].op.Identity, Err: out[i].Err}
		}
	}
	return out, nil
}

// answers refuses an answer that can't be one to the operation: nothing may be acknowledged by it.
func answers(op claims.Op, a claims.Answer) error {
	c := a.Claim
	switch {
	case a.Outcome == claims.Held && (c.Identity != op.Identity || c.Hash != op.Hash || c.ID != op.ID && !shares(op, c) || c.Home != op.Region || c.State != claims.Claimed || c.Stamp.Fence == 0):
		return fmt.Errorf("%s names another claim: %s", a.Outcome, c.Identity)
	case (a.Outcome == claims.Decided || a.Outcome == claims.Pending) && (c.Identity != op.Identity || c.Hash != op.Hash):
		return fmt.Errorf("%s names another claim: %s", a.Outcome, c.Identity)
	case a.Outcome == claims.Conflict && (c.Identity != op.Identity || c.Hash == op.Hash):
		return fmt.Errorf("%s names the claim itself: %s", a.Outcome, c.Identity)
	case a.Outcome == claims.RangeConflict && (c.Identity == op.Identity || !c.Identity.Intersects(op.Identity)):
		return fmt.Errorf("%s names %s", a.Outcome, c.Identity)
	}
	return nil
}

// shares: the calls of a claim's home go on under the id that is there, where nobody may take it over.
func shares(op claims.Op, c claims.Claim) bool {
	return op.Kind == claims.DoClaim && c.Recovered && !c.ID.IsZero()
}

// decodeResult reads the end of a change.
func decodeResult(r *coordinatorv1.ClaimResult) (linearizer.Result, error) {
	if reason := r.GetReason(); reason != "" {
		sentinel := sentinelOf(reason)
		if sentinel == nil {
			return linearizer.Result{}, fmt.Errorf("reason %q: %s", reason, r.GetMessage())
		}
		return linearizer.Result{Err: fmt.Errorf("%w: %s", sentinel, r.GetMessage())}, nil
	}
	o, known := claimOutcomesOf[r.GetOutcome()]
	if !known {
		return linearizer.Result{}, fmt.Errorf("outcome %s", r.GetOutcome())
	}
	c, err := decodeIdentityClaim(r.GetClaim())
	return linearizer.Result{Answer: claims.Answer{Outcome: o, Epoch: r.GetEpoch(), Claim: c}}, err
}

// List reads what meets a range of sequence numbers of a boot.
func (c *Claims) List(ctx context.Context, id identity.Batch) (claims.Answer, error) {
	resp, err := call(ctx, c.service, "list claims", id.String(), claims.ErrUnavailable, c.client.ListClaims,
		&coordinatorv1.ListClaimsRequest{AgentId: id.Agent, BootId: id.Boot, SeqStart: id.SeqStart, SeqEnd: id.SeqEnd})
	if err != nil {
		return claims.Answer{}, err
	}
	a := claims.Answer{Outcome: claims.Found, Epoch: resp.GetEpoch(), Spans: decodeSpans(resp.GetSpans())}
	for _, p := range resp.GetClaims() {
		one, err := decodeIdentityClaim(p)
		if err != nil {
			return claims.Answer{}, fmt.Errorf("list claims %s: %w: %w", id, claims.ErrUnavailable, err)
		}
		a.Claims = append(a.Claims, one)
	}
	return a, nil
}

// Scan reads a page of the claims that have been in their state for longer than an age, by the coordinator's clock: it
// fills in Before of the scan. Errors wrap claims.ErrInvalid, ErrEpoch, ErrFull or ErrUnavailable.
func (c *Claims) Scan(ctx context.Context, s claims.Scan, olderThan time.Duration) (claims.Page, error) {
	if s.Limit < 1 || s.Limit > claims.MaxScan || olderThan < 0 {
		return claims.Page{}, fmt.Errorf("scan claims: %w: a page of %d claims older than %s, not 1 to %d", claims.ErrInvalid, s.Limit, olderThan, claims.MaxScan)
	}
	req := &coordinatorv1.ScanClaimsRequest{
		Region: string(s.Home), PageToken: s.After, PageSize: uint32(s.Limit),
		OlderThanNs: uint64(olderThan),
	}
	for _, st := range s.States {
		req.States = append(req.States, coordinatorv1.ClaimState(st))
	}
	resp, err := call(ctx, c.service, "scan claims", string(s.Home), claims.ErrUnavailable, c.client.ScanClaims, req)
	if err != nil {
		return claims.Page{}, err
	}
	p := claims.Page{Next: resp.GetNextPageToken(), Read: int(resp.GetRead()), Unreadable: int(resp.GetUnreadable()), Epoch: resp.GetEpoch()}
	for _, one := range resp.GetClaims() {
		got, err := decodeIdentityClaim(one)
		if err == nil && (got.State == 0 || got.Stamp.Epoch == 0 || got.Stamp.Fence == 0 || got.Hash.IsZero() || got.ID.IsZero() || got.Home.Validate() != nil) {
			err = fmt.Errorf("claim %s is not whole", got.Identity)
		}
		if err != nil {
			return claims.Page{}, fmt.Errorf("scan claims %s: %w: %w", s.Home, claims.ErrUnavailable, err)
		}
		p.Claims = append(p.Claims, got)
	}
	return p, nil
}
