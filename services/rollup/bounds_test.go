package rollup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	rtmetrics "runtime/metrics"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/build"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/job"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// many makes batches of an agent accepted that have the series [0, series) of hour0 with
// rows each, values random; perFrame series a frame, one row a frame.
func (w *world) many(agent string, n, rows, perFrame int) (records uint64) {
	w.t.Helper()
	rnd := rand.New(rand.NewPCG(uint64(n), uint64(rows)))
	fb := frame.NewBuilder()
	enc := frame.NewEncoder(frame.Options{})
	var entries []accepted.Batch
	seq := uint64(0)
	for row := range rows {
		for from := 0; from < n; from += perFrame {
			fb.Reset()
			must(w.t, fb.SetResource(series.Label{Name: "host", Value: agent}))
			for i := from; i < min(from+perFrame, n); i++ {
				id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "request_duration_seconds"}, {Name: "id", Value: fmt.Sprintf("request-%08d", i)}}, series.Gauge, "", 0)
				must(w.t, err)
				must(w.t, fb.Append(id, at(hour0, time.Duration(row+1)*time.Hour/time.Duration(rows+1)).UnixNano(), rnd.Float64()))
			}
			f, err := fb.Build(identity.Boot{Agent: agent, Boot: "b"}, seq)
			must(w.t, err)
			raw, err := enc.Encode(nil, f)
			must(w.t, err)
			d := identity.Sum(raw)
			lo, hi := frame.TimeRange(f)
			_, err = w.store.Create(w.t.Context(), layout.Blob(d, 0), raw, objstore.PutOptions{SHA256: d})
			must(w.t, err)
			e := accepted.Batch{Identity: identity.Batch{Agent: agent, Boot: "b", SeqStart: seq, SeqEnd: f.Identity.SeqEnd}, FrameSHA256: d, FrameBytes: uint64(len(raw)),
				RawBlobKey: layout.Blob(d, 0), AcceptedAt: w.now().UnixNano() + int64(len(entries)), MinTime: lo, MaxTime: hi}
			entries = append(entries, e)
			w.accepted = append(w.accepted, e)
			w.frames[e.Identity] = raw
			seq = e.SeqEnd + 1
		}
	}
	w.enter(entries...)
	return seq
}

