package blocks

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func (w *world) must(err error) {
	if err != nil {
		w.t.Helper()
		w.t.Fatal(err)
	}
}

func (w *world) poll() {
	w.t.Helper()
	if done, err := w.keeper.Poll(w.t.Context()); !done || err != nil {
		w.t.Fatalf("poll: %v, %v", done, err)
	}
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
	settled := func() bool {
		select {
		case <-w.keeper.FirstPollDone():
			return true
		default:
			return false
		}
	}
	for _, what := range []string{layout.RollupConfigKey, layout.AuthorityKey, "list", "list " + layout.ManifestsPrefix} {
		w.failing = what
		if done, err := w.keeper.Poll(t.Context()); done || err == nil || settled() {
			t.Errorf("%s fails: %v, %v, settled %v", what, done, err, settled())
		}
		if done, err := w.keeper.PollIntake(t.Context()); done || err != nil {
			t.Errorf("the intake before the blocks: %v, %v", done, err)
		}
	}
	w.failing = ""
	w.poll()
	if !settled() || w.keeper.Known() {
		t.Errorf("settled %v, known %v before the intake was read", settled(), w.keeper.Known())
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
	if _, err := w.keeper.Poll(t.Context()); err == nil {
		t.Error("a poll of blocks that can't be listed has succeeded")
	}
	if done, err := w.keeper.PollIntake(t.Context()); done || err == nil || w.keeper.Known() {
		t.Errorf("the intake can't be listed: %v, %v, known %v", done, err, w.keeper.Known())
	}
	w.failing = "list " + layout.IntakeShard(0)
	if done, err := w.keeper.PollIntake(t.Context()); done || err == nil || w.keeper.Known() {
		t.Errorf("the intake alone can't be listed: %v, %v, known %v", done, err, w.keeper.Known())
	}
	w.failing = ""
	w.poll()
	if !w.held(b) {
		t.Error("the block that holds the batch was not read by the next poll")
	}
	if done, err := w.keeper.PollIntake(t.Context()); !done || err != nil || !w.keeper.Known() {
		t.Errorf("the intake: %v, %v, known %v", done, err, w.keeper.Known())
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
	if q := w.keeper.Query(published.Limits{}); q.Span().Newest != w.keeper.newest(w.clock) {
		t.Errorf("a query reads through %s", q.Span().Newest)
	}
}

// TestIntakeIsLookedThrough: of the intake, batches before the window that no block holds are
// taken; a failure to take one is made up for, and a damaged segment leaves it unknown.
func TestIntakeIsLookedThrough(t *testing.T) {
	w := newWorld(t, 5)
	h, ns := w.in(8)
	edge := w.clock.Add(-w.keeper.d.Window).UnixNano()
	late, held, inside, across := w.acceptAt("a0", ns), w.acceptAt("a0", ns+1e9), w.acceptAt("a0", edge), w.acceptAt("a0", edge-60e9, edge)
	before := w.acceptAt("a0", edge-120e9, edge-1)
	w.published(h, held)
	var entries []accepted.Batch
	for _, b := range []publishedtest.Batch{held, inside, across, late, before} {
		id, ts := b.Frame.Identity, b.Frame.Groups[0].Timestamps
		entries = append(entries, accept.Manifest{Identity: id, FrameSHA256: identity.Sum([]byte(id.String())), FrameBytes: 1, RawBlobKey: "k",
			AcceptedAt: b.AcceptedAt, MinTime: ts[0], MaxTime: ts[len(ts)-1]}.Batch())
	}
	s := shard.Of("a0", 2)
	w.must(intake.NewWriter(w.store, "0a1b", 2).Write(t.Context(), s, entries))
	var taken []string
	gone := errors.New("the store is gone")
	w.keeper.SetTake(func(_ context.Context, key string) error {
		taken = append(taken, key)
		return gone
	})
	if done, err := w.keeper.PollIntake(t.Context()); done || !errors.Is(err, gone) || w.keeper.Known() {
		t.Errorf("a batch can't be taken: %v, %v, known %v", done, err, w.keeper.Known())
	}
	gone = nil
	if done, err := w.keeper.PollIntake(t.Context()); !done || err != nil || !w.keeper.Known() {
		t.Errorf("%v, %v, known %v", done, err, w.keeper.Known())
	}
	again := layout.Accepted(late.Frame.Identity)
	if want := []string{again, again, layout.Accepted(before.Frame.Identity)}; !slices.Equal(taken, want) {
		t.Errorf("taken %v, want %v", taken, want)
	}
	w.put(layout.IntakeSegment(s, "0a1b", 1), []byte("{"))
	if done, err := w.keeper.PollIntake(t.Context()); !done || err != nil || w.keeper.Known() {
		t.Errorf("a damaged segment: %v, %v, known %v", done, err, w.keeper.Known())
	}
}
