package rollup

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/maintain"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/schedule"
)

// A shard with more batches of the current hour than may be pending keeps neither itself
// from late batches that stand behind them, nor another shard from anything.
func TestHotShard(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Follow.MaxPending, cfg.Schedule.FirstAfter = 60, 5*time.Minute
	w.clock.Store(at(hour0, 20*time.Minute).UnixNano())
	hot, calm := agentOf(0, 0), agentOf(1, 0)
	seq := w.some(hot, hour0, 0, 150, 0)
	late := w.accept(hot, 10_000, one(hour0-3, time.Minute))
	w.some(calm, hour0-2, 0, 5, 0)
	w.some(calm, hour0, 0, 5, 10_000)

	svc := w.worker(cfg, w.store)
	a, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	b, err := w.owner(svc, ownership.Grant{Shard: 1, Fence: 1})
	must(t, err)
	svc.board.Enter(a.Status())
	svc.board.Enter(b.Status())
	both := func() {
		t.Helper()
		for _, o := range []*driven{a, b} {
			must(t, rounds(t.Context(), o))
			svc.board.Note(o.Status())
		}
		if n := a.Shard.Backlog.Len() + b.Shard.Backlog.Len(); n > 2*cfg.Follow.MaxPending {
			t.Fatalf("%d batches are pending", n)
		}
	}
	both()
	if w.generation(hour0-2, 1) != 1 || b.Shard.Backlog.Len() == 0 {
		t.Errorf("the calm shard: generation %d, %d batches pending", w.generation(hour0-2, 1), b.Shard.Backlog.Len())
	}
	for range 10 { // well before the hour's end
		w.advance(cfg.Schedule.LateAfter)
		both()
	}
	if s := w.set(hour0-3, 0, timegrid.Raw); s == nil || !s.Inputs.Covers(late.Identity) {
		t.Errorf("the late batch: %+v", s)
	}
	w.check(hour0-3, 0, 1)
	expedited := w.generation(hour0, 0)
	if expedited == 0 || expedited > 5 {
		t.Errorf("%d generations of the expedited hour", expedited)
	}
	if n := testutil.ToFloat64(svc.m.Early.WithLabelValues(string(schedule.Expedited))); n < float64(expedited) {
		t.Errorf("%v early generations, %d of the expedited hour", n, expedited)
	}
	w.some(hot, hour0, 200, 3, seq)
	w.clock.Store(hour0.End().Add(cfg.Schedule.FirstAfter).UnixNano())
	w.drain(a, time.Minute, cfg.Follow.MaxPending)
	w.drain(b, time.Minute, cfg.Follow.MaxPending)
	w.check(hour0, 0, w.generation(hour0, 0))
	w.check(hour0, 1, w.generation(hour0, 1))
}

// lose takes the frames of entries away.
func (w *world) lose(es []accepted.Batch) {
	w.t.Helper()
	for _, e := range es {
		must(w.t, w.store.Delete(w.t.Context(), e.RawBlobKey))
	}
}

// restore brings them back.
func (w *world) restore(es []accepted.Batch) {
	w.t.Helper()
	for _, e := range es {
		_, err := w.store.Create(w.t.Context(), layout.Blob(e.FrameSHA256, 1), w.frames[e.Identity], objstore.PutOptions{})
		must(w.t, err)
	}
}

// More batches without frames than may be pending: one generation is aborted for all that
// are pending, they make room, others are rolled up, and the requests for them do not grow
// with their number. When the frames are back, they are rolled up as well.
func TestManyFramesAreGone(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Follow.MaxPending = 100
	agent := agentOf(0, 0)
	const lost, group = 400, 20
	for i := range lost / group {
		var es []accepted.Batch
		for k := range group {
			es = append(es, w.acceptSilently(agent, uint64(i*group+k), one(hour0, time.Duration(i*group+k+1)*time.Second)))
		}
		w.enter(es...)
	}
	gone := w.accepted[:lost:lost]
	w.lose(gone)
	for i := range uint64(10) {
		w.accept(agent, 1000+i, one(hour0, 59*time.Minute+time.Duration(i)*time.Second))
	}
	good := w.accepted[lost:]
	counted := fault.New(w.store, 1)
	svc := w.worker(cfg, counted)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	run := func(d time.Duration) {
		t.Helper()
		for end := w.now().Add(d); w.now().Before(end); w.advance(time.Minute) {
			_ = rounds(t.Context(), o) // it tells of what is gone
			if n := o.Shard.Backlog.Len(); n > cfg.Follow.MaxPending+group {
				t.Fatalf("%d batches are pending", n)
			}
		}
	}
	run(2 * time.Hour)
	block := w.set(hour0, 0, timegrid.Raw)
	if block == nil || block.Inputs.Batches() != uint64(len(good)) {
		t.Fatalf("those with frames: %+v", block)
	}
	if g := block.Name.Generation; g > 20 {
		t.Errorf("%d generations", g)
	}
	svc.board.Note(o.Status())
	if st := svc.Shards()[0]; st.Evicted == 0 && st.Unreadable == 0 {
		t.Errorf("nothing tells of them: %+v", st)
	}
	before := counted.Count("", "")
	run(6 * time.Hour)
	n := counted.Count("", "") - before
	t.Logf("%d requests in 6 hours with %d lost frames", n, lost)
	// 1,116 of them are polls of the journal, one a minute. The others are rounds through the lost batches, of which the
	// first aborts generations, and further ones ask for each frame that is to be tried again.
	if n > 12_000 {
		t.Errorf("%d requests in 6 hours", n)
	}

	w.restore(gone)
	run(13 * time.Hour)
	w.check(hour0, 0, w.generation(hour0, 0))
	if block := w.set(hour0, 0, timegrid.Raw); block.Inputs.Batches() != uint64(lost+len(good)) {
		t.Errorf("after they are back: %d batches", block.Inputs.Batches())
	}
	if left := w.left(0); len(left) > 0 || o.Shard.Backlog.Len()+o.Shard.Unreadable.Len()+pendingHours(o) > 0 {
		t.Errorf("left: %d, %d batches, %d left out", len(left), o.Shard.Backlog.Len(), o.Shard.Unreadable.Len())
	}
}

