package blocks

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

func (w *world) must(err error) {
	if err != nil {
		w.t.Helper()
		w.t.Fatal(err)
	}
}

func (w *world) poll() {
	w.t.Helper()
	w.must(w.keeper.Poll(w.t.Context()))
}

// published makes a set of the hour hold these batches.
func (w *world) published(h timegrid.Hour, batches ...publishedtest.Batch) {
	w.t.Helper()
	w.gen[h]++
	_, err := w.publish.Publish(w.t.Context(), h, w.gen[h], batches, timegrid.Raw)
	w.must(err)
}

// held is what Held says of a batch in all hours of its samples.
func (w *world) held(b publishedtest.Batch) bool {
	held, known := w.keeper.Held(b.Frame.Identity, publishedtest.Hours([]publishedtest.Batch{b}))
	if !known {
		w.t.Helper()
		w.t.Error("that there are blocks is not known")
	}
	return held
}

// in is a time in the hour that begins so many hours before that of the clock.
func (w *world) in(before int) (timegrid.Hour, int64) {
	h := timegrid.HourOf(w.clock.UnixMilli()) - timegrid.Hour(before)
	return h, h.Start().Add(10 * time.Minute).UnixNano()
}

// TestFailedReadsAreNotEmptyOnes: where the store does not answer it is not known whether
// there are blocks, which ones an hour has, or which batches are in none.
func TestFailedReadsAreNotEmptyOnes(t *testing.T) {
	w := newWorld(t, 1)
	w.restart()
	polled := func() bool {
		select {
		case <-w.keeper.FirstPollDone():
			return true
		default:
			return false
		}
	}
	for _, what := range []string{layout.RollupConfigKey, layout.AuthorityKey, "list", "list " + layout.ManifestsPrefix} {
		w.failing = what
		if err := w.keeper.Poll(t.Context()); err == nil || polled() {
			t.Errorf("%s fails: %v, polled %v", what, err, polled())
		}
	}
	w.failing = ""
	w.poll()
	if !polled() {
		t.Error("the blocks were read, and that is not known")
	}

	h, ns := w.in(8)
	b := w.acceptAt("a0", ns)
	w.published(h, b)
	w.failing = "list"
	if _, err := w.keeper.View(t.Context(), h, h); err == nil {
		t.Error("an hour whose listing failed was read")
	}
	if w.held(b) {
		t.Error("held by what could not be listed")
	}
	// The batch waits for its hour; a poll that fails makes it wait for the next.
	if missing, err := w.keeper.Missing(t.Context(), b.Frame.Identity, ns, ns); err == nil {
		t.Errorf("missing: %v, by blocks that can't be listed", missing)
	}
	if err := w.keeper.Poll(t.Context()); err == nil {
		t.Error("a poll of blocks that can't be listed has succeeded")
	}
	w.failing = ""
	w.poll()
	if !w.held(b) {
		t.Error("the block that holds the batch was not read by the next poll")
	}
}

// TestHoursThatFailAreWantedStill: an hour that a late batch waits for is read by a later
// poll when one fails.
func TestHoursThatFailAreWantedStill(t *testing.T) {
	w := newWorld(t, 2)
	h, ns := w.in(8)
	b := w.acceptAt("a0", ns)
	w.published(h, b)
	if w.held(b) {
		t.Fatal("held before the hour was read")
	}
	w.failing = "list"
	if err := w.keeper.refreshWanted(t.Context(), w.clock); err == nil {
		t.Error("the hour could not be read")
	}
	w.failing = ""
	w.must(w.keeper.refreshWanted(t.Context(), w.clock))
	if _, ok := w.keeper.state.Load().read[h]; !ok || !w.held(b) {
		t.Error("the hour was not read again")
	}
}

// TestHeldInAllItsHours: a batch is held when blocks of all hours that it has samples in hold
// it; one of so many hours that they are not checked may always be needed.
func TestHeldInAllItsHours(t *testing.T) {
	w := newWorld(t, 3)
	first, ns := w.in(9)
	second, later := w.in(8)
	b, other := w.acceptAt("a0", ns, later), w.acceptAt("a0", ns+1e9, later+1e9)
	needed := func(b publishedtest.Batch) bool {
		hours := publishedtest.Hours([]publishedtest.Batch{b})
		return w.keeper.Needed(b.Frame.Identity, hours[0].EndMS()*1e6, hours[len(hours)-1].EndMS()*1e6)
	}
	check := func(what string, want bool) {
		t.Helper()
		w.held(b) // asks for hours that were not read
		w.clock = w.clock.Add(2 * time.Minute)
		w.poll()
		if w.held(b) != want || needed(b) == want {
			t.Errorf("%s: held %v, needed %v", what, w.held(b), needed(b))
		}
	}
	check("no block", false)
	w.published(first, other)
	w.published(second, other)
	check("blocks of another batch", false)
	w.published(first, other, b)
	check("one of two hours", false)
	w.published(second, other, b)
	check("both hours", true)
	if id := b.Frame.Identity; !w.keeper.Needed(id, ns-int64(maxHours)*3600e9, later) {
		t.Error("a batch of a hundred hours is not needed")
	}
}

