package follow

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
)

// recordHelp writes the record of helps with one text for the metric of all batches.
func (w *world) recordHelp(text string, at time.Time) {
	w.put(layout.RollupHelpsKey, helps.Record{AuthorityID: "test", Helps: []helps.Help{
		{Name: "m", Text: text, Agent: "x", Time: at.UnixNano()}, {Name: "of_blocks_alone", Text: "Nobody sends it now.", Agent: "x", Time: at.UnixNano()}}}.Marshal())
}

// help is what the node's metadata says of the metric; "no metric" where it has none, or others beside it.
func (w *world) help() string {
	snap := w.live.Snapshot(w.now())
	defer snap.Close()
	list, err := snap.Metadata(context.Background(), "")
	w.must(err)
	if len(list) != 1 || list[0].Name != "m" {
		return "no metric"
	}
	return list[0].Help
}

func (w *world) helpReads(outcome string) float64 {
	return testutil.ToFloat64(w.follow.m.helps.WithLabelValues(outcome))
}

// TestANodeThatStartsHasTheHelpsOfBlocks: of frames that it does not read, since blocks have them. They stay when nothing
// has changed, and cost one request.
func TestANodeThatStartsHasTheHelpsOfBlocks(t *testing.T) {
	w := newWorld(t, 31, someTime)
	ms := someTime.Add(-time.Minute).UnixMilli()
	rolled := w.acceptAt(someBoot, 0, ms)
	w.must(w.follow.CatchUp(t.Context()))
	if n := w.helpReads("none") + w.helpReads("ok"); n != 0 {
		t.Errorf("%v reads where there are no blocks", n)
	}
	// The same node finds blocks, and begins again.
	w.blocks.shards = 2
	w.recordHelp("What m means.", someTime)
	w.progressed()
	if got := w.help(); got != "What m means." || w.helpReads("ok") != 1 {
		t.Errorf("%q after %v reads", got, w.helpReads("ok"))
	}
	// One that starts has it as soon as somebody sends the metric, and not before.
	w.must(w.store.Delete(t.Context(), rolled.manifest.RawBlobKey)) // nobody needs it
	w.restart()
	w.must(w.follow.CatchUp(t.Context()))
	if got := w.help(); got != "no metric" {
		t.Errorf("%q before there is a sample", got)
	}
	w.acceptAt(someBoot, 1, ms+1)
	for range 3 {
		w.must(w.follow.CatchUp(t.Context()))
	}
	if got := w.help(); got != "What m means." || w.helpReads("ok") != 1 || w.follow.Status().Unread != 0 {
		t.Errorf("%q after %v reads, %d unread", got, w.helpReads("ok"), w.follow.Status().Unread)
	}
	w.live.Expire(someTime.Add(2 * history)) // the metric leaves memory, and comes back
	w.tick(2 * history)
	w.acceptAt(someBoot, 2, w.now().UnixMilli())
	w.must(w.follow.CatchUp(t.Context()))
	if got := w.help(); got != "What m means." {
		t.Errorf("%q when the metric came back", got)
	}
}

// TestHelpsAreReadAfterProgress: the record has what was published when the progress was written. Read before, it may lack
// what the progress passes over.
func TestHelpsAreReadAfterProgress(t *testing.T) {
	w := newWorld(t, 32, someTime)
	w.blocks.shards = 2
	ms := someTime.Add(-time.Minute).UnixMilli()
	w.acceptAt(someBoot, 0, ms)
	w.progressed()
	w.acceptAt(someBoot, 1, ms+1)
	w.restart()
	// Listing the records of progress comes first of what a start asks; the workers publish meanwhile.
	w.onList = func() { w.recordHelp("What m means.", someTime) }
	w.must(w.follow.CatchUp(t.Context()))
	if got := w.help(); got != "What m means." {
		t.Errorf("%q", got)
	}
}

// TestHelpsThatCantBeReadCostNoPoll: a damaged record, one of a newer release or of another authority costs helps; a store that does not
// answer is asked again.
func TestHelpsThatCantBeReadCostNoPoll(t *testing.T) {
	for _, body := range []string{"{", `{"schema":"lightmetrics.metric_helps.v2"}`, string(helps.Record{AuthorityID: "other"}.Marshal())} {
		w := newWorld(t, 33, someTime)
		w.blocks.shards = 2
		w.progressed()
		w.put(layout.RollupHelpsKey, []byte(body))
		w.acceptAt(someBoot, 0, someTime.UnixMilli())
		w.restart()
		for range 3 {
			w.must(w.follow.CatchUp(t.Context()))
			w.tick(time.Hour / 2)
		}
		if got := w.help(); got != "" || w.helpReads("unusable") != 1 {
			t.Errorf("%s: %q, unusable %v times", body, got, w.helpReads("unusable"))
		}
	}
	w := newWorld(t, 34, someTime)
	w.blocks.shards = 2
	w.progressed()
	w.recordHelp("What m means.", someTime)
	w.acceptAt(someBoot, 0, someTime.UnixMilli())
	w.restart()
	w.fail(layout.RollupHelpsKey)
	for range 3 {
		w.must(w.follow.CatchUp(t.Context()))
	}
	if got := w.help(); got != "" || w.helpReads("failed") != 1 || w.follow.Status().CompleteThrough.IsZero() {
		t.Errorf("%q, failed %v times, %+v", got, w.helpReads("failed"), w.follow.Status())
	}
	w.fail("")
	w.tick(helpsRetry)
	w.must(w.follow.CatchUp(t.Context()))
	if got := w.help(); got != "What m means." {
		t.Errorf("%q", got)
	}
}
