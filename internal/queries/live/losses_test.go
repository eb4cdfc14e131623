package live_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// lost opens a snapshot at now and asks for losses in [mint, maxt].
func lost(s *live.Store, now time.Time, mint, maxt int64) (live.Span, bool) {
	snap := s.Snapshot(now)
	defer snap.Close()
	return snap.Lost(mint, maxt)
}

// TestLossOutlivesTheWindow: a batch that was evicted inside the window still marks answers
// after its samples have left it, until a block holds it. At its very edges, and not beyond.
func TestLossOutlivesTheWindow(t *testing.T) {
	s := newStore(t, live.Config{History: time.Hour, MaxBytes: 6000})
	kind := live.OnlyHere
	s.SetCover(func(identity.Batch, []timegrid.Hour) live.Held { return kind })
	for i := range 40 {
		insert(t, s, one(t, uint64(1+2*i), "x", start.Add(time.Duration(i)*time.Second)), start, live.Inserted)
	}
	snap := s.Snapshot(start)
	defer snap.Close()
	first, last := start.UnixMilli(), start.Add(time.Duration(39-s.Stats().Batches)*time.Second).UnixMilli()
	if last <= first {
		t.Fatal("too little was evicted")
	}
	later := start.Add(5 * time.Hour)
	s.Expire(later)
	for _, c := range []struct {
		mint, maxt int64
		want       bool
	}{
		{before, after, true}, {last, after, true}, {last, last, true}, {before, first, true}, {first, first, true},
		{last + 1, after, false}, {before, first - 1, false},
	} {
		for name, now := range map[string]time.Time{"in the window": start, "hours later": later} {
			if got, ok := lost(s, now, c.mint, c.maxt); ok != c.want || ok && (got.Min != max(c.mint, first) || got.Max != min(c.maxt, last)) {
				t.Errorf("%s: [%d, %d]: %v, %v, want %v", name, c.mint-first, c.maxt-first, got, ok, c.want)
			}
		}
	}
	kind = live.Published
	s.Expire(later)
	if got, ok := lost(s, later, before, after); ok {
		t.Errorf("%v is lost although a block holds it", got)
	}
	// What was opened before may look at blocks that were seen before.
	if _, ok := snap.Lost(before, after); !ok {
		t.Error("a snapshot forgot a loss")
	}
}

// TestLossesAreNeverForgotten: whatever the bounds of that knowledge, each evicted batch that
// no block holds is in a span, and one that a block holds is in none once all were found.
func TestLossesAreNeverForgotten(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		published := map[identity.Batch]bool{}
		s := newStore(t, live.Config{History: time.Hour, MaxBytes: 16_000})
		s.SetCover(func(id identity.Batch, _ []timegrid.Hour) live.Held {
			if published[id] {
				return live.Published
			}
			return live.OnlyHere
		})
		next := map[string]uint64{}
		var all []*modelBatch
		clock := start
		for range 150 {
			b := identity.Boot{Agent: fmt.Sprint(rnd.IntN(3)), Boot: "b"}
			clock = clock.Add(time.Duration(rnd.IntN(300)) * time.Second)
			if rnd.IntN(4) == 0 {
				next[b.Agent] += uint64(rnd.IntN(3))
			}
			a := build(t, b, next[b.Agent]+1, clock.UnixNano(), "x", 1+rnd.IntN(3), []int64{clock.UnixNano(), clock.Add(time.Duration(rnd.IntN(100))*time.Hour).UnixNano() + 1},
				func(int) float64 { return 1 })
			next[b.Agent] = a.Identity.SeqEnd
			insert(t, s, a, clock, live.Inserted)
			all = append(all, a)
			if rnd.IntN(3) == 0 {
				published[all[rnd.IntN(len(all))].Identity] = true
			}
			if rnd.IntN(10) == 0 {
				s.Expire(clock)
			}
		}
		here := func(a *modelBatch) bool {
			snap := s.Snapshot(clock)
			defer snap.Close()
			for _, r := range a.recs {
				found := false
				for _, by := range read(t, snap, r.ns/1e6, r.ns/1e6) {
					found = found || len(by) > 0
				}
				if !found {
					return false
				}
			}
			return true
		}
		missing := 0
		for _, a := range all {
			if published[a.Identity] || here(a) {
				continue
			}
			missing++
			for _, r := range a.recs {
				if _, ok := lost(s, clock, r.ns/1e6, r.ns/1e6); !ok {
					t.Fatalf("seed %d: %s at %d is missing and not reported", seed, a.Identity, r.ns)
				}
			}
		}
		if missing == 0 {
			t.Fatalf("seed %d: nothing is missing", seed)
		}
		for _, a := range all {
			published[a.Identity] = true
		}
		s.Expire(clock)
		if got, ok := lost(s, clock, before, after); ok {
			t.Errorf("seed %d: %v is lost although blocks hold everything", seed, got)
		}
	}
}