// liveHeap runs fn and gives the most memory that the garbage collector found alive.
func liveHeap(fn func()) int64 {
	defer debug.SetGCPercent(debug.SetGCPercent(10)) // collect often, so that garbage does not hide it
	runtime.GC()
	stop, most := make(chan struct{}), make(chan int64)
	go func() {
		s := []rtmetrics.Sample{{Name: "/gc/heap/live:bytes"}}
		var n int64
		for {
			rtmetrics.Read(s)
			n = max(n, int64(s[0].Value.Uint64()))
			select {
			case <-stop:
				most <- n
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	fn()
	close(stop)
	return <-most
}

// toRest drives until nothing is to be done, late batches included.
func toRest(t *testing.T, w *world, o *driven) {
	t.Helper()
	must(t, rounds(t.Context(), o))
	w.advance(time.Hour)
	must(t, rounds(t.Context(), o))
}

// TestCostOfAnHour holds the estimate of what an hour takes against the live heap: never
// much below it, or jobs.memory would not bound a worker.
func TestCostOfAnHour(t *testing.T) {
	for _, c := range []struct{ series, rows int }{{20_000, 1}, {10_000, 6}, {2000, 60}} {
		w := newWorld(t, newMem())
		w.many(agentOf(0, 0), c.series, c.rows, 5000)
		svc := w.worker(testConfigOf(1<<40), w.store)
		wk, err := w.opened(svc)
		must(t, err)
		p, err := wk.planner().Plan(t.Context(), hour0, 0, 1, &hour.State{}, w.accepted, nil, 0)
		must(t, err)
		var m *build.Result
		var peak int64
		// The heap is known at the ends of collections alone, which may all miss the peak on
		// a busy machine: such a try says too little, never too much.
		for try := 0; try < 5 && (m == nil || peak < m.Cost/4); try++ {
			idle := liveHeap(func() { time.Sleep(20 * time.Millisecond) })
			peak = max(peak, liveHeap(func() {
				m, err = wk.builder.Build(t.Context(), p, nil, timegrid.Resolutions(), func() error { return nil })
				must(t, err)
			})-idle)
		}
		t.Logf("%d series, %d rows: %d bytes a series, estimate %d", c.series, c.rows, peak/int64(c.series), m.Cost/int64(c.series))
		if peak > m.Cost*5/4 || peak < m.Cost/4 {
			t.Errorf("%d series of %d rows take %d bytes, the estimate is %d", c.series, c.rows, peak, m.Cost)
		}
		sizes, err := wk.builder.Survey(t.Context(), p)
		must(t, err)
		if len(sizes) != 1 || sizes[0].Bytes < m.Cost*4/5 || sizes[0].Bytes > m.Cost*6/5 || sizes[0].Records != uint64(c.series*c.rows) {
			t.Errorf("a survey gives %+v of %d bytes", sizes, m.Cost)
		}
	}
}

// TestMemoryOfALargeHour: an hour that costs many times jobs.memory is built in parts, and
// the live heap stays near the bound. The rows are the same as those of one part.
func TestMemoryOfALargeHour(t *testing.T) {
	const memory = 4 << 20
	w := newWorld(t, newMem())
	w.many(agentOf(0, 0), 20_000, 2, 5000)
	w.some(agentOf(0, 1), hour0, 0, 3, 0)
	cfg := testConfigOf(memory)
	cfg.Jobs.Dir = t.TempDir()
	svc := w.worker(cfg, w.store)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	idle := liveHeap(func() { time.Sleep(20 * time.Millisecond) })
	// Encoders, frames in work and what the store in memory takes for the outputs come on top.
	const besides = 16 << 20
	peak := liveHeap(func() { toRest(t, w, o) }) - idle
	p, err := w.planOf(svc, 2)
	must(t, err)
	t.Logf("%d parts, %d MiB at most", p.Parts, peak>>20)
	if peak > memory+besides {
		t.Errorf("the heap grew by %d MiB, with jobs.memory at %d MiB", peak>>20, memory>>20)
	}
	if p.Parts < 10 || testutil.ToFloat64(svc.m.Resized) != 1 || o.Shard.PerRecord < 500 {
		t.Errorf("%d parts after %v resizes, %v bytes a record", p.Parts, testutil.ToFloat64(svc.m.Resized), o.Shard.PerRecord)
	}
	w.check(hour0, 0, 2)
	if left := w.left(0); len(left) > 0 {
		t.Errorf("%d batches are left", len(left))
	}
}

// TestAnAgentThatDoesNotFitIsSetAside: its batches stay pending, the record says so, and
// everybody else is rolled up. With larger bounds it is rolled up like any other.
func TestAnAgentThatDoesNotFitIsSetAside(t *testing.T) {
	w := newWorld(t, newMem())
	bad, good := agentOf(0, 0), agentOf(0, 1)
	w.some(good, hour0, 0, 3, 0)
	goods := len(w.accepted)
	w.many(bad, 20_000, 1, 5000)
	all := w.accepted
	cfg := testConfigOf(1 << 20)
	cfg.Jobs.MaxParts = 8
	svc := w.worker(cfg, w.store)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	toRest(t, w, o)

	w.accepted = all[:goods]
	w.check(hour0, 0, 2)
	svc.board.Note(o.Status())
	if st := svc.Shards()[0]; st.SetAside != 4 || st.PendingBatches != 4 || st.AgentHours != 1 || testutil.ToFloat64(svc.m.AgentHours.WithLabelValues("0000")) != 1 {
		t.Errorf("%+v", st)
	}
	if left := w.left(0); len(left) != 4 {
		t.Errorf("%d batches are left, want those that are set aside", len(left))
	}
	key := layout.RollupAside(hour0, 0, bad)
	body, _, err := w.store.Get(t.Context(), key, objstore.GetOptions{})
	must(t, err)
	a, err := catalog.ParseAside(key, body)
	must(t, err)
	if a.Agent != bad || a.Series < 18_000 || a.Series > 22_000 || a.Records != 20_000 || a.Bytes < 8<<20 || a.Limit != 8<<20 || a.Reason == "" || a.By == "" {
		t.Errorf("%+v", a)
	}

	// Late batches of others go on, and another worker with the same bounds knows.
	w.accepted = all
	w.advance(time.Hour)
	w.some(good, hour0, 3, 2, w.accepted[goods-1].SeqEnd+1)
	svc = w.worker(cfg, w.store)
	o, err = w.owner(svc, ownership.Grant{Shard: 0, Fence: 2})
	must(t, err)
	toRest(t, w, o)
	late := w.accepted[len(all):]
	w.accepted = slices.Concat(all[:goods], late)
	w.check(hour0, 0, 3)
	if n := testutil.ToFloat64(svc.m.Resized) + testutil.ToFloat64(svc.m.SetAside); n != 0 {
		t.Errorf("the next worker tried it again %v times", n)
	}

	w.accepted = slices.Concat(all, late)
	w.advance(time.Hour)
	cfg.Jobs.Memory = config.Bytes(16 << 20)
	svc = w.worker(cfg, w.store)
	o, err = w.owner(svc, ownership.Grant{Shard: 0, Fence: 3})
	must(t, err)
	toRest(t, w, o)
	block := w.set(hour0, 0, timegrid.Raw)
	w.check(hour0, 0, block.Name.Generation)
	if _, err := w.store.Head(t.Context(), key); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("the record is still there: %v", err)
	}
	if left := w.left(0); len(left) > 0 {
		t.Errorf("%d batches are left", len(left))
	}
}

// TestWhatIsPublishedIsNotSetAside: an agent of which a generation has batches keeps them,
// however little memory there is now; what is new of it waits.
func TestWhatIsPublishedIsNotSetAside(t *testing.T) {
	w := newWorld(t, newMem())
	bad, good := agentOf(0, 0), agentOf(0, 1)
	seq := w.some(good, hour0, 0, 3, 0)
	w.many(bad, 10_000, 1, 5000)
	w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 1})
	w.check(hour0, 0, 1)

	before := len(w.accepted)
	w.some(good, hour0, 3, 2, seq)
	w.acceptMore(bad, 10_000, 10_000)
	w.advance(time.Hour)
	cfg := testConfigOf(1 << 20)
	cfg.Jobs.MaxParts = 4
	svc := w.worker(cfg, w.store)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 2})
	must(t, err)
	toRest(t, w, o)
	if !o.Shard.Aside.SetAside(hour0, bad) {
		t.Fatal("the agent is not set aside")
	}
	w.accepted = w.accepted[:before+2] // all but the last of the agent
	block := w.set(hour0, 0, timegrid.Raw)
	if block.Name.Generation == 1 {
		t.Fatal("the late batches of the other agent are not rolled up")
	}
	w.check(hour0, 0, block.Name.Generation)
}

