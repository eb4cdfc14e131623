package published_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// read gives all samples by label set.
func read(q *published.Query, t *testing.T, mint, maxt int64, ms ...*labels.Matcher) map[string]string {
	list, err := q.Select(t.Context(), mint, maxt, ms...)
	if err != nil {
		t.Error(err)
		return nil
	}
	out := map[string]string{}
	var runs published.Runs
	for i := range list {
		text := ""
		runs.Reset(&list[i], mint, maxt)
		for {
			run, ok := runs.Next()
			if !ok {
				break
			}
			text += fmt.Sprintln(run.T, run.V)
		}
		if runs.Err() != nil {
			t.Error(runs.Err())
		}
		if text != "" {
			out[list[i].Labels.String()] = text
		}
	}
	return out
}

func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d series, want %d", what, len(got), len(want))
		return
	}
	for k, w := range want {
		if got[k] != w {
			t.Errorf("%s: %s has %s, want %s", what, k, got[k], w)
			return
		}
	}
}

// TestColumnsAreKept: from the third time on, rows come decoded and without a block.
func TestColumnsAreKept(t *testing.T) {
	f := newFixture(t)
	r := f.reader(t, published.Config{})
	mint, maxt := f.first.StartMS(), (f.first + 1).EndMS()
	m := labels.MustNewMatcher(labels.MatchEqual, "__name__", "m1")
	var first map[string]string
	var samples int64
	for k := range 5 {
		q := f.query(t, r, published.Limits{})
		got := read(q, t, mint, maxt, m)
		if k == 0 {
			first, samples = got, q.Stats().Samples
		}
		same(t, fmt.Sprint("query ", k), got, first)
		st := q.Stats()
		if st.Samples != samples {
			t.Errorf("query %d: %d samples, want %d", k, st.Samples, samples)
		}
		want := int64(0)
		if k > 1 {
			want = 2 * 2 * fixtureSeries / 3 // an hour and series
		}
		if st.ColumnHits != want || want > 0 && st.BlockHits != 0 {
			t.Errorf("query %d: %d series decoded before, want %d; %d blocks", k, st.ColumnHits, want, st.BlockHits)
		}
	}
	if len(first) != 2*fixtureSeries/3 {
		t.Errorf("%d series", len(first))
	}
}

// TestCachesGiveTheSame: concurrent queries of any ranges and matchers over small caches
// and series in several parts answer as a reader without caches does; the bounds hold. Of
// the series some have times between milliseconds, some two samples in one millisecond.
func TestCachesGiveTheSame(t *testing.T) {
	f := newFixtureAt(t, chunk.Options{BlockSeries: 64, Rows: 16}, func(s, k int) int64 {
		switch at := int64(k+1) * 60_000 * 1e6; s % 3 {
		case 1:
			return at - int64(s*k%1_000_000)
		case 2:
			return at - int64(k%2)*60_000*1e6 + int64(k%2)*400 // with the one before it
		default:
			return at
		}
	})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := f.reader(t, published.Config{BlockCache: 1 << 20})
	var mu sync.Mutex // publishedtest.Views is for one at a time
	pinned := func(r *published.Reader) *published.Query {
		mu.Lock()
		defer mu.Unlock()
		q := f.query(t, r, published.Limits{})
		if err := q.Pin(t.Context(), (f.first - 1).StartMS(), (f.first + 5).EndMS()); err != nil {
			t.Error(err)
		}
		return q
	}
	var wg sync.WaitGroup
	var hits [4]int64
	for g := range hits {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rnd := rand.New(rand.NewPCG(seed, uint64(g)))
			for range 12 {
				mint := f.first.StartMS() + rnd.Int64N(2*timegrid.HourMS)
				maxt := mint + rnd.Int64N(2*timegrid.HourMS)
				ms := []*labels.Matcher{
					labels.MustNewMatcher(labels.MatchType(rnd.IntN(4)), "__name__", fmt.Sprint("m", rnd.IntN(3))),
					labels.MustNewMatcher(labels.MatchRegexp, "s", fmt.Sprintf("%d.?", 1+rnd.IntN(20))),
				}
				none := f.reader(t, published.Config{IndexCache: 1, BlockCache: 1})
				want := read(pinned(none), t, mint, maxt, ms...)
				for range 3 {
					q := pinned(r)
					same(t, fmt.Sprint(mint, maxt, ms), read(q, t, mint, maxt, ms...), want)
					hits[g] += q.Stats().ColumnHits
					if problems, _ := q.Problems(); len(problems) > 0 {
						t.Error(problems)
					}
					if held, bound := r.ColumnBytes(); held > bound {
						t.Errorf("%d bytes of columns, bound %d", held, bound)
					}
				}
			}
		}()
	}
	wg.Wait()
	if hits[0]+hits[1]+hits[2]+hits[3] == 0 {
		t.Error("no series was there decoded")
	}
}

