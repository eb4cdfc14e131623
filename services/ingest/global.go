package ingest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// CoordinatorConfig is for acceptance global.
type CoordinatorConfig struct {
	Addresses []string         `koanf:"addresses" help:"gRPC addresses of coordinators that decide identities, host:port; the next one is tried when one fails" check:"address"`
	Client    rpc.ClientConfig `koanf:"client" needs:"addresses"`
	Timeout   time.Duration    `koanf:"timeout" help:"one attempt at a call; a batch waits twice as long for an answer, with all attempts"`
}

// validateGlobal checks the settings of several regions.
func (c Config) validateGlobal() error {
	if accept.Mode(c.Acceptance) != accept.ModeGlobal {
		return nil
	}
	var errs []error
	if c.Region == "" {
		errs = append(errs, errors.New("acceptance global needs region"))
	} else if err := claims.Region(c.Region).Validate(); err != nil {
		errs = append(errs, fmt.Errorf("region: %w", err))
	}
	if len(c.Coordinator.Addresses) == 0 {
		errs = append(errs, errors.New("acceptance global needs coordinator.addresses"))
	}
	if c.Coordinator.Timeout <= 0 {
		errs = append(errs, errors.New("coordinator.timeout must be positive"))
	}
	// Without any wait two regions would take a claim from each other for as long as both work on it.
	if c.TakeOver <= 0 {
		errs = append(errs, errors.New("take_over must be positive"))
	}
	return errors.Join(errs...)
}

// Bounds of the settling of claims.
const (
	// settleQueue bounds the batches that are answered and not settled. Beyond it they are left to the reconciler.
	settleQueue = 16384
	// settleEvery is how long a batch waits for others, so that they share a call and a transaction.
	settleEvery = 500 * time.Millisecond
	// settleLast bounds the settling of a collector that ends: a call that hangs takes half a minute with all its attempts.
	settleLast = 5 * time.Second
)

// changeAttempts is how many attempts a change may take, each bounded by the settings: a coordinator that hangs is no reason to send
// senders away, where another one answers.
const changeAttempts = 2

// lookTimeout bounds a look at what the linearizer has of a range, for answers that can do without.
const lookTimeout = 3 * time.Second

// decider is the identity linearizer: coordinator.Claims.
type decider interface {
	Do(context.Context, []claims.Op) []linearizer.Result
	// List gives what meets a range of sequence numbers of a boot.
	List(context.Context, identity.Batch) (claims.Answer, error)
	// Scan reads a page of claims.
	Scan(ctx context.Context, s claims.Scan, olderThan time.Duration) (claims.Page, error)
}

// claimer is the identity linearizer as acceptance needs it, for one region.
type claimer struct {
	do     decider
	region claims.Region
	// timeout bounds one attempt. A sender that waits for longer than a few is better told to try again.
	timeout time.Duration
	now     func() time.Time
	m       *globalMetrics
	settles chan claims.Op
	breaker breaker
	// last is the error of the last call without an answer.
	last atomic.Pointer[error]
}

var _ accept.Claims = (*claimer)(nil)

// dialClaims connects to the coordinators; the caller closes the connection.
func dialClaims(c Config, now func() time.Time, m *globalMetrics) (*claimer, *grpc.ClientConn, error) {
	conn, err := coordinator.Dial(coordinator.Config{Addresses: c.Coordinator.Addresses, Client: c.Coordinator.Client})
	if err != nil {
		return nil, nil, err
	}
	return newClaimer(coordinator.NewClaims(conn, c.Coordinator.Timeout), claims.Region(c.Region), c.Coordinator.Timeout, now, m), conn, nil
}

func newClaimer(do decider, region claims.Region, timeout time.Duration, now func() time.Time, m *globalMetrics) *claimer {
	return &claimer{do: do, region: region, timeout: timeout, now: now, m: m, settles: make(chan claims.Op, settleQueue)}
}

var kinds = map[accept.ClaimStep]claims.Kind{
	accept.TakeClaim: claims.DoClaim, accept.TakeClaimOver: claims.DoTakeOver, accept.CompleteClaim: claims.DoComplete,
	accept.ReplaceClaim: claims.DoReplace, accept.SettleClaim: claims.DoSettle,
}