// acceptMore is many, for series that come later.
func (w *world) acceptMore(agent string, from, n int) {
	w.t.Helper()
	seq := w.accepted[slices.IndexFunc(w.accepted, func(e accepted.Batch) bool { return e.Agent == agent })].SeqStart
	for _, e := range w.accepted {
		if e.Agent == agent {
			seq = max(seq, e.SeqEnd+1)
		}
	}
	var ps []point
	for i := from; i < from+n; i++ {
		ps = append(ps, point{fmt.Sprintf("late_%d", i), series.Gauge, at(hour0, 59*time.Minute), float64(i)})
	}
	w.accept(agent, seq, ps...)
}

// killed is a store whose owner is killed when the worker has read so many frames of a job:
// everything fails from then on, also what a worker does at its end.
type killed struct {
	objstore.Store
	after int // frames; negative: never
	dead  bool
}

var errKilled = fmt.Errorf("killed: %w", objstore.ErrUnavailable)

func (s *killed) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if objstore.Family(key) == "raw-blobs" {
		s.dead = s.dead || s.after == 0
		s.after--
	}
	if s.dead {
		return nil, objstore.Info{}, errKilled
	}
	return s.Store.Get(ctx, key, o)
}

func (s *killed) Delete(ctx context.Context, key string) error {
	if s.dead {
		return errKilled
	}
	return s.Store.Delete(ctx, key)
}

