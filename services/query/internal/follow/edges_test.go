package follow

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var (
	someTime = time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)
	someBoot = identity.Boot{Agent: "a0", Boot: "b"}
)

// TestCompleteThroughIsWhenTheAuditBegan: a batch that is accepted while an audit lists may
// be missed by it, so the audit vouches for nothing that came after its begin.
func TestCompleteThroughIsWhenTheAuditBegan(t *testing.T) {
	w := newWorld(t, 1, someTime)
	w.onList = func() { w.tick(time.Minute) }
	if err := w.follow.Audit(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if st := w.follow.Status(); !st.CompleteThrough.Equal(someTime) || !st.FullAuditAt.Equal(someTime) {
		t.Errorf("%+v, want %s", st, someTime)
	}
	select {
	case <-w.follow.First():
	default:
		t.Error("the first audit has succeeded, and First waits")
	}
}

// TestFailedListingIsNotAnEmptyOne: an audit whose listings fail proves nothing, whichever
// of them it is: that of the boots, or that of a boot.
func TestFailedListingIsNotAnEmptyOne(t *testing.T) {
	w := newWorld(t, 2, someTime)
	fails := func(what string) {
		t.Helper()
		if err := w.follow.Audit(t.Context(), true); err == nil {
			t.Errorf("%s: the audit has succeeded", what)
		}
		if st := w.follow.Status(); !st.CompleteThrough.IsZero() || !st.FullAuditAt.IsZero() || st.AuditError == nil {
			t.Errorf("%s: %+v", what, st)
		}
		select {
		case <-w.follow.First():
			t.Errorf("%s: First is closed", what)
		default:
		}
	}
	w.fail("list")
	fails("boots")
	b := w.accept(false)
	w.fail("")
	w.onList = func() { w.onListed() }
	fails("a boot")
	w.fail("")
	w.tick(time.Second)
	w.must(w.follow.Audit(t.Context(), true))
	if !w.shows(b)() {
		t.Error("the batch is not shown when listings work again")
	}
	w.check("after failed listings")
}

// onListed lets the listing that is under way succeed, and those behind it fail.
func (w *world) onListed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onList = func() { w.fail("list") }
}

// TestFrontierAuditFindsTheNext: an audit from the frontier finds the batch right behind
// what is known, and one that fills the gap in front of it.
func TestFrontierAuditFindsTheNext(t *testing.T) {
	w := newWorld(t, 3, someTime)
	w.cfg.Back = 0
	w.restart()
	ms := someTime.Add(-time.Minute).UnixMilli()
	w.acceptAt(someBoot, 0, ms, ms+1)
	w.must(w.follow.Audit(t.Context(), true))
	w.acceptAt(someBoot, 4, ms+4, ms+5) // 2 and 3 are missing
	w.tick(time.Second)
	w.must(w.follow.Audit(t.Context(), false))
	w.check("behind a gap")
	w.acceptAt(someBoot, 2, ms+2, ms+3)
	w.tick(time.Second)
	w.must(w.follow.Audit(t.Context(), false))
	w.check("in the gap")
	if !w.shows(w.batches...)() {
		t.Error("not all batches are shown")
	}
	list, n := w.follow.WithGaps(10)
	if n != 0 || len(list) != 0 {
		t.Errorf("%d boots with gaps: %+v", n, list)
	}
}

// TestBatchesAtTheWindowsEdge: a batch with one sample in the window is shown, and so is one
// before it that blocks lack; one wholly before it is counted. A manifest that the
// store has had for longer than the window may be of samples within it.
func TestBatchesAtTheWindowsEdge(t *testing.T) {
	w := newWorld(t, 4, someTime)
	edge := someTime.Add(-history).UnixMilli()
	across := w.acceptAt(someBoot, 0, edge-60_000, edge)
	before := w.acceptAt(someBoot, 2, edge-120_000, edge-1)
	before.old = true
	needed := w.acceptAt(someBoot, 4, edge-50_000, edge-40_000)
	ahead := w.acceptAt(someBoot, 6, someTime.Add(12*time.Minute).UnixMilli()) // by an agent whose clock is ahead
	keep := func(id identity.Batch, minNS, maxNS int64) bool {
		return id == needed.manifest.Identity && minNS == needed.manifest.MinTime && maxNS == needed.manifest.MaxTime
	}
	w.live.SetCover(func(id identity.Batch, _ []timegrid.Hour) live.Held {
		if id == needed.manifest.Identity {
			return live.OnlyHere
		}
		return live.Published
	})
	var err error
	w.follow, err = New(w.cfg, Deps{Store: w, Live: w.live, History: history, Needed: keep, Log: telemetry.Discard().Log, Registry: prometheus.NewRegistry(), Now: w.now})
	w.must(err)
	w.must(w.follow.Audit(t.Context(), true))
	shown := w.shown()
	for name, c := range map[string]struct {
		b    *batch
		want bool
	}{"across": {across, true}, "before": {before, false}, "needed": {needed, true}, "ahead": {ahead, true}} {
		if got := w.visible(c.b, shown); got != c.want {
			t.Errorf("%s the edge: shown %v", name, got)
		}
	}
	if a := w.follow.Agents("", identity.Boot{}, 0); len(a) != 1 || a[0].Records != 7 || a[0].AcceptedThrough != 6 {
		t.Errorf("ledger %+v", a)
	}
	if got := w.follow.Status().First; got != before.manifest.MinTime {
		t.Errorf("samples begin at %d, want %d", got, before.manifest.MinTime)
	}

	// A node that starts ten minutes later: the store has had the manifests for longer
	// than the window, but not for so long that their samples must be before it.
	w.tick(history + 10*time.Minute)
	w.restart()
	w.must(w.follow.Audit(t.Context(), true))
	if !w.visible(ahead, w.shown()) {
		t.Error("a sample within the window is not shown, since its manifest is older than the window")
	}
	// Much later nothing of them is read but where the first begins.
	w.tick(history)
	w.restart()
	w.fail("raw-blobs/")
	w.must(w.follow.Audit(t.Context(), true))
	if got := w.follow.Status().First; got != across.manifest.MinTime {
		t.Errorf("samples begin at %d, want %d, by the boot's first batch", got, across.manifest.MinTime)
	}
	if a := w.follow.Agents("", identity.Boot{}, 0); len(a) != 1 || a[0].Records != 7 || a[0].AcceptedThrough != 6 {
		t.Errorf("ledger of old batches %+v", a)
	}
}

