package rollup

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/maintain"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/schedule"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/storeclock"
)

// one is a batch of one sample in the hour.
func one(h timegrid.Hour, d time.Duration) point {
	return point{"load", series.Gauge, at(h, d), float64(h)}
}

// generation of the committed raw set, 0 for none.
func (w *world) generation(h timegrid.Hour, id shard.ID) uint64 {
	w.t.Helper()
	if s := w.set(h, id, timegrid.Raw); s != nil {
		return s.Name.Generation
	}
	return 0
}

// drain drives rounds, with the clock going on between them, until nothing is pending
// and every batch is covered. most bounds what is pending after any round.
func (w *world) drain(o *driven, step time.Duration, most int) (took time.Duration) {
	w.t.Helper()
	began := w.now()
	for range 2000 {
		again, err := o.Round(w.t.Context())
		must(w.t, err)
		if n := o.Shard.Backlog.Len(); n > most {
			w.t.Fatalf("%d batches are pending, at most %d", n, most)
		}
		if o.Shard.Backlog.Len() == 0 && !again && len(w.left(o.Shard.Shard)) == 0 {
			return w.now().Sub(began)
		}
		if !again {
			w.advance(step)
		}
	}
	w.t.Fatalf("does not come to rest: %d batches of %d hours, %d not covered", o.Shard.Backlog.Len(), pendingHours(o), len(w.left(o.Shard.Shard)))
	return 0
}

// Agents whose clocks are wrong give batches of a thousand hours of the years to come,
// more than may be pending at once. They are rolled up without waiting for their hours,
// with as many requests for each hour as any other, and what comes meanwhile is too.
func TestHoursFarAhead(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Follow.MaxPending, cfg.Schedule.FirstAfter = 300, 5*time.Minute
	w.clock.Store(at(hour0, 10*time.Minute).UnixNano())
	broken, right := agentOf(0, 0), agentOf(0, 1)
	const hours, group = 500, 50
	var hs []timegrid.Hour
	for i := range hours {
		h := hour0 + 3 + timegrid.Hour(i*(i%7+1))
		hs = append(hs, h)
	}
	var es []accepted.Batch
	for i, h := range hs {
		es = append(es, w.acceptSilently(broken, uint64(i), one(h, time.Duration(i+1)*time.Millisecond)))
		if len(es) == group {
			w.enter(es...)
			es = nil
		}
	}
	w.some(right, hour0, 20, 2, 0)
	late := w.accept(right, 100, one(hour0-5, time.Minute))

	counted := fault.New(w.store, 1)
	svc := w.worker(cfg, counted)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	took := w.drain(o, time.Minute, cfg.Follow.MaxPending+group)
	if took > 3*time.Hour {
		t.Errorf("it took %v", took)
	}
	distinct := map[timegrid.Hour]bool{hour0: true, hour0 - 5: true}
	for _, h := range hs {
		distinct[h] = true
	}
	n := counted.Count("", "")
	t.Logf("%d requests for %d hours, in %v", n, len(distinct), took)
	if n > 60*len(distinct) {
		t.Errorf("%d requests for %d hours", n, len(distinct))
	}
	if got := testutil.ToFloat64(svc.m.Ahead); got != hours {
		t.Errorf("%v batches are counted as ahead, want %d", got, hours)
	}
	if got := testutil.ToFloat64(svc.m.Early.WithLabelValues(string(schedule.FarAhead))) + testutil.ToFloat64(svc.m.Early.WithLabelValues(string(schedule.Expedited))); got < float64(len(distinct)/2) {
		t.Errorf("%v early generations", got)
	}
	for i, h := range hs {
		if s := w.set(h, 0, timegrid.OneHour); s == nil || !s.Inputs.Covers(w.accepted[i].Identity) {
			t.Fatalf("%s: %+v does not cover %s", h, s, w.accepted[i].Identity)
		}
	}
	if s := w.set(hour0-5, 0, timegrid.Raw); s == nil || !s.Inputs.Covers(late.Identity) {
		t.Errorf("the late batch: %+v", s)
	}
	for _, h := range []timegrid.Hour{hour0, hour0 - 5, hs[0], hs[hours-1]} {
		w.check(h, 0, w.generation(h, 0))
	}

	// When its time has come, an hour is rolled up again with what its agents sent then, at its end.
	h := hs[3]
	w.clock.Store(at(h, 30*time.Minute).UnixNano())
	before := w.generation(h, 0)
	seq := w.some(right, h, 0, 3, 1000)
	for range 10 {
		must(t, rounds(t.Context(), o))
		w.advance(2 * time.Minute)
	}
	if g := w.generation(h, 0); g != before {
		t.Errorf("generation %d before the hour's end, %d before", g, before)
	}
	w.clock.Store(h.End().Add(cfg.Schedule.FirstAfter).UnixNano())
	w.some(right, h, 10, 1, seq)
	w.drain(o, time.Minute, cfg.Follow.MaxPending)
	if g := w.generation(h, 0); g != before+1 {
		t.Errorf("generation %d after the hour's end, %d before", g, before)
	}
	w.check(h, 0, before+1)
}