var outcomes = map[claims.Outcome]accept.ClaimOutcome{
	claims.Held: accept.ClaimHeld, claims.Pending: accept.ClaimPending, claims.Decided: accept.ClaimDecided, claims.Conflict: accept.ClaimConflict,
	claims.RangeConflict: accept.ClaimRangeConflict, claims.Contested: accept.ClaimContested, claims.Moved: accept.ClaimMoved,
}

func (l *claimer) op(c accept.ClaimChange) claims.Op {
	return claims.Op{
		Kind: kinds[c.Step], Identity: c.Identity, Hash: c.Hash, ID: claims.ID(c.ID), Expect: claims.ID(c.Expect),
		Region: l.region, Epoch: c.Epoch, At: max(l.now().UnixNano(), 0),
	}
}

// Change implements accept.Claims.
func (l *claimer) Change(ctx context.Context, c accept.ClaimChange) (accept.ClaimAnswer, error) {
	op := l.op(c)
	began := l.now()
	p, ok := l.breaker.ask(began)
	if !ok {
		l.m.changes.WithLabelValues(op.Kind.String(), "not_asked").Inc()
		return accept.ClaimAnswer{}, l.unreachable()
	}
	r := l.one(ctx, p, op)
	l.m.took.Observe(l.now().Sub(began).Seconds())
	if r.Err != nil {
		l.m.changes.WithLabelValues(op.Kind.String(), "failed").Inc()
		return accept.ClaimAnswer{}, asDenied(r.Err)
	}
	l.m.changes.WithLabelValues(op.Kind.String(), r.Answer.Outcome.String()).Inc()
	o, known := outcomes[r.Answer.Outcome]
	if !known {
		return accept.ClaimAnswer{}, fmt.Errorf("%s %s: the linearizer answered %s", op.Kind, op.Identity, r.Answer.Outcome)
	}
	t := r.Answer.Claim
	return accept.ClaimAnswer{Outcome: o, Claim: accept.Claim{
		Identity: t.Identity, Hash: t.Hash, ID: accept.ClaimID(t.ID), Home: string(t.Home), Stamp: t.Stamp,
		Settled: t.State == claims.Settled, Fixed: t.Recovered, Bound: t.Bound,
	}}, nil
}

// one makes a change, and tells the breaker how it ended.
func (l *claimer) one(ctx context.Context, p permit, op claims.Op) (r linearizer.Result) {
	// A probe that is never ended would keep all others from asking.
	end := func(p permit) { l.breaker.left(p, l.now()) }
	defer func() { end(p) }()
	bounded, cancel := context.WithTimeout(ctx, changeAttempts*l.timeout)
	defer cancel()
	began := l.now()
	r = l.do.Do(bounded, []claims.Op{op})[0]
	switch {
	case r.Err == nil:
		end = l.breaker.answered
	case errors.Is(ctx.Err(), context.Canceled), errors.Is(r.Err, claims.ErrFull), errors.Is(r.Err, claims.ErrCanceled):
		// Whoever asked has left; or calls of this collector wait for each other, and it was never sent.
	case ctx.Err() != nil && l.now().Sub(began) < l.timeout:
		// The batch's time was over before the linearizer had that of one attempt: another step had taken it.
	case bounded.Err() != nil, errors.Is(r.Err, claims.ErrUnavailable), errors.Is(r.Err, claims.ErrUnknown):
		l.last.Store(&r.Err)
		end = func(p permit) { l.breaker.failed(p, l.now()) }
	default: // it refused this change
		end = l.breaker.answered
	}
	return r
}

// asDenied is err, as accept.ErrClaimDenied where the linearizer refuses this collector whatever it asks for.
func asDenied(err error) error {
	refusals := []error{claims.ErrDenied, claims.ErrNoMember, claims.ErrDissolved}
	if slices.ContainsFunc(refusals, func(r error) bool { return errors.Is(err, r) }) {
		return fmt.Errorf("%w: %w", accept.ErrClaimDenied, err)
	}
	return err
}

