package live_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

type place struct {
	boot identity.Boot
	hour timegrid.Hour
}

// covered is a coverage by hand.
type covered map[place][]ledger.Range

func (c covered) Covered(b identity.Boot, h timegrid.Hour) []ledger.Range { return c[place{b, h}] }

func (c covered) CoversHour(h timegrid.Hour) bool {
	for at, ranges := range c {
		if at.hour == h && len(ranges) > 0 {
			return true
		}
	}
	return false
}

func (c covered) holds(b identity.Boot, ms int64, seq uint64) bool {
	return slices.ContainsFunc(c[place{b, timegrid.HourOf(ms)}], func(r ledger.Range) bool { return r.Start <= seq && seq <= r.End })
}

// Records that a block counts are left out, each in the hour of its sample and no
// others: batches across the stroke of an hour, overlaps, merged segments, half-covered batches.
func TestPublishedRecordsAreHidden(t *testing.T) {
	stroke := timegrid.HourStarting(start).End()
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		s := newStore(t, live.Config{})
		var known []*modelBatch
		next := map[string]uint64{}
		clock := stroke.UnixNano() - 150*1e6
		for step := range 100 {
			boot := identity.Boot{Agent: "a", Boot: fmt.Sprint(rnd.IntN(2))}
			seq := next[boot.Boot] + 1
			if rnd.IntN(6) == 0 && seq > 5 {
				seq -= uint64(rnd.IntN(5))
			}
			clock += int64(1+rnd.IntN(3)) * 1e6
			at := clock
			rows := make([]int64, 1+rnd.IntN(3))
			for i := range rows {
				rows[i] = at
				at += int64(1 + rnd.IntN(2_000_000))
			}
			a := build(t, boot, seq, int64(rnd.IntN(40)), fmt.Sprint(rnd.IntN(2)), 1+rnd.IntN(2), rows, func(k int) float64 {
				return float64(step*100 + k)
			})
			if slices.ContainsFunc(known, func(o *modelBatch) bool { return o.Identity == a.Identity }) {
				continue
			}
			next[boot.Boot] = max(next[boot.Boot], a.Identity.SeqEnd)
			if _, err := s.Insert(a.Batch, a.batch, start); err != nil {
				t.Fatal(err)
			}
			known = append(known, a)
		}
		cov := covered{}
		for boot, last := range next {
			for _, h := range []timegrid.Hour{timegrid.HourStarting(start), timegrid.HourStarting(start) + 1} {
				at := place{identity.Boot{Agent: "a", Boot: boot}, h}
				for seq := uint64(rnd.IntN(20)); seq <= last && rnd.IntN(8) > 0; {
					r := ledger.Range{Start: seq, End: seq + uint64(rnd.IntN(60))}
					cov[at] = append(cov[at], r)
					seq = r.End + 2 + uint64(rnd.IntN(20))
				}
			}
		}
		hidden := 0
		want := expectBut(known, func(a *modelBatch, k int) bool {
			ms := time.Unix(0, a.recs[k].ns).UnixMilli()
			hide := cov.holds(a.Identity.BootOf(), ms, a.Identity.SeqStart+uint64(k))
			if hide {
				hidden++
			}
			return hide
		})
		snap := s.Snapshot(start)
		snap.Hide(cov)
		same(t, fmt.Sprintf("seed %d, %d hidden", seed, hidden), read(t, snap, before, after), want)
		snap.Close()
		if seed == 0 && hidden == 0 {
			t.Error("nothing was hidden")
		}
	}
}

// TestPublishedSeriesAreNotListed: a series in memory of which blocks have everything in the range is theirs to list.
func TestPublishedSeriesAreNotListed(t *testing.T) {
	s := newStore(t, live.Config{})
	a := one(t, 1, "0", start)
	insert(t, s, a, start, live.Inserted)
	listed := func(c covered) int {
		t.Helper()
		snap := s.Snapshot(start)
		defer snap.Close()
		snap.Hide(c)
		list, err := snap.Listed(t.Context(), before, after, all(t))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	at := place{a.Identity.BootOf(), timegrid.HourOf(time.Unix(0, a.recs[0].ns).UnixMilli())}
	if n := listed(covered{at: {{Start: a.Identity.SeqEnd + 1, End: a.Identity.SeqEnd + 1}}}); n == 0 {
		t.Error("what blocks do not have is not listed")
	}
	if n := listed(covered{at: {{Start: a.Identity.SeqStart, End: a.Identity.SeqEnd}}}); n != 0 {
		t.Errorf("%d series are listed that blocks have", n)
	}
}