// TestHoursAreReadAgain: older hours when they were read too long ago, recent ones by polls.
func TestHoursAreReadAgain(t *testing.T) {
	w := newWorld(t, 4)
	old, ns := w.in(8)
	recent, now := w.in(0)
	a, b := w.acceptAt("a0", ns), w.acceptAt("a0", now)
	sets := func() int {
		v, err := w.keeper.View(t.Context(), old, recent)
		w.must(err)
		return len(v.Blocks(old, timegrid.Raw)) + 10*len(v.Blocks(recent, timegrid.Raw))
	}
	if n := sets(); n != 0 {
		t.Fatalf("%d blocks", n)
	}
	w.published(old, a)
	w.published(recent, b)
	w.clock = w.clock.Add(w.keeper.cfg.TTL - time.Nanosecond)
	if n := sets(); n != 0 {
		t.Errorf("%d: read again before its time", n)
	}
	w.clock = w.clock.Add(time.Nanosecond)
	if n := sets(); n%10 != 1 {
		t.Errorf("%d: the older hour was not read again", n)
	}
	w.poll()
	if n := sets(); n != 11 {
		t.Errorf("%d: the recent hour was not read by the poll", n)
	}
	// Nobody asks any more: the older hour is dropped, those of the window stay.
	w.clock = w.clock.Add(idle)
	w.poll()
	if s := w.keeper.state.Load(); len(s.view.Blocks(old, timegrid.Raw)) != 0 || len(s.view.Blocks(recent, timegrid.Raw)) != 1 {
		t.Error("not only what is recent is kept")
	}
	if q := w.keeper.Query(published.Limits{}); q.Span().Newest != recent+2 {
		t.Errorf("a query reads through %s", q.Span().Newest)
	}
}

// TestMissingReadsTheHours: whether blocks hold a batch is known only when its hours were read; who may wait has
// them read.
func TestMissingReadsTheHours(t *testing.T) {
	w := newWorld(t, 5)
	h, ns := w.in(8)
	late, held := w.acceptAt("a0", ns), w.acceptAt("a0", ns+1e9)
	w.published(h, held)
	for _, c := range []struct {
		b    publishedtest.Batch
		want bool
	}{{held, false}, {late, true}, {held, false}} {
		ts := c.b.Frame.Groups[0].Timestamps
		got, err := w.keeper.Missing(t.Context(), c.b.Frame.Identity, ts[0], ts[len(ts)-1])
		if w.must(err); got != c.want {
			t.Errorf("missing %v, want %v", got, c.want)
		}
	}
	if missing, err := w.keeper.Missing(t.Context(), held.Frame.Identity, ns-int64(maxHours)*3600e9, ns); !missing || err != nil {
		t.Errorf("a batch of a hundred hours: %v, %v", missing, err)
	}
}

// TestRenewReadsOlderHoursAgain: what is read from then on is as new as the call, also of hours whose age would do.
func TestRenewReadsOlderHoursAgain(t *testing.T) {
	w := newWorld(t, 8)
	h, ns := w.in(8)
	b := w.acceptAt("a0", ns)
	_, err := w.keeper.View(t.Context(), h, h)
	w.must(err)
	w.published(h, b)
	w.must(w.keeper.Renew(t.Context()))
	missing, err := w.keeper.Missing(t.Context(), b.Frame.Identity, ns, ns)
	if w.must(err); missing {
		t.Error("the block was there when the hours were renewed, and is not seen")
	}
	w.failing = "list"
	if err := w.keeper.Renew(t.Context()); err == nil {
		t.Error("blocks that can't be listed were renewed")
	}
}

// TestHoursAheadAreRead: blocks of hours after now are read by polls, by queries to a bound, and answers that
// need later ones are marked.
func TestHoursAheadAreRead(t *testing.T) {
	w := newWorld(t, 6)
	soon, soonNS := w.in(-3)
	last, lastNS := w.in(-1 - ahead)
	far, farNS := w.in(-2 - ahead)
	newest := func() timegrid.Hour { return w.keeper.Query(published.Limits{}).Span().Newest }
	now, _ := w.in(0)
	if newest() != now+1 {
		t.Errorf("without blocks a query reads through %s", newest())
	}
	a, b, c := w.acceptAt("a0", soonNS), w.acceptAt("a0", lastNS), w.acceptAt("a0", farNS)
	w.published(soon, a)
	if w.held(a) {
		t.Error("held by what was not read")
	}
	w.poll()
	if !w.held(a) || newest() != soon || w.keeper.Ahead(far) {
		t.Errorf("held %v, through %s, more ahead %v", w.held(a), newest(), w.keeper.Ahead(far))
	}
	w.published(last, b)
	w.poll()
	if !w.held(b) || newest() != last || w.keeper.Ahead(far) {
		t.Errorf("held %v, through %s, more ahead %v", w.held(b), newest(), w.keeper.Ahead(far))
	}
	w.published(far, c)
	w.poll()
	if newest() != last || !w.keeper.Ahead(far) || w.keeper.Ahead(far-1) {
		t.Errorf("through %s, more ahead %v", newest(), w.keeper.Ahead(far))
	}
}

// TestBlocksThatComeLaterWaitForMemory: where there were no blocks, batches before the window were passed over. Queries
// read blocks that are found later only when memory has what these lack.
func TestBlocksThatComeLaterWaitForMemory(t *testing.T) {
	w := newWorld(t, 7)
	w.restart()
	w.must(w.store.Delete(t.Context(), layout.RollupConfigKey))
	w.poll()
	if w.keeper.Shards() != 0 || w.keeper.Query(published.Limits{}) != nil {
		t.Error("there are no blocks, and queries read them")
	}
	w.must(shards.Ensure(t.Context(), w.store, 2))
	w.poll()
	if w.keeper.Shards() != 2 || w.keeper.Query(published.Limits{}) != nil {
		t.Errorf("%d shards, and queries read them at once", w.keeper.Shards())
	}
	w.keeper.Serve()
	if w.keeper.Query(published.Limits{}) == nil {
		t.Error("queries do not read blocks")
	}
}