// TestAJobThatKillsItsWorkerEnds: each worker that is killed over an hour leaves it to the
// next in more parts, and in the end its largest agent is set aside. The others are rolled up.
func TestAJobThatKillsItsWorkerEnds(t *testing.T) {
	w := newWorld(t, newMem())
	bad, good := agentOf(0, 0), agentOf(0, 1)
	w.some(good, hour0, 0, 3, 0)
	goods := len(w.accepted)
	w.many(bad, 60_000, 3, 20_000) // more than attemptBytes
	cfg := testConfigOf(1 << 30)
	cfg.Jobs.Readers = 1
	deaths, surveys := 0, 0
	for fence := uint64(1); ; fence++ {
		if fence > 20 {
			t.Fatal("workers are killed for ever")
		}
		// Whoever makes the hour with the large agent is killed on the way; a survey is not.
		s := &killed{Store: w.store, after: -1}
		svc := w.worker(cfg, s)
		o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: fence})
		must(t, err)
		pub := w.state(svc, hour0, 0)
		if p, err := w.planOf(svc, pub.Next()); err != nil || len(p.Inputs) > goods {
			s.after = len(w.accepted) / 2
			if noted(w, pub.Next()) {
				s.after += len(w.accepted) // it surveys first
			}
		}
		for range 3 {
			if _, err := o.Round(t.Context()); s.dead {
				deaths++
				break
			} else if err != nil && !errors.Is(err, job.ErrDied) {
				t.Fatal(err)
			}
			w.advance(time.Hour)
		}
		surveys += int(testutil.ToFloat64(svc.m.Died))
		if !s.dead && o.Shard.Aside.SetAside(hour0, bad) {
			toRest(t, w, o)
			break
		}
	}
	if deaths < 2 || surveys < 2 {
		t.Errorf("%d workers were killed, %d found that", deaths, surveys)
	}
	t.Logf("%d workers were killed, %d found that", deaths, surveys)
	w.accepted = w.accepted[:goods]
	w.check(hour0, 0, w.set(hour0, 0, timegrid.Raw).Name.Generation)
	key := layout.RollupAside(hour0, 0, bad)
	body, _, err := w.store.Get(t.Context(), key, objstore.GetOptions{})
	must(t, err)
	if a, err := catalog.ParseAside(key, body); err != nil || a.Reason != job.ReasonDied {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := w.store.Head(t.Context(), layout.RollupAttempt(hour0, 0)); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("a note of an attempt is left: %v", err)
	}
}

// noted reports whether a worker left a note that it makes the generation.
func noted(w *world, gen uint64) bool {
	w.t.Helper()
	key := layout.RollupAttempt(hour0, 0)
	b, _, err := w.store.Get(w.t.Context(), key, objstore.GetOptions{})
	if err != nil {
		return false
	}
	a, err := catalog.ParseAttempt(key, b)
	must(w.t, err)
	return a.Generation == gen
}

func testConfigOf(memory int64) Config {
	c := testConfig()
	c.Jobs.Memory = config.Bytes(memory)
	return c
}