// An hour that can't be rolled up at all, as a block has batches whose rows and
// frames are gone, does not fill the shard with what comes for it.
func TestHourThatIsStuck(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Follow.MaxPending, cfg.Retention.Raw = 30, 24*time.Hour
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0, 0, 5, 0)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	m := w.compactor(cfg)
	w.clock.Store(hour0.End().Add(25 * time.Hour).UnixNano())
	must(t, m.retention.Retain(t.Context()))
	gone := w.accepted[:5:5]
	w.lose(gone)
	seq = w.some(agent, hour0, 50, 80, seq) // late ones
	for i := range timegrid.Hour(3) {
		seq = w.some(agent, hour0+5+i, 0, 2, seq)
	}
	o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 10})
	must(t, err)
	for range 60 {
		_ = rounds(t.Context(), o)
		w.advance(time.Minute)
	}
	for i := range timegrid.Hour(3) {
		w.check(hour0+5+i, 0, 1)
	}
	if g := w.set(hour0, 0, timegrid.OneMinute).Name.Generation; g != 1 {
		t.Errorf("generation %d of the hour", g)
	}
	if o.Shard.Backlog.Evicted() == 0 {
		t.Error("nothing is evicted")
	}
	w.restore(gone)
	for range 4 * 60 {
		_ = rounds(t.Context(), o)
		w.advance(time.Minute)
	}
	w.check(hour0, 0, w.generation(hour0, 0))
	if left := w.left(0); len(left) > 0 {
		t.Errorf("%d batches are left", len(left))
	}
}

// Batches that stand in the journal again after their sets have expired are done: they are
// not rolled up again, though some of their frames are gone.
func TestExpiredHoursStayExpired(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Retention = maintain.RetentionConfig{Raw: 24 * time.Hour, Interval: time.Hour}
	agent := agentOf(0, 0)
	w.some(agent, hour0, 0, 4, 0)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	for _, all := range []bool{false, true} {
		if all {
			cfg.Retention.Minute, cfg.Retention.Five, cfg.Retention.Hour = 48*time.Hour, 48*time.Hour, 48*time.Hour
		}
		m := w.compactor(cfg)
		w.advance(72 * time.Hour)
		must(t, m.retention.Retain(t.Context()))
		if raw, hour := w.set(hour0, 0, timegrid.Raw), w.set(hour0, 0, timegrid.OneHour); raw != nil || (hour == nil) != all {
			t.Fatalf("after retention: %v, %v", raw, hour)
		}
		if !all {
			w.lose(w.accepted[:2])
		}
		w.enter(w.accepted...)
		o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 2})
		must(t, err)
		w.drain(o, time.Minute, 10)
		for _, res := range timegrid.Resolutions() {
			if s := w.set(hour0, 0, res); s != nil && s.Name.Generation != 1 {
				t.Errorf("%s was made again: generation %d", res, s.Name.Generation)
			}
		}
		n := 0
		must(t, storetest.Each(t.Context(), w.store, layout.BlockManifestsHour(hour0), func(objstore.Info) error { n++; return nil }))
		if n != len(timegrid.Resolutions()) {
			t.Errorf("%d records, want those of the first generation", n)
		}
	}
	// A batch that is new is rolled up all the same, with those that have frames.
	w.restore(w.accepted[:2])
	w.accept(agent, 100, one(hour0, 30*time.Minute))
	cfg.Retention = maintain.DefaultRetentionConfig()
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 3})
	if s := w.set(hour0, 0, timegrid.Raw); s == nil || s.Name.Generation != 2 {
		t.Errorf("a late batch: %+v", s)
	}
}

// What an owner remembers of a batch whose frame it could not read goes when another worker has
// rolled the batch up.
func TestWhatOthersCouldReadIsForgotten(t *testing.T) {
	w := newWorld(t, newMem())
	w.some(agentOf(0, 0), hour0, 0, 3, 0)
	gone := w.accepted[1:2:2]
	w.lose(gone)
	o, err := w.owner(w.worker(testConfig(), w.store), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	_ = rounds(t.Context(), o) // its error names the frame
	if n := o.Shard.Unreadable.Len(); n != 1 {
		t.Fatalf("%d batches are left out", n)
	}
	w.restore(gone)
	w.advance(time.Hour)
	w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 2})
	must(t, rounds(t.Context(), o))
	if n := o.Shard.Unreadable.Len(); n != 0 || o.Shard.Backlog.Len() != 0 {
		t.Errorf("%d batches are left out, %d are pending", n, o.Shard.Backlog.Len())
	}
}