// TestLossBetweenDistantSamples: a batch with samples now and in a year has lost nothing
// between them.
func TestLossBetweenDistantSamples(t *testing.T) {
	s := newStore(t, live.Config{MaxSeries: 1, Future: time.Hour})
	year := start.Add(365 * 24 * time.Hour)
	a := build(t, boot, 1, 1, "x", 1, []int64{start.UnixNano(), year.UnixNano()}, func(int) float64 { return 1 })
	insert(t, s, a, start, live.Inserted)
	insert(t, s, one(t, 10, "y", start), start, live.Inserted) // both go: two series
	if _, ok := lost(s, start, start.Add(2*time.Hour).UnixMilli(), year.Add(-2*time.Hour).UnixMilli()); ok {
		t.Error("what lies between is marked")
	}
	for _, at := range []time.Time{start, year} {
		if _, ok := lost(s, start, at.UnixMilli(), at.UnixMilli()); !ok {
			t.Errorf("%s is not marked", at)
		}
	}
}

// TestLossOfDistantBatches: a range with several losses is reported from the first to the last.
func TestLossOfDistantBatches(t *testing.T) {
	s := newStore(t, live.Config{MaxSeries: 2})
	times := []time.Time{start, start.Add(2 * time.Hour), start.Add(4 * time.Hour)}
	for i, at := range append(times, start.Add(6*time.Hour)) {
		insert(t, s, one(t, uint64(1+10*i), fmt.Sprint(i), at), start, live.Inserted)
	}
	ms := func(i int) int64 { return times[i].UnixMilli() }
	for _, c := range []struct{ mint, maxt, first, last int64 }{
		{before, after, ms(0), ms(2)}, {ms(0) + 1, after, ms(1), ms(2)}, {before, ms(2) - 1, ms(0), ms(1)}, {ms(1), ms(1), ms(1), ms(1)},
	} {
		if got, ok := lost(s, start, c.mint, c.maxt); !ok || got != (live.Span{Min: c.first, Max: c.last}) {
			t.Errorf("[%d, %d]: %v, %v, want [%d, %d]", c.mint, c.maxt, got, ok, c.first, c.last)
		}
	}
}

// TestLossStaysWhileNothingIsKnown: that nothing is known of blocks is no reason to
// forget a loss; that one of them holds the batch is.
func TestLossStaysWhileNothingIsKnown(t *testing.T) {
	s := newStore(t, live.Config{MaxSeries: 2})
	kind := live.Unknown
	s.SetCover(func(identity.Batch, []timegrid.Hour) live.Held { return kind })
	for i := range 2 {
		insert(t, s, one(t, uint64(1+10*i), fmt.Sprint(i), start.Add(time.Duration(i)*time.Second)), start, live.Inserted)
	}
	for _, c := range []struct {
		kind live.Held
		want bool
	}{{live.Unknown, true}, {live.OnlyHere, true}, {live.Published, false}} {
		kind = c.kind
		s.Expire(start)
		if _, ok := lost(s, start, before, after); ok != c.want {
			t.Errorf("%d: lost %v, want %v", c.kind, ok, c.want)
		}
	}
}
