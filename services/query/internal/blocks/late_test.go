package blocks

import (
	"bytes"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// defers writes a delta of batches of one agent.
func (w *world) defers(batches ...publishedtest.Batch) *delta.Delta {
	var of []delta.Batch
	for _, b := range batches {
		of = append(of, w.entry(b))
	}
	w.putDelta(shard.Of(of[0].Agent, 2), of)
	return w.deltas[len(w.deltas)-1]
}

// counts is what blocks and deltas show, without memory, and the problems of reading it.
func (w *world) counts() (got map[sample]int, problems []published.Problem, gone bool) {
	const mint, maxt = 0, 4e12
	q := w.keeper.Query(published.Limits{})
	ss, err := q.Select(w.t.Context(), mint, maxt, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
	w.must(err)
	got = map[sample]int{}
	for i := range ss {
		runs := ss[i].Runs(mint, maxt)
		for run, ok := runs.Next(); ok; run, ok = runs.Next() {
			for k, ts := range run.T {
				got[sample{ss[i].Labels.Get("agent"), ts, run.V[k]}]++
			}
		}
	}
	problems, _ = q.Problems()
	return got, problems, q.Gone()
}

// once wants the records of a batch once, and reports which are not.
func (w *world) once(got map[sample]int, b publishedtest.Batch) {
	w.t.Helper()
	for _, r := range recordsOf(b) {
		if got[r] != 1 {
			w.t.Errorf("%+v is shown %d times", r, got[r])
		}
	}
}

// TestADeltaThatIsGone: a delta that was deleted counts in hours that were read before; one that was written again with
// others is read where it is now.
func TestADeltaThatIsGone(t *testing.T) {
	w := newWorld(t, 6)
	h, ns := w.in(8)
	b := w.acceptAt("a0", ns)
	d := w.defers(b)
	_, err := w.keeper.View(t.Context(), h, h)
	w.must(err)
	w.must(w.keeper.RefreshDeltas(t.Context()))
	if !w.held(b) {
		t.Fatal("a batch in a delta is not held")
	}
	got, problems, _ := w.counts()
	w.once(got, b)
	if len(problems) > 0 {
		t.Errorf("problems %+v", problems)
	}

	// Written together with another one.
	var both *delta.Delta
	for i := int64(1); both == nil || both.Key() < d.Key(); i++ {
		c := w.acceptAt("a0", ns+i*1e9)
		both = w.defers(b, c)
	}
	w.must(w.store.Delete(t.Context(), d.Key()))
	w.must(w.keeper.RefreshDeltas(t.Context()))
	w.restartReader()
	got, problems, gone := w.counts()
	w.once(got, b)
	if len(problems) > 0 || gone {
		t.Errorf("problems %+v, gone %v", problems, gone)
	}

	// The hour is published, and all deltas are deleted; this node has the hour as it was.
	w.published(h, w.accepted...)
	w.deltas = nil
	page, err := w.store.List(t.Context(), objstore.ListOptions{Prefix: "rollup/v1/deltas/"})
	w.must(err)
	for _, o := range page.Objects {
		w.must(w.store.Delete(t.Context(), o.Key))
	}
	w.must(w.keeper.RefreshDeltas(t.Context()))
	if !w.held(b) || len(w.keeper.state.Load().view.Deltas()) == 0 {
		t.Error("the view of the hour went back: no delta, and no block yet")
	}
	w.must(w.keeper.Refresh(t.Context(), h, h))
	if !w.held(b) || len(w.keeper.state.Load().view.Deltas()) > 0 {
		t.Error("the delta is remembered although the hour was read again")
	}
	got, _, _ = w.counts()
	w.once(got, b)
}

// restartReader forgets what was read of objects.
func (w *world) restartReader() {
	r, err := published.New(published.Config{Store: w})
	w.must(err)
	w.keeper.reader = r
}

// TestDeltasInAView: a delta holds a batch in the hours that it has samples in.
func TestDeltasInAView(t *testing.T) {
	w := newWorld(t, 7)
	h, ns := w.in(8)
	b := w.acceptAt("a0", ns)
	w.defers(b)
	_, err := w.keeper.View(t.Context(), h, h+1)
	w.must(err)
	w.must(w.keeper.RefreshDeltas(t.Context()))
	if held, _ := w.keeper.Held(b.Frame.Identity, []timegrid.Hour{h}); !held {
		t.Error("not held in its hour")
	}
	if held, _ := w.keeper.Held(b.Frame.Identity, []timegrid.Hour{h + 1}); held {
		t.Error("held in an hour that it has no samples in")
	}
	if v := w.keeper.state.Load().view; len(v.Late(h)) != 1 || len(v.Late(h+1)) != 0 || v.Covers(b.Frame.Identity, h, timegrid.OneHour) {
		t.Errorf("%+v, %+v", v.Late(h), v.Late(h+1))
	}
}

// TestOverlapsOfDeltas: a record number that the block of the hour has is not taken from a delta.
func TestOverlapsOfDeltas(t *testing.T) {
	w := newWorld(t, 8)
	h, ns := w.in(8)
	first := w.acceptAt("a0", ns, ns+1e9)
	w.seq["a0"] = 1
	second := w.acceptAt("a0", ns+5e9, ns+6e9)
	w.published(h, first)
	w.defers(second)
	w.must(w.keeper.RefreshDeltas(t.Context()))
	got, problems, _ := w.counts()
	rs := recordsOf(second)
	if w.once(got, first); len(problems) > 0 || got[rs[0]] != 0 || got[rs[1]] != 1 || len(got) != 3 {
		t.Errorf("%v, problems %+v", got, problems)
	}
}

// TestADamagedDelta: one that can't be read is a problem of its hours and hides nothing that memory has.
func TestADamagedDelta(t *testing.T) {
	w := newWorld(t, 9)
	_, ns := w.in(8)
	b := w.acceptAt("a0", ns)
	d := w.defers(b)
	w.defers(w.acceptAt("a0", ns+1e9)) // memory leaves this one out
	w.must(w.keeper.RefreshDeltas(t.Context()))
	body, _, err := w.store.Get(t.Context(), d.Key(), objstore.GetOptions{})
	w.must(err)
	bad := bytes.Clone(body)
	bad[len(bad)-1] ^= 1
	w.put(d.Key(), bad)
	q, snap := w.keeper.Query(published.Limits{}), w.live.Snapshot(w.clock)
	snap.Hide(q)
	w.must(q.Pin(t.Context(), ns/1e6-1000, ns/1e6+1000))
	shown := 0
	ls, err := snap.Select(t.Context(), 0, 4e12, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
	w.must(err)
	for i := range ls {
		runs := ls[i].Runs(0, 4e12)
		for run, ok := runs.Next(); ok; run, ok = runs.Next() {
			shown += len(run.T)
		}
	}
	snap.Close()
	if ps, _ := q.Problems(); len(ps) != 1 || ps[0].Key != d.Key() || shown != 1 {
		t.Errorf("problems %+v, memory shows %d", ps, shown)
	}
	// A header that can't be read holds nothing, and says so in all hours of its name.
	bad = bytes.Clone(body)
	bad[20] ^= 1
	w.put(d.Key(), bad)
	w.restart()
	w.poll()
	if _, problems, _ := w.counts(); len(problems) != 1 || problems[0].Key != d.Key() {
		t.Errorf("problems %+v", problems)
	}
	if w.held(b) {
		t.Error("a delta that can't be read holds a batch")
	}
}

// TestRolledRowsBesideDeltas: an hour of which deltas have something is read raw.
func TestRolledRowsBesideDeltas(t *testing.T) {
	w := newWorld(t, 10)
	h, ns := w.in(8)
	b := w.acceptAt("a0", ns)
	agent := "b"
	for shard.Of(agent, 2) != shard.Of("a0", 2) {
		agent += "b"
	}
	other := w.acceptAt(agent, ns+3e9)
	_, err := w.publish.Publish(t.Context(), h, 1, []publishedtest.Batch{other}, timegrid.Raw, timegrid.OneMinute)
	w.must(err)
	rolled := func() (parts, raw int) {
		q := w.keeper.Query(published.Limits{})
		out, ok, err := q.SelectRolled(t.Context(), published.Rows{Resolution: timegrid.OneMinute}, h.StartMS()+1, h.EndMS(), func(timegrid.Hour) bool { return false },
			func(series.Type) bool { return true }, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
		w.must(err)
		for i := range out {
			parts += out[i].Parts()
			if out[i].Raw != nil {
				raw++
			}
		}
		if !ok {
			return 0, -1 // everything is to be read raw
		}
		return parts, raw
	}
	if parts, raw := rolled(); parts != 1 || raw != 0 {
		t.Errorf("without deltas: %d parts, %d raw", parts, raw)
	}
	w.defers(b)
	w.must(w.keeper.RefreshDeltas(t.Context()))
	if parts, raw := rolled(); parts != 0 || raw != -1 {
		t.Errorf("with a delta: %d parts, %d raw", parts, raw)
	}
}

// TestANodeThatStartsFindsDeltas: and so knows what is in no block.
func TestANodeThatStartsFindsDeltas(t *testing.T) {
	w := newWorld(t, 11)
	_, ns := w.in(8)
	b := w.acceptAt("a0", ns)
	w.defers(b)
	w.restart()
	w.poll()
	if w.held(b) {
		t.Fatal("the hour was not read")
	}
	w.poll()
	if !w.held(b) {
		t.Error("not held")
	}
	got, _, _ := w.counts()
	w.once(got, b)
}

// TestABatchThatLeavesWhatIsPendingIsInADelta: while a node starts a batch may move into a delta. The node knows it when
// it has read how far the journal is rolled up.
func TestABatchThatLeavesWhatIsPendingIsInADelta(t *testing.T) {
	w := newWorld(t, 12)
	h, ns := w.in(8)
	b := w.acceptAt("a0", ns)
	w.restart()
	w.poll()
	w.defers(b)
	w.must(w.keeper.Renew(t.Context()))
	_, err := w.keeper.View(t.Context(), h, h)
	w.must(err)
	if !w.held(b) {
		t.Error("the batch is nowhere")
	}
	w.clock = w.clock.Add(time.Second)
}
