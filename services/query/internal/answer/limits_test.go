package answer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/query/internal/blocks"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
)

var limitsNow = time.Date(2026, 11, 21, 9, 20, 0, 0, time.UTC)

// small is an evaluator over series of one agent in memory, each with a sample every step to now.
func small(t *testing.T, count, samples int, step time.Duration, change func(*Limits)) *Evaluator {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	now := func() time.Time { return limitsNow }
	store, log, reg := mem.New(now), telemetry.Discard().Log, prometheus.NewRegistry()
	const history = 2 * time.Hour
	ls, err := live.New(live.Config{History: history, MaxBytes: 1 << 30, MaxSeries: 1 << 20})
	must(err)
	keeper, err := blocks.New(blocks.DefaultConfig(), blocks.Deps{Store: store, Window: history, Log: log, Registry: reg, Now: now})
	must(err)
	_, err = store.Put(t.Context(), layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "test"}.Marshal(), objstore.PutOptions{})
	must(err)
	must(journaltest.Complete(t.Context(), store, "test"))
	f, err := follow.New(follow.DefaultConfig(), follow.Deps{Store: store, Live: ls, History: history, Blocks: keeper, Log: log, Registry: reg, Now: now})
	must(err)
	b := frame.NewBuilder()
	for s := range count {
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "x"}, {Name: "s", Value: fmt.Sprint(s)}}, series.Gauge, "", 0)
		must(err)
		for i := range samples {
			must(b.Append(id, limitsNow.Add(-time.Duration(samples-i)*step).UnixNano(), float64(i*7919%samples)))
		}
	}
	f1, err := b.Build(identity.Boot{Agent: "a", Boot: "b"}, 1)
	must(err)
	raw, err := frame.Encode(nil, f1)
	must(err)
	own := &frame.Batch{}
	must(frame.Decode(raw, own, frame.Limits{}))
	_, err = ls.Insert(accepted.Batch{Identity: own.Identity, FrameSHA256: identity.Sum(raw), AcceptedAt: 1}, own, limitsNow)
	must(err)
	l := DefaultLimits()
	if change != nil {
		change(&l)
	}
	must(l.Validate())
	e := New(Config{Limits: l, Lookback: 5 * time.Minute, StaleAfter: time.Minute}, Deps{Live: ls, Follower: f, Blocks: keeper, Log: log, Registry: reg, Now: now})
	t.Cleanup(func() { must(e.Close()) })
	return e
}

// overRange opens a session and evaluates over the last hour.
func overRange(ctx context.Context, e *Evaluator, expr string, step time.Duration) error {
	s, err := e.Open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.Range(ctx, expr, limitsNow.Add(-time.Hour), limitsNow, step, Options{})
	return err
}

// TestQueueIsBounded: so many queries wait, the next is refused at once and told why; who
// waits gets its turn.
func TestQueueIsBounded(t *testing.T) {
	e := small(t, 1, 1, time.Second, func(l *Limits) { l.Concurrency, l.Queue, l.QueueWait = 1, 2, time.Minute })
	first, err := e.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			s, err := e.Open(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	for e.queued.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	var busy *BusyError
	if _, err := e.Open(t.Context()); !errors.As(err, &busy) || !busy.Full || err.Error() != "limits.queue of 2 queries wait to run" {
		t.Errorf("the third to wait: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	first.Close()
	first.Close() // gives back nothing twice
	wg.Wait()
	if n := e.queued.Load(); n != 0 {
		t.Errorf("%d wait", n)
	}
	if !e.slots.TryAcquire(1) || e.slots.TryAcquire(1) {
		t.Error("there is not one slot")
	}
	if _, err := e.Open(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestMemoryIsShared: a query that others leave too little memory is told to come again, and
// afterwards everything is given back.
func TestMemoryIsShared(t *testing.T) {
	e := small(t, 200, 100, time.Second, func(l *Limits) { l.Memory = 16 << 20 })
	const expr = `{__name__="x"} + 1`
	var full *MemoryError
	if err := overRange(t.Context(), e, expr, time.Minute); err != nil {
		t.Errorf("alone: %v", err)
	}
	other := e.Reserve()
	if err := other.Grow(16<<20 - 1000); err != nil {
		t.Fatal(err)
	}
	if err := overRange(t.Context(), e, expr, time.Minute); !errors.As(err, &full) {
		t.Errorf("beside another: %v", err)
	}
	other.Release()
	other.Release()
	if err := overRange(t.Context(), e, expr, time.Minute); err != nil {
		t.Errorf("when the other is done: %v", err)
	}
	if n := e.memory.inUse(); n != 0 {
		t.Errorf("%d bytes are still reserved", n)
	}
}

// TestSamplesAreReserved: the engine's own samples count, while it reads them; a query that
// alone takes more than there is names the limit.
func TestSamplesAreReserved(t *testing.T) {
	e := small(t, 100, 7000, 500*time.Millisecond, func(l *Limits) { l.Memory = 4 << 20 })
	var limit *promstore.LimitError
	if err := overRange(t.Context(), e, `x`, 500*time.Millisecond); !errors.As(err, &limit) || limit.Limit != "limits.memory" {
		t.Errorf("700,000 points in 4 MiB: %v", err)
	}
	if err := overRange(t.Context(), e, `sum(x)`, time.Minute); err != nil {
		t.Errorf("a small answer of the same series: %v", err)
	}
	if n := e.memory.inUse(); n != 0 {
		t.Errorf("%d bytes are still reserved", n)
	}
}

// TestStepsAreReserved: what the engine makes of a series is reserved for the steps of the query, however small they are
// beside the range that the first of them reads.
func TestStepsAreReserved(t *testing.T) {
	e := small(t, 8, 100, time.Second, func(l *Limits) { l.Memory = 8 << 20 })
	s, err := e.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Range(t.Context(), `sum(count_over_time(x[1h50m]))`, limitsNow, limitsNow, time.Millisecond, Options{}); err != nil {
		t.Errorf("one step: %v", err)
	}
}

// TestASeriesIsInterrupted: a function over a long range of one series, at thousands of
// times, ends with its time although the engine checks its context once a series. Else
// this takes minutes.
func TestASeriesIsInterrupted(t *testing.T) {
	e := small(t, 1, 360_000, 10*time.Millisecond, nil)
	for name, ctx := range map[string]func() (context.Context, context.CancelFunc){
		"timeout": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 300*time.Millisecond)
		},
		"cancel": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(300*time.Millisecond, cancel)
			return ctx, cancel
		},
	} {
		c, cancel := ctx()
		err := overRange(c, e, `quantile_over_time(0.5, x[55m])`, 400*time.Millisecond)
		cancel()
		var late promql.ErrQueryTimeout
		if !errors.As(err, &late) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReservations: the budget is never exceeded, and nothing overflows it.
func TestReservations(t *testing.T) {
	b := &budget{max: 100}
	r, o := &Reservation{b: b}, &Reservation{b: b}
	var limit *promstore.LimitError
	var full *MemoryError
	for _, c := range []struct {
		r     *Reservation
		bytes int64
		as    any
	}{{r, 60, nil}, {o, 40, nil}, {o, 1, &full}, {r, 41, &limit}, {r, 40, &full}, {r, math.MaxInt64, &limit}, {o, 0, nil}} {
		if err := c.r.Grow(c.bytes); c.as == nil && err != nil || c.as != nil && !errors.As(err, c.as) {
			t.Errorf("%d bytes: %v", c.bytes, err)
		}
	}
	r.Release()
	if got := b.inUse(); got != 40 {
		t.Errorf("%d bytes in use, want 40", got)
	}
}
