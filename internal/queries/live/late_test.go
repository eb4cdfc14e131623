package live_test

import (
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// held says what blocks hold, by sequence number of the batch's start.
type held map[uint64]live.Held

func (h held) cover(id identity.Batch, _ []timegrid.Hour) live.Held { return h[id.SeqStart] }

// TestLateBatches: before the window stays what no block holds, and nothing else.
func TestLateBatches(t *testing.T) {
	s := newStore(t, live.Config{History: time.Hour})
	h := held{1: live.OnlyHere, 101: live.Published, 201: live.Unknown, 301: live.OnlyHere}
	s.SetCover(h.cover)
	boot := identity.Boot{Agent: "a", Boot: "b"}
	insert := func(seq uint64, at, now time.Time) live.Outcome {
		t.Helper()
		a := build(t, boot, seq, 1, "x", 1, []int64{at.UnixNano()}, func(int) float64 { return float64(seq) })
		out, err := s.Insert(a.Batch, a.batch, now)
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
	want := []timegrid.Hour{timegrid.HourOfNS(start.Add(-2*time.Hour).UnixNano() + 1), timegrid.HourOfNS(start.UnixNano())}
	if got := snap.Late(); !slices.Equal(got, want) {
		t.Errorf("hours of late batches %v, want %v", got, want)
	}
	// A block holds one of them now; an open snapshot still reads it.
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

// TestLateLoss: late batches that memory has no room for are reported until a block holds them;
// what a block holds is no loss.
func TestLateLoss(t *testing.T) {
	for _, c := range []struct {
		held       live.Held
		late, lost bool
	}{{live.OnlyHere, true, true}, {live.OnlyHere, false, true}, {live.Published, false, false}, {live.Unknown, false, true}} {
		s := newStore(t, live.Config{History: time.Hour, MaxBytes: 6000})
		kind := live.OnlyHere
		s.SetCover(func(identity.Batch, []timegrid.Hour) live.Held { return kind })
		at := start
		if c.late {
			at = start.Add(-3 * time.Hour)
		}
		for i := range 40 {
			a := build(t, identity.Boot{Agent: "a", Boot: "b"}, uint64(1+10*i), 1, "x", 1, []int64{at.Add(time.Duration(i) * time.Second).UnixNano()}, func(int) float64 { return 1 })
			if !c.late {
				kind = c.held
			}
			if _, err := s.Insert(a.Batch, a.batch, start.Add(time.Minute)); err != nil {
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
			t.Errorf("%d: the loss is reported although a block holds it", c.held)
		}
		snap.Close()
	}
}

// TestLateAtTheEdge: a batch whose last sample is on the window's edge is within it, whether
// it is inserted, noted or grows old; behind the edge it stays only while no block holds it.
func TestLateAtTheEdge(t *testing.T) {
	const beyond = time.Millisecond
	for _, kind := range []live.Held{live.Unknown, live.Published} {
		s := newStore(t, live.Config{History: time.Hour})
		s.SetCover(func(identity.Batch, []timegrid.Hour) live.Held { return kind })
		edge := start.Add(-time.Hour)
		insert(t, s, one(t, 1, "x", edge), start, live.Inserted)
		insert(t, s, one(t, 11, "x", edge.Add(-beyond)), start, live.Expired)
		for seq, c := range map[uint64]struct {
			at   time.Time
			want live.Outcome
		}{21: {edge, live.Inserted}, 31: {edge.Add(-beyond), live.Expired}} {
			if got, err := s.Note(one(t, seq, "x", c.at).Batch, start); err != nil || got != c.want {
				t.Errorf("%d: noted at %s: %v, %v, want %v", kind, c.at, got, err, c.want)
			}
		}
		s.Expire(start)
		if st := s.Stats(); st.Batches != 1 || st.Late != 0 || st.Placeholders != 1 {
			t.Errorf("%d: on the edge: %+v", kind, st)
		}
		s.Expire(start.Add(beyond))
		if st := s.Stats(); st.Batches != 0 || st.Late != 0 || st.Placeholders != 0 {
			t.Errorf("%d: behind the edge: %+v", kind, st)
		}
	}
	// What expire meets first is not made late and dropped again: a block holds it.
	s := newStore(t, live.Config{History: time.Hour})
	s.SetCover(func(identity.Batch, []timegrid.Hour) live.Held { return live.Published })
	insert(t, s, one(t, 1, "x", start), start, live.Inserted)
	insert(t, s, one(t, 11, "x", start.Add(3*time.Hour)), start.Add(3*time.Hour), live.Inserted) // expires the first
	if st := s.Stats(); st.Batches != 1 || st.Late != 0 {
		t.Errorf("%+v, want the second alone", st)
	}
}

// TestLateHoursOfASnapshot: the hours of late batches are all hours that these have samples
// in, of those batches that the snapshot sees, but what is held elsewhere.
func TestLateHoursOfASnapshot(t *testing.T) {
	s := newStore(t, live.Config{History: time.Hour})
	s.SetCover(func(identity.Batch, []timegrid.Hour) live.Held { return live.OnlyHere })
	hours := []timegrid.Hour{timegrid.HourOfNS(start.UnixNano()) - 8, timegrid.HourOfNS(start.UnixNano()) - 5}
	across := build(t, boot, 1, 1, "x", 1, []int64{hours[0].EndMS() * 1e6, hours[1].EndMS() * 1e6}, func(int) float64 { return 1 })
	insert(t, s, across, start, live.Inserted)
	snap := s.Snapshot(start)
	defer snap.Close()
	insert(t, s, one(t, 11, "x", (hours[0]-1).End()), start, live.Inserted) // the snapshot does not see it
	if got := snap.Late(); !slices.Equal(got, hours) {
		t.Errorf("late hours %v, want %v", got, hours)
	}
	insert(t, s, one(t, 21, "x", hours[0].End()), start, live.Inserted) // nor this one, of an hour that it knows
	for _, h := range hours {
		var got []identity.Batch
		all := snap.EachLate(h, func(id identity.Batch) bool { got = append(got, id); return true })
		if len(got) != 1 || !all || got[0] != across.Identity {
			t.Errorf("%v: %v", h, got)
		}
	}
	after := s.Snapshot(start)
	defer after.Close()
	if got := after.Late(); len(got) != 3 || got[0] != hours[0]-1 {
		t.Errorf("late hours of a later snapshot: %v", got)
	}
}