// TestColumnsAreBounded: more than fits is read again and again.
func TestColumnsAreBounded(t *testing.T) {
	f := newFixture(t)
	const bound = 2 << 20
	r := f.reader(t, published.Config{BlockCache: 4 * bound})
	mint, maxt := f.first.StartMS(), (f.first + 1).EndMS()
	for k := range 3 {
		for m := range 3 {
			name := labels.MustNewMatcher(labels.MatchEqual, "__name__", fmt.Sprint("m", m))
			if got := read(f.query(t, r, published.Limits{}), t, mint, maxt, name); len(got) != 2*fixtureSeries/3 {
				t.Fatalf("%d series", len(got))
			}
		}
		held, most := r.ColumnBytes()
		if most != bound || held > bound || k > 0 && held < bound/2 {
			t.Errorf("round %d: %d bytes of columns are held, at most %d", k, held, most)
		}
		if _, all := r.CacheBytes(); all > 4*bound {
			t.Errorf("round %d: %d bytes of blocks and columns", k, all)
		}
	}
}

// TestLargeSelectionsKeepNothing: rows of a selection that would take most of the cache are decoded each time, and
// drive out nothing that others read again and again.
func TestLargeSelectionsKeepNothing(t *testing.T) {
	f := newFixtureOf(t, chunk.Options{BlockSeries: 64})
	f.publish(t, 2, timegrid.OneMinute)
	r := f.reader(t, published.Config{BlockCache: 4 << 20})
	mint, maxt := f.first.StartMS()+1, (f.first + 1).EndMS()
	all, few := labels.MustNewMatcher(labels.MatchRegexp, "s", ".+"), labels.MustNewMatcher(labels.MatchRegexp, "s", "1.?")
	samples := func(m *labels.Matcher) (map[string]string, int64) {
		q := f.query(t, r, published.Limits{})
		return read(q, t, mint, maxt, m), q.Stats().ColumnHits
	}
	rows := func(m *labels.Matcher) (map[string]string, int64) {
		q := f.query(t, r, published.Limits{})
		list, ok, err := q.SelectRolled(t.Context(), published.Rows{Resolution: timegrid.OneMinute, Want: chunk.ColSum | chunk.ColCount, Nearly: true}, mint, maxt,
			func(timegrid.Hour) bool { return false }, func(series.Type) bool { return true }, m)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		out := map[string]string{}
		var into chunk.Columns
		for i := range list {
			text := ""
			for part := range list[i].Parts() {
				cols, from, to, ok, err := list[i].Rows(part, mint, maxt, chunk.ColSum|chunk.ColCount, &into)
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				text += fmt.Sprintln(cols.T[from:to], cols.Sum[from:to], cols.Count[from:to])
			}
			out[list[i].Labels.String()] = text
		}
		return out, q.Stats().ColumnHits
	}
	for name, ask := range map[string]func(*labels.Matcher) (map[string]string, int64){"samples": samples, "rows": rows} {
		var want, wantFew map[string]string
		var kept int64
		for range 3 {
			wantFew, kept = ask(few)
		}
		if len(wantFew) != 22 || kept < 22 {
			t.Fatalf("%s: %d series, of which %d were decoded before", name, len(wantFew), kept)
		}
		for k := range 3 {
			got, hits := ask(all)
			if k == 0 {
				want = got
			}
			if same(t, name, got, want); len(got) != 2*fixtureSeries || hits > kept {
				t.Errorf("%s, time %d: %d series, of which %d were decoded before, want those %d of few", name, k, len(got), hits, kept)
			}
			gotFew, hits := ask(few)
			if same(t, name, gotFew, wantFew); hits != kept {
				t.Errorf("%s, time %d: of few series %d were decoded before, want %d", name, k, hits, kept)
			}
		}
	}
}

// TestSelectionsAreBounded: an index forgets answers rather than grow, and gives the same.
func TestSelectionsAreBounded(t *testing.T) {
	f := newFixture(t)
	r := f.reader(t, published.Config{})
	mint, maxt := f.first.StartMS(), (f.first + 1).EndMS()
	for k := range 400 {
		ms := []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "s", fmt.Sprintf("(%d|%d)", k, k+1))}
		for range 2 {
			list, err := f.query(t, r, published.Limits{}).Select(t.Context(), mint, maxt, ms...)
			if err != nil || len(list) != 4 {
				t.Fatalf("%v: %d series, %v", ms, len(list), err)
			}
		}
		if part := r.SelectionBytes(); part > 1 || part == 0 {
			t.Fatalf("after %d matchers an index holds %.2f of its bound", k+1, part)
		}
	}
}
