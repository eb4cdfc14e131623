package late

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
)

const (
	h0    = timegrid.Hour(500_000)
	hours = 24 // from h0 on
)

var (
	now    = (h0 + 100).End()
	policy = Policy{FoldAfter: 6 * time.Hour, FirstAfter: time.Minute}
)

// batch n has bytes and samples in hours.
func entry(n uint64, bytes uint64, hs ...timegrid.Hour) delta.Batch {
	id := identity.Batch{Agent: "a", Boot: "b", SeqStart: 10 * n, SeqEnd: 10*n + 9}
	sum := identity.Sum(fmt.Append(nil, n))
	return delta.Batch{Batch: accepted.Batch{Identity: id, FrameSHA256: sum, FrameBytes: bytes, RawBlobKey: layout.Blob(sum, 0), AcceptedAt: now.Add(-time.Minute).UnixNano(),
		MinTime: hs[0].Start().Add(time.Second).UnixNano(), MaxTime: hs[len(hs)-1].Start().Add(time.Second).UnixNano()}, Hours: hs}
}

func of(t testing.TB, bs ...delta.Batch) *delta.Delta {
	t.Helper()
	d, err := delta.New("authority", 0, 1, bs)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// published is an hour with one generation of the given batches, of so many bytes.
func published(t testing.TB, bytes uint64, ns ...uint64) *hour.State {
	t.Helper()
	var ids []identity.Batch
	for _, n := range ns {
		ids = append(ids, entry(n, 1, h0).Identity)
	}
	in, err := catalog.NewInputs(ids)
	if err != nil {
		t.Fatal(err)
	}
	st := &hour.State{Top: map[timegrid.Resolution]uint64{}, Blocks: map[timegrid.Resolution]*catalog.Block{}}
	for _, res := range timegrid.Resolutions() {
		st.Top[res] = 1
		st.Blocks[res] = &catalog.Block{Name: catalog.Name{Hour: h0, Resolution: res, Generation: 1}, Inputs: in, CreatedAt: now.UnixNano(), Objects: []catalog.Object{{ChunkBytes: bytes}}}
	}
	return st
}

func pending(bs ...delta.Batch) (out []accepted.Batch) {
	for _, b := range bs {
		out = append(out, b.Batch)
	}
	return out
}

// What is little and late and in no question goes into a delta; everything else makes a generation.
func TestDefers(t *testing.T) {
	type situation struct {
		p    Policy
		b    *Book
		st   *hour.State
		in   []accepted.Batch
		hour timegrid.Hour
	}
	fresh := func() *situation {
		return &situation{policy, New(), published(t, 1<<20, 1, 2), pending(entry(5, 1000, h0)), h0}
	}
	if s := fresh(); !s.p.Defers(s.b, s.hour, s.st, s.in, now) {
		t.Fatal("a small late batch makes a generation")
	}
	for name, change := range map[string]func(*situation){
		"no deltas are wanted": func(s *situation) { s.p.FoldAfter = 0 },
		"nothing is late":      func(s *situation) { s.in = nil },
		"nothing is published": func(s *situation) { s.st = &hour.State{} },
		"a resolution is not published": func(s *situation) {
			delete(s.st.Blocks, timegrid.OneHour)
		},
		"a resolution has an older generation": func(s *situation) {
			old := *s.st.Blocks[timegrid.OneHour]
			old.Name.Generation = 0
			s.st.Blocks[timegrid.OneHour] = &old
		},
		"a resolution is of another plan": func(s *situation) {
			other := *s.st.Blocks[timegrid.FiveMinutes]
			other.PlanSHA256 = identity.Sum([]byte("x"))
			s.st.Blocks[timegrid.FiveMinutes] = &other
		},
		"a generation is under way": func(s *situation) { s.st.Top[timegrid.Raw] = 2 },
		"a record is damaged":       func(s *situation) { s.st.Damaged = []string{"x"} },
		"the block was made before the hour's end": func(s *situation) {
			s.st.Blocks[timegrid.Raw].CreatedAt = h0.End().Add(policy.FirstAfter).UnixNano() - 1
		},
		"the samples expire soon":         func(s *situation) { s.p.RawKept = now.Sub(h0.End()) + 2*policy.FoldAfter - 1 },
		"it was accepted long ago":        func(s *situation) { s.in[0].AcceptedAt = now.Add(-policy.FoldAfter).UnixNano() },
		"a batch spans years":             func(s *situation) { s.in[0].MaxTime = (h0 + delta.MaxBatchHours).Start().Add(time.Second).UnixNano() },
		"two of them overlap":             func(s *situation) { s.in = pending(entry(5, 10, h0), entry(6, 10, h0)); s.in[0].SeqEnd++ },
		"one overlaps an input":           func(s *situation) { s.in = pending(entry(3, 10, h0)); s.in[0].SeqStart-- },
		"one overlaps a batch of a delta": func(s *situation) { s.in[0].SeqEnd++; s.b.Add(of(t, entry(6, 10, h0+7)), now) },
		"it is a large part of the hour":  func(s *situation) { s.in[0].FrameBytes = 1 << 18 },
		"with what deltas have it is a large part": func(s *situation) {
			s.b.Add(of(t, entry(7, 200<<10, h0)), now)
			s.in[0].FrameBytes = 60 << 10
		},
		"there are too many": func(s *situation) {
			s.in = nil
			for n := range uint64(maxBatches + 1) {
				s.in = append(s.in, entry(10+n, 1, h0).Batch)
			}
		},
		"deltas have too much of all hours": func(s *situation) {
			for n := range uint64(8) {
				s.b.Add(of(t, entry(100+n, 8<<20, h0+1+timegrid.Hour(n))), now)
			}
		},
	} {
		s := fresh()
		change(s)
		if s.p.Defers(s.b, s.hour, s.st, s.in, now) {
			t.Errorf("%s, and it is deferred", name)
		}
	}
	for name, change := range map[string]func(*situation){
		"the samples are kept long enough": func(s *situation) { s.p.RawKept = now.Sub(h0.End()) + 2*policy.FoldAfter },
		"the block was made at its time":   func(s *situation) { s.st.Blocks[timegrid.Raw].CreatedAt = h0.End().Add(policy.FirstAfter).UnixNano() },
		"a small hour":                     func(s *situation) { s.st = published(t, 10, 1); s.in[0].FrameBytes = foldBytes - 1 },
		"the share of a wide batch":        func(s *situation) { s.in = pending(entry(5, 1<<20, h0, h0+23)) },
		"in a compaction": func(s *situation) {
			s.st.Blocks[timegrid.Raw].Objects, s.st.Blocks[timegrid.Raw].Redirect, s.st.Blocks[timegrid.Raw].Counts.Samples = nil, &catalog.Redirect{}, 1<<20
			s.in[0].FrameBytes = 1<<18 - 1
		},
	} {
		s := fresh()
		change(s)
		if !s.p.Defers(s.b, s.hour, s.st, s.in, now) {
			t.Errorf("%s, and it is not deferred", name)
		}
	}
}

// An hour is folded when the first of its batches has waited, by its acceptance; at once where that is wanted; and what
// fails waits.
func TestDue(t *testing.T) {
	b := New()
	first, second := entry(1, 10, h0, h0+1), entry(2, 10, h0+1, h0+2)
	first.AcceptedAt = now.Add(-2 * time.Hour).UnixNano()
	second.AcceptedAt = now.Add(time.Hour).UnixNano() // a collector's clock is ahead
	d := of(t, first, second)
	b.Add(d, now)
	due := func(at time.Time) (out []timegrid.Hour) {
		for _, w := range b.Due(policy.FoldAfter, at) {
			out = append(out, w.Hour)
		}
		slices.Sort(out)
		return out
	}
	if got := due(now.Add(4*time.Hour - 1)); len(got) > 0 {
		t.Errorf("due too early: %v", got)
	}
	if got := due(now.Add(4 * time.Hour)); !slices.Equal(got, []timegrid.Hour{h0, h0 + 1}) {
		t.Errorf("due %v", got)
	}
	if got := due(now.Add(6 * time.Hour)); len(got) != 3 {
		t.Errorf("a batch that is accepted later waits longer than from when it was seen: %v", got)
	}
	b.Wait(h0, now.Add(5*time.Hour), true)
	if got := due(now.Add(4 * time.Hour)); !slices.Equal(got, []timegrid.Hour{h0 + 1}) || b.Hour(h0).Failures != 1 {
		t.Errorf("an hour that failed: %v", got)
	}
	b.ForgetWaits(now)
	if got := due(now.Add(4 * time.Hour)); len(got) != 2 {
		t.Errorf("the clock went back: %v", got)
	}
	b.FoldSoon(d)
	if got := due(now); len(got) != 3 {
		t.Errorf("all are wanted: %v", got)
	}
	if got := b.Hours(); !slices.Equal(got, []timegrid.Hour{h0, h0 + 1, h0 + 2}) {
		t.Error(got)
	}
}

// Small deltas are written together with the next, so that there are few, and a byte is written a few times.
func TestTogether(t *testing.T) {
	b := New()
	written, fresh := uint64(0), uint64(0)
	n := uint64(0)
	for range 2000 {
		n++
		e := entry(n, 500, h0+timegrid.Hour(n%hours))
		fresh += e.FrameBytes
		old := b.Together(e.FrameBytes)
		all := []delta.Batch{e}
		for _, o := range old {
			all = append(all, b.Open(o)...)
		}
		d := of(t, all...)
		written += d.FrameBytes()
		b.Add(d, now)
		b.Replaced(old, now)
		if live := b.live(); len(live) > 5*maxDeltas {
			t.Fatalf("%d deltas after %d", len(live), n)
		}
	}
	if written > 6*fresh {
		t.Errorf("%d bytes written of %d", written, fresh)
	}
	if _, batches, bytes := b.Size(); batches != 2000 || bytes != fresh {
		t.Errorf("%d batches, %d bytes", batches, bytes)
	}
	// Large ones are not written again for the sake of a small one.
	large := New()
	for i := range uint64(20) {
		large.Add(of(t, entry(i, 1<<20+i, h0)), now)
	}
	if got := large.Together(1); len(got) > 0 {
		t.Errorf("%d large deltas are written with one byte", len(got))
	}
}

// TestCrowd: many deltas that are too large to be written together have their hours folded.
func TestCrowd(t *testing.T) {
	b := New()
	for n := range uint64(4*maxDeltas + 2) {
		b.Add(of(t, entry(n, 1000+n, h0+timegrid.Hour(n))), now)
	}
	b.Crowd()
	var full []timegrid.Hour
	for _, h := range b.Hours() {
		if b.Hour(h).Full {
			full = append(full, h)
		}
	}
	if !slices.Equal(full, []timegrid.Hour{h0, h0 + 1}) {
		t.Error(full)
	}
}

// TestSchedules: deltas are added, replaced and covered at random, against a model that knows which batch is in which
// delta and which hours cover it.
func TestSchedules(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		b, at := New(), now
		open := map[identity.Batch]map[timegrid.Hour]bool{} // by batch, what does not cover it
		bytes := map[identity.Batch]uint64{}
		all := map[string]*delta.Delta{}
		spent := map[string]time.Time{}
		replaced := map[string]bool{}
		n := uint64(0)
		needed := func(key string) bool {
			return !replaced[key] && slices.ContainsFunc(all[key].Batches, func(e delta.Batch) bool { return len(open[e.Identity]) > 0 })
		}
		for range 200 {
			at = at.Add(time.Duration(rnd.IntN(100)) * time.Second)
			switch rnd.IntN(5) {
			case 0, 1:
				var bs []delta.Batch
				for range 1 + rnd.IntN(3) {
					n++
					first := h0 + timegrid.Hour(rnd.IntN(6))
					hs := []timegrid.Hour{first, first + 2, first + 3}[:1+rnd.IntN(3)]
					e := entry(n, uint64(1+rnd.IntN(5000)), hs...)
					bs = append(bs, e)
					open[e.Identity], bytes[e.Identity] = map[timegrid.Hour]bool{}, e.FrameBytes
					for _, h := range hs {
						open[e.Identity][h] = true
					}
				}
				old := b.Together(5000)
				for _, o := range old {
					bs = append(bs, b.Open(o)...)
				}
				d := of(t, bs...)
				all[d.Key()] = d
				b.Add(d, at)
				b.Replaced(old, at)
				for _, o := range old {
					if needed(o.Key()) {
						spent[o.Key()] = at
					}
					replaced[o.Key()] = true
				}
			case 2, 3:
				h := h0 + timegrid.Hour(rnd.IntN(10))
				covered := map[identity.Batch]bool{}
				for id := range open {
					covered[id] = rnd.IntN(2) == 0
				}
				before := map[string]bool{}
				for key := range all {
					before[key] = needed(key)
				}
				b.Cover(h, func(id identity.Batch) bool { return covered[id] }, at)
				for id := range open {
					if covered[id] {
						delete(open[id], h)
					}
				}
				for key := range all {
					if before[key] && !needed(key) {
						spent[key] = at
					}
				}
			case 4:
				const grace = 5 * time.Minute
				var want []string
				for key, since := range spent {
					if !at.Before(since.Add(grace)) {
						want = append(want, key)
					}
				}
				slices.Sort(want)
				if got := b.Spent(at, grace); !slices.Equal(got, want) {
					t.Fatalf("seed %d: spent %v, want %v", seed, got, want)
				}
				for _, key := range want {
					b.Deleted(key)
					delete(spent, key)
					delete(all, key)
				}
			}
			for key := range all {
				if !b.Knows(key) {
					t.Fatalf("seed %d: %s is not known", seed, key)
				}
			}
			total, batches := uint64(0), 0
			for h := h0; h < h0+10; h++ {
				var want []identity.Batch
				for id, hs := range open {
					if hs[h] {
						want = append(want, id)
					}
					if b.Holds(id, h) != hs[h] {
						t.Fatalf("seed %d: %s is held in %s: %v", seed, id, h, !hs[h])
					}
				}
				slices.SortFunc(want, identity.Batch.Compare)
				var got []identity.Batch
				for _, e := range b.Inputs(h) {
					got = append(got, e.Identity)
				}
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: inputs of %s: %v, want %v", seed, h, got, want)
				}
				if w := b.Hour(h); (w == nil) != (len(want) == 0) || w != nil && w.Batches() != len(want) {
					t.Fatalf("seed %d: hour %s", seed, h)
				}
			}
			for id := range maps.Keys(open) {
				if len(open[id]) > 0 {
					batches++
					total += bytes[id]
				}
				over := id
				over.SeqStart, over.SeqEnd = id.SeqEnd, id.SeqEnd+1
				found := slices.ContainsFunc(b.Overlapping(over), func(e delta.Batch) bool { return e.Identity == id })
				if slices.ContainsFunc(b.Overlapping(over), func(e delta.Batch) bool { return !e.Identity.Intersects(over) }) {
					t.Fatalf("seed %d: %s overlaps nothing of %v", seed, over, b.Overlapping(over))
				}
				if found != (len(open[id]) > 0) || len(b.Overlapping(identity.Batch{Agent: "a", Boot: "x", SeqStart: id.SeqStart, SeqEnd: id.SeqEnd})) > 0 {
					t.Fatalf("seed %d: what overlaps %s is found: %v", seed, over, found)
				}
			}
			if _, n, sum := b.Size(); n != batches || sum != total {
				t.Fatalf("seed %d: %d batches of %d bytes, want %d of %d", seed, n, sum, batches, total)
			}
		}
	}
}