// probeIdentity is that of a claim which is never made.
var probeIdentity = identity.Batch{Agent: "lightmetrics-ingest", Boot: "probe"}

// permitted is an error, which wraps accept.ErrClaimDenied, if the linearizer refuses this collector, or that it acts for its region, or if
// the region takes no part, or it was dissolved. A linearizer that does not answer says nothing about that.
func (l *claimer) permitted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	p, err := l.do.Scan(ctx, claims.Scan{Home: l.region, States: []claims.State{claims.Claimed}, Limit: 1}, 0)
	if err == nil {
		// Only changes tell whether the region takes part. Nobody has this claim, so nothing is changed.
		op := claims.Op{Kind: claims.DoComplete, Identity: probeIdentity, Hash: identity.Sum(nil), Region: l.region, Epoch: p.Epoch, At: max(l.now().UnixNano(), 0)}
		_, _ = rand.Read(op.ID[:]) // it never fails
		err = l.do.Do(ctx, []claims.Op{op})[0].Err
		if of := (*claims.Error)(nil); errors.As(err, &of) {
			err = of.Err // which identity it was about tells nobody anything
		}
	}
	l.m.denied.Set(0)
	if err = asDenied(err); errors.Is(err, accept.ErrClaimDenied) {
		l.m.denied.Set(1)
		return err
	}
	return nil
}

// reachable is nil where it is worth asking the linearizer.
func (l *claimer) reachable() error {
	if l.breaker.allows(l.now()) {
		return nil
	}
	return l.unreachable()
}

// unreachable is the error of what is not asked.
func (l *claimer) unreachable() error {
	err := fmt.Errorf("%w: it left %d calls in a row without an answer, so one at a time is made until it gives one", claims.ErrUnavailable, breakerFailures)
	if last := l.last.Load(); last != nil {
		err = fmt.Errorf("%w; the last: %v", err, *last)
	}
	return err
}

// list gives what meets a range of sequence numbers of a boot, soon or not at all.
func (l *claimer) list(ctx context.Context, id identity.Batch) (claims.Answer, error) {
	// It is no probe, and its end says nothing of changes: what is folded may be unreadable while claims are answered.
	if l.breaker.open() {
		return claims.Answer{}, l.unreachable()
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return l.do.List(ctx, id)
}

// Settle implements accept.Claims.
func (l *claimer) Settle(c accept.ClaimChange) {
	select {
	case l.settles <- l.op(c):
	default:
		l.m.settles.WithLabelValues("dropped").Inc()
	}
}

// settle settles what was answered, many at a time, until ctx ends; then what is left, for settleLast at most.
func (l *claimer) settle(ctx context.Context) error {
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(settleLast, cancel) })()
	for {
		select {
		case op := <-l.settles:
			timer := time.NewTimer(settleEvery)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
			// All that waits by now: one call each time would settle no more than a call's batches in each settleEvery.
			ops := []claims.Op{op}
			for n := len(l.settles) + len(ops); n > 0; n -= coordinator.MaxChanges {
				l.settleSome(last, ops)
				ops = nil
			}
		case <-ctx.Done():
			for len(l.settles) > 0 {
				l.settleSome(last, nil)
			}
			return nil
		}
	}
}

// settleSome settles what waits, as far as it fits into one call.
func (l *claimer) settleSome(ctx context.Context, ops []claims.Op) {
	for len(l.settles) > 0 && len(ops) < coordinator.MaxChanges {
		ops = append(ops, <-l.settles)
	}
	// The collector has ended, and no coordinator answers.
	if ctx.Err() != nil {
		l.m.settles.WithLabelValues("dropped").Add(float64(len(ops)))
		return
	}
	// Attempts and their deadlines are the client's. What fails is left to the reconciler, which finds what is durable for a while.
	for _, r := range l.do.Do(ctx, ops) {
		outcome := "settled"
		switch {
		case r.Err != nil:
			outcome = "failed"
		case r.Answer.Outcome != claims.Decided:
			outcome = "moved"
		}
		l.m.settles.WithLabelValues(outcome).Inc()
	}
}
