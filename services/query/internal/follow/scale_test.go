package follow

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/queries/missing"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// counting counts the requests of a node.
type counting struct {
	objstore.Reader
	n atomic.Int64
}

func (c *counting) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	c.n.Add(1)
	return c.Reader.Get(ctx, key, o)
}

func (c *counting) Head(ctx context.Context, key string) (objstore.Info, error) {
	c.n.Add(1)
	return c.Reader.Head(ctx, key)
}

func (c *counting) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	c.n.Add(1)
	return c.Reader.List(ctx, o)
}

// TestAStartReadsFilesNotBatches: a node that starts over batches that are in blocks reads the files of the journal that
// have them, each once, and nothing for a batch; and it holds none of them in memory.
func TestAStartReadsFilesNotBatches(t *testing.T) {
	requests := func(n int) int64 {
		w := newWorld(t, 1, someTime)
		old := someTime.Add(-history - 5*time.Hour).UnixNano()
		var entries []journal.Entry
		for i := range uint64(n) {
			id := identity.Batch{Agent: fmt.Sprint("agent-", i%50), Boot: "b", SeqStart: i / 50, SeqEnd: i / 50}
			entries = append(entries, journal.Entry{ID: id, Outcome: journal.Accepted, SHA256: identity.Sum(fmt.Append(nil, i)), Bytes: 100,
				At: old, MinTime: old, MaxTime: old})
		}
		w.must(journaltest.Append(t.Context(), w.store, "test", entries...))
		head, err := journaltest.Fold(t.Context(), w.store, "test")
		w.must(err)
		for range 20 {
			w.accept(false)
		}
		store := &counting{Reader: w}
		w.follow.d.Store = store
		w.must(w.follow.CatchUp(t.Context()))
		if st := w.live.Stats(); st.Batches != 20 || w.follow.Status().Boots < 50 || len(w.follow.queue.byID) != 0 {
			t.Fatalf("%d batches in memory, %d boots", st.Batches, w.follow.Status().Boots)
		}
		files := int64(len(head.Files))
		if files == 0 || len(head.Lists) > 0 {
			t.Fatalf("%d files, %d lists", files, len(head.Lists))
		}
		return store.n.Load() - files
	}
	few := requests(1000)
	for _, n := range []int{4000, 16_000, 64_000} {
		if many := requests(n); many != few {
			t.Errorf("%d requests beside the files over %d batches, %d over 1,000", many, n, few)
		}
	}
	if few > 80 {
		t.Errorf("%d requests for two runs and 20 frames", few)
	}
}

// TestSeenWithinTwoPolls: without a watch a batch is seen by the first poll that begins after its answer, and so before
// a second one has ended, in whatever moment of a poll it was answered.
func TestSeenWithinTwoPolls(t *testing.T) {
	for seed := range uint64(40) {
		w := newWorld(t, seed, someTime)
		w.must(w.follow.CatchUp(t.Context()))
		var during *batch
		if seed%2 == 0 {
			w.onList = func() { during = w.accept(false) } // in the middle of a poll
		} else {
			during = w.accept(false)
		}
		w.must(w.follow.CatchUp(t.Context()))
		if first := w.visible(during, w.shown()); !first && seed%2 == 1 {
			t.Errorf("seed %d: answered before the poll, and not seen by it", seed)
		}
		w.must(w.follow.CatchUp(t.Context()))
		if !w.visible(during, w.shown()) {
			t.Errorf("seed %d: not seen by the second poll", seed)
		}
	}
}

// TestAnswersDoNotCompareAllBoots: what every answer says of shared agent ids and of gaps costs the same however many
// agents have restarted and have gaps.
func TestAnswersDoNotCompareAllBoots(t *testing.T) {
	cost := func(agents int) [2]float64 {
		w := newWorld(t, 1, someTime)
		var entries []journal.Entry
		at := someTime.UnixNano()
		for i := range agents {
			for _, boot := range []string{"before", "after"} {
				for seq := range uint64(2) {
					id := identity.Batch{Agent: fmt.Sprintf("agent-%06d", i), Boot: boot, SeqStart: 10 * seq, SeqEnd: 10 * seq}
					entries = append(entries, journal.Entry{ID: id, Outcome: journal.Accepted, SHA256: identity.Sum([]byte(id.String())), Bytes: 1, At: at, MinTime: at - int64(6*time.Minute), MaxTime: at})
				}
			}
		}
		w.follow.book.apply(entries)
		if n := len(w.follow.SharedIDs()); n != agents {
			t.Fatalf("%d of %d agents have two boots at once", n, agents)
		}
		if list, n := w.follow.WithGaps(10); len(list) != 10 || n != 2*agents {
			t.Fatalf("%d of %d boots with gaps", len(list), n)
		}
		return [2]float64{testing.AllocsPerRun(20, func() { w.follow.WithGaps(10) }), testing.AllocsPerRun(20, func() { w.follow.SharedIDs() })}
	}
	few := cost(100)
	for _, n := range []int{400, 1600} {
		if many := cost(n); many != few {
			t.Errorf("%v allocations with %d agents, %v with 100", many, n, few)
		}
	}
}

// TestWhatIsStillFetchedIsCounted: batches whose frames the store does not give are known, and counted until they are
// there.
func TestWhatIsStillFetchedIsCounted(t *testing.T) {
	w := newWorld(t, 1, someTime)
	w.blocks.shards = 4
	for range 5 {
		w.accept(false)
	}
	all := missing.Hours{From: math.MinInt64, To: math.MaxInt64}
	w.fail("raw-blobs/")
	if err := w.follow.CatchUp(t.Context()); err == nil {
		t.Fatal("no frame could be read, and there is no error")
	}
	if s := w.follow.Waiting(all); s.Batches != 5 || len(s.Hours) == 0 || len(s.Shards) == 0 {
		t.Errorf("5 batches wait: %s", s)
	}
	w.fail("")
	w.must(w.follow.CatchUp(t.Context()))
	if s := w.follow.Waiting(all); !s.IsZero() {
		t.Errorf("nothing waits: %s", s)
	}
}
