package live_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

var start = time.Unix(1_700_000_000, 0)

// record is one sample as the model sees it.
type record struct {
	ns    int64
	value float64
}

// modelBatch is one batch of the model.
type modelBatch struct {
	accepted.Batch
	batch  *frame.Batch
	series []string // of record k
	recs   []record
}

func (a *modelBatch) wins(o *modelBatch) bool {
	return cmp.Or(cmp.Compare(a.AcceptedAt, o.AcceptedAt), a.Identity.Compare(o.Identity)) < 0
}

// build makes a batch: nseries series of a set, in one group, with the given rows.
func build(t testing.TB, boot identity.Boot, seq uint64, at int64, set string, nseries int, rows []int64, value func(k int) float64) *modelBatch {
	t.Helper()
	b := frame.NewBuilder()
	a := &modelBatch{}
	k := 0
	for s := range nseries {
		name := fmt.Sprintf("m%d", s)
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: name}, {Name: "set", Value: set}}, series.Gauge, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, ns := range rows {
			v := value(k)
			if err := b.Append(id, ns, v); err != nil {
				t.Fatal(err)
			}
			a.series = append(a.series, fmt.Sprintf(`{__name__="%s", set="%s"}`, name, set))
			a.recs = append(a.recs, record{ns, v})
			k++
		}
	}
	built, err := b.Build(boot, seq)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := frame.Encode(nil, built)
	if err != nil {
		t.Fatal(err)
	}
	a.batch = &frame.Batch{}
	if err := frame.Decode(raw, a.batch, frame.Limits{}); err != nil {
		t.Fatal(err)
	}
	a.Batch = accepted.Batch{Identity: a.batch.Identity, FrameSHA256: identity.Sum(raw), AcceptedAt: at, MaxTime: rows[len(rows)-1]}
	return a
}

// expect is what every series shows when exactly these batches are known.
func expect(batches []*modelBatch) map[string]map[int64]float64 {
	return expectBut(batches, func(*modelBatch, int) bool { return false })
}

// expectBut leaves out the hidden records.
func expectBut(batches []*modelBatch, hidden func(a *modelBatch, k int) bool) map[string]map[int64]float64 {
	type kept struct {
		record
		from *modelBatch
		k    int
	}
	best := map[string]map[int64]kept{}
	for _, a := range batches {
		for k, r := range a.recs {
			seq := a.Identity.SeqStart + uint64(k)
			lost := slices.ContainsFunc(batches, func(o *modelBatch) bool {
				return o != a && o.Identity.BootOf() == a.Identity.BootOf() && o.Identity.SeqStart <= seq && seq <= o.Identity.SeqEnd && o.wins(a)
			})
			if lost || hidden(a, k) {
				continue
			}
			ms := r.ns / 1e6
			by := best[a.series[k]]
			if by == nil {
				by = map[int64]kept{}
				best[a.series[k]] = by
			}
			have, ok := by[ms]
			if !ok || r.ns > have.ns || r.ns == have.ns && (a != have.from && a.wins(have.from) || a == have.from && k < have.k) {
				by[ms] = kept{r, a, k}
			}
		}
	}
	out := map[string]map[int64]float64{}
	for s, by := range best {
		out[s] = map[int64]float64{}
		for ms, k := range by {
			out[s][ms] = k.value
		}
	}
	return out
}