// A worker whose clock is wrong by an hour or a year, either way, rolls everything up, and
// so does the next one, or the same after its clock was put right.
func TestWorkersClock(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, wrong := range []time.Duration{-year, -time.Hour, time.Hour, year} {
		for _, same := range []bool{true, false} {
			w := newWorld(t, newMem())
			cfg := testConfig()
			agent := agentOf(0, 0)
			seq := w.some(agent, hour0, 0, 3, 0)
			w.advance(wrong)
			svc := w.worker(cfg, w.store)
			o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
			must(t, err)
			if took := w.drain(o, time.Minute, 10); took > 2*time.Hour {
				t.Errorf("%v wrong: it took %v", wrong, took)
			}
			w.check(hour0, 0, 1)
			seq = w.some(agent, hour0, 20, 1, seq)
			must(t, rounds(t.Context(), o)) // it waits
			w.advance(-wrong)
			if !same {
				o, err = w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 2})
				must(t, err)
			}
			if took := w.drain(o, time.Minute, 10); took > 10*time.Minute {
				t.Errorf("%v wrong, same worker %v: it took %v after the clock was right", wrong, same, took)
			}
			w.some(agent, hour0, 30, 1, seq)
			if took := w.drain(o, time.Minute, 10); took > 10*time.Minute {
				t.Errorf("%v wrong, same worker %v: a late batch took %v", wrong, same, took)
			}
			w.check(hour0, 0, 3)
			if steps := testutil.ToFloat64(svc.m.ClockSteps); same && steps != map[bool]float64{true: 1, false: 0}[wrong > 0] {
				t.Errorf("%v wrong: %v steps back", wrong, steps)
			}
		}
	}
}

// A worker whose clock is ahead removes nothing for its age, and says why; one that is
// behind, or right, does.
func TestRetentionAsksTheStoresClock(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Retention = maintain.RetentionConfig{Raw: 24 * time.Hour, Interval: time.Hour}
	w.some(agentOf(0, 0), hour0, 0, 3, 0)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	w.wrong = 365 * 24 * time.Hour
	w.advance(w.wrong)
	faulty := fault.New(w.store, 1)
	m := w.compactorOver(cfg, faulty)
	var clock *storeclock.AheadError
	if err := m.retention.Retain(t.Context()); !errors.As(err, &clock) || clock.Ahead != w.wrong {
		t.Errorf("with a clock that is a year ahead: %v", err)
	}
	if w.generation(hour0, 0) != 1 {
		t.Error("a set is removed by a clock that is wrong")
	}
	if n := testutil.ToFloat64(m.owners.Metrics.ClockAhead); n != w.wrong.Seconds() {
		t.Errorf("%v s ahead", n)
	}
	// The store can't be asked: nothing is removed either.
	faulty.Add(fault.NotApplied("put", layout.RollupClockKey))
	if err := m.retention.Retain(t.Context()); !errors.Is(err, objstore.ErrUnknown) {
		t.Errorf("without the store's time: %v", err)
	}
	m = w.compactor(cfg)
	for _, wrong := range []time.Duration{-time.Hour, storeclock.MaxAhead} {
		w.wrong = wrong
		w.advance(time.Hour)
		must(t, m.retention.Retain(t.Context()))
	}
	if w.generation(hour0, 0) != 0 {
		t.Error("nothing is removed by a clock that is right")
	}
}

// An agent that somebody releases is rolled up within minutes, also by an owner whose clock was
// ahead when it last listed who is set aside.
func TestAnAgentIsReleasedWhenTheClockWentBack(t *testing.T) {
	const year = 365 * 24 * time.Hour
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	w.some(agent, hour0, 0, 3, 0)
	aside := catalog.Aside{AuthorityID: testAuthority, Shard: 0, Hour: hour0, Agent: agent, Series: 1, Records: 1, Bytes: 1 << 50, Limit: 1 << 50, Reason: "r", By: "b", At: 1}
	w.spoil(aside.Key(), string(aside.Marshal()))
	o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	w.advance(year)
	must(t, rounds(t.Context(), o))
	w.advance(-year)
	must(t, rounds(t.Context(), o))
	if o.Shard.Backlog.Len() != 3 || o.Status().SetAside != 3 {
		t.Fatalf("%+v", o.Status())
	}
	must(t, w.store.Delete(t.Context(), aside.Key()))
	if took := w.drain(o, time.Minute, 10); took > 10*time.Minute {
		t.Errorf("it took %v", took)
	}
	w.check(hour0, 0, 1)
}
