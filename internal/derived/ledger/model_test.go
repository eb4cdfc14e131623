package ledger

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var testBoot = identity.Boot{Agent: "a", Boot: "b"}

// model is the plain truth over a small stretch of sequence numbers from base on.
type model struct {
	base    uint64
	entries []Entry
}

const stretch = 64 // sequence numbers of the model

func (m *model) has(e Entry) bool {
	return slices.ContainsFunc(m.entries, func(o Entry) bool { return o.Range() == e.Range() })
}

// covers counts the identities over each sequence number.
func (m *model) covers() [stretch]int {
	var n [stretch]int
	for _, e := range m.entries {
		for s := e.Start; ; s++ {
			n[s-m.base]++
			if s == e.End {
				break
			}
		}
	}
	return n
}

// runs gives the ranges where want holds, within [lo, hi].
func (m *model) runs(want func(i int) bool) []Range {
	var out []Range
	for i := range stretch {
		if !want(i) {
			continue
		}
		s := m.base + uint64(i)
		if n := len(out); n > 0 && out[n-1].End+1 == s && i > 0 {
			out[n-1].End = s
		} else {
			out = append(out, Range{s, s})
		}
	}
	return out
}

func drawEntry(t *rapid.T, base uint64) Entry {
	start := rapid.IntRange(0, stretch-1).Draw(t, "start")
	end := min(stretch-1, start+rapid.IntRange(0, 9).Draw(t, "more"))
	return Entry{base + uint64(start), base + uint64(end), int64(rapid.IntRange(0, 5).Draw(t, "at"))}
}

var bases = rapid.SampledFrom([]uint64{0, 1, 1 << 40, math.MaxUint64 - stretch + 1})

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{base: bases.Draw(t, "base")}
		l := New(testBoot)
		l.window = rapid.SampledFrom([]int{1, 3, 8, Window}).Draw(t, "window")
		for range rapid.IntRange(0, 60).Draw(t, "n") {
			e := drawEntry(t, m.base)
			repeat := m.has(e)
			covered := m.covers()
			var c Change
			if repeat {
				c = l.Add(e)
				if c.Kind != Known && c.Kind != Covered {
					t.Fatalf("repeat of %v: %v", e, c.Kind)
				}
			} else {
				if c = l.AddNew(e); c.Kind != Added {
					t.Fatalf("first %v: %v", e, c.Kind)
				}
				in := func(i int) bool { s := m.base + uint64(i); return e.Start <= s && s <= e.End }
				if want := m.runs(func(i int) bool { return in(i) && covered[i] == 0 }); !slices.Equal(c.New, want) {
					t.Fatalf("new of %v: %v, want %v", e, c.New, want)
				}
				if want := m.runs(func(i int) bool { return in(i) && covered[i] > 0 }); !slices.Equal(merged(c.Overlap), want) {
					t.Fatalf("overlap of %v: %v, want %v", e, c.Overlap, want)
				}
				m.entries = append(m.entries, e)
			}
			same(t, l, m)
		}
		back, err := marshalParse(l)
		if err != nil {
			t.Fatal(err)
		}
		same(t, back, m)
	})
}

func merged(in []Range) []Range {
	var s intervals
	for _, r := range in {
		s.add(r)
	}
	return s.ranges(0)
}

func same(t *rapid.T, l *Ledger, m *model) {
	t.Helper()
	n := m.covers()
	if got, want := l.Intervals(), m.runs(func(i int) bool { return n[i] > 0 }); !slices.Equal(got, want) {
		t.Fatalf("intervals %v, want %v", got, want)
	}
	if got, want := l.Overlaps(0), m.runs(func(i int) bool { return n[i] > 1 }); !slices.Equal(got, want) {
		t.Fatalf("overlaps %v, want %v", got, want)
	}
	if got, want := l.BatchCount(), uint64(len(m.entries)); got != want {
		t.Fatalf("batches %d, want %d", got, want)
	}
	var records uint64
	for _, c := range n {
		if c > 0 {
			records++
		}
	}
	if got := l.RecordCount(); got != records {
		t.Fatalf("records %d, want %d", got, records)
	}
	if len(m.entries) == 0 {
		return
	}
	first, last, newest := uint64(math.MaxUint64), uint64(0), int64(math.MinInt64)
	for _, e := range m.entries {
		first, last, newest = min(first, e.Start), max(last, e.End), max(newest, e.AcceptedAt)
	}
	if f, _ := l.FirstSeq(); f != first {
		t.Fatalf("first %d, want %d", f, first)
	}
	if f, _ := l.LastSeq(); f != last {
		t.Fatalf("last %d, want %d", f, last)
	}
	if l.LastAcceptedAt() != newest {
		t.Fatalf("last accepted at %d, want %d", l.LastAcceptedAt(), newest)
	}
	gaps := m.runs(func(i int) bool { s := m.base + uint64(i); return s > first && s < last && n[i] == 0 })
	if got := l.Gaps(0); !slices.Equal(got, gaps) {
		t.Fatalf("gaps %v, want %v", got, gaps)
	}
	if got := l.Gaps(1); len(gaps) > 0 && !slices.Equal(got, gaps[:1]) {
		t.Fatalf("first gap %v, want %v", got, gaps[:1])
	}
}

// Every sequence number counts for exactly one identity: the one that is before all others.
func TestOwnIsAPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{base: bases.Draw(t, "base")}
		l := New(testBoot)
		for range rapid.IntRange(1, 30).Draw(t, "n") {
			if e := drawEntry(t, m.base); !m.has(e) {
				m.entries = append(m.entries, e)
				l.AddNew(e)
			}
		}
		var owner [stretch]*Entry
		for i := range m.entries {
			mine := Own(m.entries[i], m.entries)
			if got, exact := l.Own(m.entries[i]); !exact || !slices.Equal(got, mine) {
				t.Fatalf("ledger owns %v (%v), want %v", got, exact, mine)
			}
			for _, r := range mine {
				for s := r.Start; ; s++ {
					if owner[s-m.base] != nil {
						t.Fatalf("%d counts twice", s)
					}
					owner[s-m.base] = &m.entries[i]
					if s == r.End {
						break
					}
				}
			}
		}
		for i, n := range m.covers() {
			if (n > 0) != (owner[i] != nil) {
				t.Fatalf("%d is covered %d times, owner %v", i, n, owner[i])
			}
			for _, e := range m.entries {
				s := m.base + uint64(i)
				if e.Start <= s && s <= e.End && e.Claim().Wins(owner[i].Claim()) {
					t.Fatalf("%d counts for %v, but %v is before", s, *owner[i], e)
				}
			}
		}
	})
}