func all(t testing.TB) *labels.Matcher {
	m, err := labels.NewMatcher(labels.MatchRegexp, "__name__", ".+")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const (
	before = -1 << 62
	after  = 1 << 62
)

func read(t testing.TB, snap *live.Snapshot, mint, maxt int64) map[string]map[int64]float64 {
	t.Helper()
	found, err := snap.Select(context.Background(), mint, maxt, all(t))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[int64]float64{}
	for i := range found {
		runs := found[i].Runs(mint, maxt)
		last := int64(before)
		for run, ok := runs.Next(); ok; run, ok = runs.Next() {
			for j, ms := range run.T {
				if ms <= last {
					t.Fatalf("%s: %d after %d", found[i].Labels, ms, last)
				}
				last = ms
				name := found[i].Labels.String()
				if out[name] == nil {
					out[name] = map[int64]float64{}
				}
				out[name][ms] = run.V[j]
			}
		}
	}
	// Lists have the same series.
	listed, err := snap.Listed(context.Background(), mint, maxt, all(t))
	if err != nil {
		t.Fatal(err)
	}
	for i := range listed {
		if out[listed[i].Labels.String()] == nil {
			t.Fatalf("%s is listed, and has no samples in [%d, %d]", listed[i].Labels, mint, maxt)
		}
	}
	if len(listed) != len(out) {
		t.Fatalf("%d series are listed, %d have samples in [%d, %d]", len(listed), len(out), mint, maxt)
	}
	return out
}

func same(t testing.TB, what string, got, want map[string]map[int64]float64) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w { // maps print in key order
		t.Fatalf("%s:\n got %s\nwant %s", what, g, w)
	}
}

func newStore(t testing.TB, c live.Config) *live.Store {
	t.Helper()
	if c.History == 0 {
		c.History = 1000 * time.Hour
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 1 << 30
	}
	if c.MaxSeries == 0 {
		c.MaxSeries = 1 << 20
	}
	s, err := live.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestAgainstModel inserts random batches - overlapping, late, repeated, conflicting,
// several in one millisecond - and compares every snapshot, the old ones again later.
func TestAgainstModel(t *testing.T) {
	for seed := range uint64(60) {
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 1))
		s := newStore(t, live.Config{})
		var known []*modelBatch
		type view struct {
			snap *live.Snapshot
			want map[string]map[int64]float64
		}
		var views []view
		clock, next := int64(0), map[string]uint64{}
		for step := range 120 {
			boot := identity.Boot{Agent: "a", Boot: fmt.Sprint(rnd.IntN(2))}
			if len(known) > 0 && rnd.IntN(10) == 0 {
				old := known[rnd.IntN(len(known))]
				if out, err := s.Insert(old.Batch, old.batch, start); err != nil || out != live.Repeat {
					t.Fatalf("repeat: %v, %v", out, err)
				}
				other := old.Batch
				other.FrameSHA256[0]++
				var conflict *live.ConflictError
				if _, err := s.Insert(other, old.batch, start); !errors.As(err, &conflict) {
					t.Fatalf("other hash: %v", err)
				}
				continue
			}
			seq := next[boot.Boot] + 1
			if rnd.IntN(6) == 0 && seq > 5 {
				seq -= uint64(rnd.IntN(5)) // an overlap
			}
			clock += int64(1 + rnd.IntN(3))
			at := start.UnixNano() + clock*1e6
			if rnd.IntN(5) == 0 {
				at -= int64(rnd.IntN(50)) * 1e6 // late
			}
			rows := make([]int64, 1+rnd.IntN(4))
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
			if rnd.IntN(4) == 0 { // noted before it can be read, at times
				if _, err := s.Note(a.Batch, start); err != nil {
					t.Fatal(err)
				}
			}
			if out, err := s.Insert(a.Batch, a.batch, start); err != nil || out != live.Inserted {
				t.Fatalf("insert: %v, %v", out, err)
			}
			known = append(known, a)
			if rnd.IntN(8) == 0 {
				v := view{s.Snapshot(start), expect(known)}
				same(t, "new snapshot", read(t, v.snap, before, after), v.want)
				views = append(views, v)
			}
			if len(views) > 0 && rnd.IntN(8) == 0 {
				i := rnd.IntN(len(views))
				same(t, "old snapshot", read(t, views[i].snap, before, after), views[i].want)
				views[i].snap.Close()
				views = slices.Delete(views, i, i+1)
			}
		}
		snap := s.Snapshot(start)
		same(t, "at the end", read(t, snap, before, after), expect(known))
		mint := start.UnixMilli() + 20
		maxt := start.UnixMilli() + 90
		want := expect(known)
		for name, by := range want {
			for ms := range by {
				if ms < mint || ms > maxt {
					delete(by, ms)
				}
			}
			if len(by) == 0 {
				delete(want, name)
			}
		}
		same(t, "a part", read(t, snap, mint, maxt), want)
		snap.Close()
	}
}
