package live_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var boot = identity.Boot{Agent: "a", Boot: "b"}

func one(t testing.TB, seq uint64, set string, at time.Time) *modelBatch {
	return build(t, boot, seq, at.UnixNano(), set, 2, []int64{at.UnixNano()}, func(k int) float64 { return float64(seq) + float64(k) })
}

func insert(t testing.TB, s *live.Store, a *modelBatch, now time.Time, want live.Outcome) {
	t.Helper()
	if out, err := s.Insert(a.Batch, a.batch, now); err != nil || out != want {
		t.Fatalf("insert %s: %v, %v", a.Identity, out, err)
	}
}

func TestWindowMovesOn(t *testing.T) {
	s := newStore(t, live.Config{History: time.Hour})
	for i := range 200 {
		at := start.Add(time.Duration(i) * time.Minute)
		insert(t, s, one(t, uint64(1+2*i), fmt.Sprint(i/50), at), at, live.Inserted)
	}
	now := start.Add(199 * time.Minute)
	st := s.Stats()
	if st.Batches != 61 || st.Series != 4 || st.Shapes != 2 || st.Placeholders != 0 {
		t.Errorf("kept %+v", st)
	}
	snap := s.Snapshot(now)
	defer snap.Close()
	if got := snap.From; got != now.Add(-time.Hour).UnixMilli() {
		t.Errorf("from %d", got)
	}
	vs, err := snap.LabelValues(t.Context(), "set", before, after)
	if err != nil || fmt.Sprint(vs) != "[2 3]" {
		t.Errorf("values %v, %v", vs, err)
	}
	insert(t, s, one(t, 1000, "late", now.Add(-2*time.Hour)), now, live.Expired)
	if s.Known(one(t, 1000, "late", now).Identity) {
		t.Error("an expired batch is known")
	}
	s.Expire(now.Add(2 * time.Hour))
	if st := s.Stats(); st.Batches != 61 && st.Batches != 0 {
		t.Errorf("kept %+v", st)
	}
	if n := len(read(t, snap, before, after)); n != 4 {
		t.Errorf("the open snapshot has %d series, want 4", n)
	}
	snap.Close()
	if st := s.Stats(); st.Series != 0 || st.Shapes != 0 || st.Bytes != 0 || st.Samples != 0 {
		t.Errorf("an empty store has %+v", st)
	}
}

// TestLastOfItsShape: a snapshot sees a batch that leaves the window in the very next version,
// although nothing else has its series; when it is closed, nothing is left.
func TestLastOfItsShape(t *testing.T) {
	s := newStore(t, live.Config{History: time.Hour})
	insert(t, s, one(t, 1, "x", start), start, live.Inserted)
	snap := s.Snapshot(start)
	s.Expire(start.Add(2 * time.Hour))
	if got := read(t, snap, before, after); len(got) != 2 {
		t.Errorf("the open snapshot has %d series, want 2", len(got))
	}
	snap.Close()
	if st := s.Stats(); st.Series != 0 || st.Shapes != 0 || st.Bytes != 0 {
		t.Errorf("an empty store has %+v", st)
	}
}

func TestMemoryBoundEvictsTheOldest(t *testing.T) {
	s := newStore(t, live.Config{MaxBytes: 128 << 10})
	for i := range 500 {
		insert(t, s, one(t, uint64(1+2*i), "x", start.Add(time.Duration(i)*time.Second)), start, live.Inserted)
	}
	st := s.Stats()
	if st.Bytes > 128<<10 || st.Batches == 0 || st.Batches >= 500 {
		t.Fatalf("kept %+v", st)
	}
	snap := s.Snapshot(start)
	defer snap.Close()
	lost := start.Add(time.Duration(499-st.Batches) * time.Second).UnixMilli()
	if got, ok := snap.Lost(before, after); !ok || got != (live.Span{Min: start.UnixMilli(), Max: lost}) {
		t.Errorf("lost %v, %v, want through %d", got, ok, lost)
	}
	for name, by := range read(t, snap, before, after) {
		if len(by) != st.Batches {
			t.Errorf("%s has %d samples of %d batches", name, len(by), st.Batches)
		}
	}
	if !s.Known(one(t, uint64(1+2*(499-st.Batches)), "x", start).Identity) {
		t.Error("an evicted identity is forgotten while there is room")
	}
}

func TestSeriesBound(t *testing.T) {
	s := newStore(t, live.Config{MaxSeries: 10})
	for i := range 20 {
		insert(t, s, one(t, uint64(1+2*i), fmt.Sprint(i), start.Add(time.Duration(i)*time.Second)), start, live.Inserted)
	}
	if st := s.Stats(); st.Series > 10 || st.Batches != 5 {
		t.Errorf("kept %+v", st)
	}
}

func TestEvictedWinnerStillMasks(t *testing.T) {
	s := newStore(t, live.Config{MaxSeries: 2})
	winner := build(t, boot, 10, 1, "w", 1, []int64{start.UnixNano()}, func(int) float64 { return 1 })
	insert(t, s, winner, start, live.Inserted)
	for i := range 2 { // push it out
		at := start.Add(time.Duration(i+1) * time.Second)
		insert(t, s, build(t, boot, uint64(100+i), 5, fmt.Sprint(i), 1, []int64{at.UnixNano()}, func(int) float64 { return 2 }), start, live.Inserted)
	}
	at := start.Add(5 * time.Second).UnixNano()
	loser := build(t, boot, 10, 2, "1", 1, []int64{at, at + 1e9}, func(k int) float64 { return float64(k) })
	insert(t, s, loser, start, live.Inserted)
	snap := s.Snapshot(start)
	defer snap.Close()
	got := read(t, snap, at/1e6, after)
	same(t, "the loser", got, map[string]map[int64]float64{`{__name__="m0", set="1"}`: {at/1e6 + 1000: 1}})
}

func TestFrameOfAnotherIdentity(t *testing.T) {
	s := newStore(t, live.Config{})
	a, b := one(t, 1, "x", start), one(t, 3, "x", start)
	var mismatch *live.MismatchError
	if _, err := s.Insert(a.Batch, b.batch, start); !errors.As(err, &mismatch) {
		t.Errorf("got %v", err)
	}
}