// TestUnreadableManifestsAreToldEverywhere: of a manifest that can't be read, or is that of
// another batch, the times are not known, so that every range may lack its samples.
func TestUnreadableManifestsAreToldEverywhere(t *testing.T) {
	w := newWorld(t, 5, someTime)
	ms := someTime.Add(-time.Minute).UnixMilli()
	broken, swapped := w.acceptAt(someBoot, 0, ms), w.acceptAt(someBoot, 1, ms+1)
	w.put(broken.key(), []byte("{"))
	w.put(swapped.key(), broken.manifest.Marshal())
	w.must(w.follow.Audit(t.Context(), true))
	for _, at := range []int64{0, ms, ms + 1e12} {
		list, more := w.follow.Status().Unreadable(at, at)
		if len(list) != 2 || more != 0 || slices.ContainsFunc(list, func(u Unread) bool { return u.Cause != CauseManifest }) {
			t.Errorf("at %d: %+v and %d more", at, list, more)
		}
	}
	if n := len(w.shown()); n != 0 {
		t.Errorf("%d records are shown", n)
	}
	if st := w.follow.Status(); st.First != minInt64 {
		t.Errorf("samples begin at %d, which is not known", st.First)
	}
}

// TestUnreadableAtItsEdges: an unreadable batch matters to ranges that meet its samples, at
// its first and its last millisecond too.
func TestUnreadableAtItsEdges(t *testing.T) {
	w := newWorld(t, 6, someTime)
	ms := someTime.Add(-time.Minute).UnixMilli()
	b := w.acceptAt(someBoot, 0, ms, ms+10)
	w.put(b.manifest.RawBlobKey, []byte("damaged"))
	w.must(w.follow.Audit(t.Context(), true))
	for _, c := range []struct {
		mint, maxt int64
		want       int
	}{{ms - 5, ms - 1, 0}, {ms - 5, ms, 1}, {ms + 3, ms + 4, 1}, {ms + 10, ms + 20, 1}, {ms + 11, ms + 20, 0}} {
		if list, _ := w.follow.Status().Unreadable(c.mint, c.maxt); len(list) != c.want {
			t.Errorf("[%d, %d]: %+v", c.mint-ms, c.maxt-ms, list)
		}
	}
	w.put(b.manifest.RawBlobKey, b.frame)
	w.tick(time.Second)
	w.must(w.follow.Audit(t.Context(), false)) // from the frontier: it lists the batch no more
	if list, _ := w.follow.Status().Unreadable(ms, ms); len(list) != 0 || !w.shows(b)() {
		t.Errorf("readable again: %+v", list)
	}
}

// TestUnreadBatchesAreBounded: beyond the bound unreadable batches are only counted, and
// every range is reported of them.
func TestUnreadBatchesAreBounded(t *testing.T) {
	w := newWorld(t, 7, someTime)
	for i := range uint64(maxUnread + 3) {
		id := identity.Batch{Agent: "a", Boot: "b", SeqStart: i, SeqEnd: i}
		w.follow.noteUnread(id.String(), Unread{Identity: id, Cause: CauseFrame, MinTime: 5e6, MaxTime: 5e6})
	}
	if list, more := w.follow.Status().Unreadable(6, 7); len(list) != 0 || more != 3 {
		t.Errorf("%d in another range, and %d more, want 3", len(list), more)
	}
	if list, more := w.follow.Status().Unreadable(5, 5); len(list) != maxUnread || more != 3 {
		t.Errorf("%d and %d more, want %d and 3", len(list), more, maxUnread)
	}
	if n := w.follow.Status().Unread; n != maxUnread+3 {
		t.Errorf("%d unreadable batches", n)
	}
}
