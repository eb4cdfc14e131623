package live_test

import (
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/live"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// held says what published sets hold, by sequence number of the batch's start.
type held map[uint64]live.Held

func (h held) cover(id identity.Batch, _ []window.Hour) live.Held { return h[id.SeqStart] }

// TestLateBatches: before the window stays what no set holds, and nothing else.
func TestLateBatches(t *testing.T) {
	s := newStore(t, live.Config{History: time.Hour})
	h := held{1: live.OnlyHere, 101: live.Published, 201: live.Unknown, 301: live.OnlyHere}
	s.SetCover(h.cover)
	boot := identity.Boot{Agent: "a", Boot: "b"}
	insert := func(seq uint64, at, now time.Time) live.Outcome {
		t.Helper()
		a := build(t, boot, seq, 1, "x", 1, []int64{at.UnixNano()}, func(int) float64 { return float64(seq) })
		out, err := s.Insert(a.Accepted, a.batch, now)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for seq, want := range map[uint64]live.Outcome{1: live.Inserted, 101: live.Expired, 201: live.Expired} {
		if out := insert(seq, start.Add(-2*time.Hour).Add(time.Duration(seq)), start); out != want {
			t.Errorf("batch from %d: outcome %d, want %d", seq, out, want)
		}
	}
	// One that leaves the window stays as well.
	insert(301, start, start)
	later := start.Add(2 * time.Hour)
	s.Expire(later)
	if st := s.Stats(); st.Late != 2 || st.Batches != 2 {
		t.Errorf("%+v, want two late batches", st)
	}
	snap := s.Snapshot(later)
	want := []window.Hour{window.HourOfNS(start.Add(-2*time.Hour).UnixNano() + 1), window.HourOfNS(start.UnixNano())}
	if got := snap.Late(nil); !slices.Equal(got, want) {
		t.Errorf("hours of late batches %v, want %v", got, want)
	}
	// A set holds one of them now; an open snapshot still reads it.
	h[301] = live.Published
	s.Expire(later)
	if st := s.Stats(); st.Late != 1 {
		t.Errorf("%+v, want one late batch", st)
	}
	samples := 0
	for _, of := range read(t, snap, before, after) {
		samples += len(of)
	}
	if samples != 2 {
		t.Errorf("the open snapshot reads %d samples, want 2", samples)
	}
	snap.Close()
}

// TestLateLoss: late batches that memory has no room for are told until a set holds them;
// what a set holds is no loss.
func TestLateLoss(t *testing.T) {
	for _, c := range []struct {
		held       live.Held
		late, lost bool
	}{{live.OnlyHere, true, true}, {live.OnlyHere, false, true}, {live.Published, false, false}, {live.Unknown, false, true}} {
		s := newStore(t, live.Config{History: time.Hour, MaxBytes: 6000})
		kind := live.OnlyHere
		s.SetCover(func(identity.Batch, []window.Hour) live.Held { return kind })
		at := start
		if c.late {
			at = start.Add(-3 * time.Hour)
		}
		for i := range 40 {
			a := build(t, identity.Boot{Agent: "a", Boot: "b"}, uint64(1+10*i), 1, "x", 1, []int64{at.Add(time.Duration(i) * time.Second).UnixNano()}, func(int) float64 { return 1 })
			if !c.late {
				kind = c.held
			}
			if _, err := s.Insert(a.Accepted, a.batch, start.Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		snap := s.Snapshot(start.Add(time.Minute))
		if _, lost := snap.Lost(before, after); lost != c.lost {
			t.Errorf("%d: lost %v", c.held, lost)
		}
		snap.Close()
		kind = live.Published
		s.Expire(start.Add(time.Minute))
		snap = s.Snapshot(start.Add(time.Minute))
		if _, lost := snap.Lost(before, after); lost {
			t.Errorf("%d: the loss is told although a set holds it", c.held)
		}
		snap.Close()
	}
}
