package published

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// indexOf has a series for each agent and name.
func indexOf(t *testing.T, id byte, agents, names []string) *index {
	t.Helper()
	w := chunk.NewWriter(chunk.Options{})
	var all []chunk.Series
	for _, a := range agents {
		for _, n := range names {
			all = append(all, chunk.Series{ID: series.ID{Agent: a, Labels: []series.Label{{Name: "__name__", Value: n}}, Type: series.Gauge}, Columns: chunk.Columns{T: []int64{1e15}, V: []float64{1}}})
		}
	}
	slices.SortFunc(all, func(a, b chunk.Series) int { return a.ID.Compare(&b.ID) })
	for i := range all {
		if err := w.Add(&all[i]); err != nil {
			t.Fatal(err)
		}
	}
	f, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	x, err := chunk.ReadIndex(slices.Clone(f.Index), chunk.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return &index{Index: x, id: identity.Digest{id}, selections: selections{max: 1 << 20}}
}

// TestCountedSeries: of a piece those series count whose agents' shards it has, and where these are all shards the
// selection is used as it is.
func TestCountedSeries(t *testing.T) {
	agents := []string{"a", "b", "c", "d", "e", "f", "g"}
	x := indexOf(t, 1, agents, []string{"m", "n"})
	rng := rand.New(rand.NewPCG(1, 0))
	for range 500 {
		count := uint32(1 + rng.IntN(6))
		p := &catalog.Piece{Block: &catalog.Block{Shards: count}, Shards: []shard.ID{}}
		for id := range shard.ID(count) {
			if rng.IntN(3) > 0 {
				p.Shards = append(p.Shards, id)
			}
		}
		var of, want []int
		for i := range x.Len() {
			if rng.IntN(2) == 0 {
				of = append(of, i)
				if p.Holds(x.Agent(i)) {
					want = append(want, i)
				}
			}
		}
		got := x.counted(p, of)
		if !slices.Equal(got, want) {
			t.Fatalf("of %d shards %v: %v, want %v of %v", count, p.Shards, got, want, of)
		}
		if len(p.Shards) == int(count) && len(of) > 0 && &got[0] != &of[0] {
			t.Fatal("all count, and are copied")
		}
	}
}

// TestTextsOfSources: the hours of a compaction are one source, and a key belongs to one label, selector, set of
// indexes and choice of their series.
func TestTextsOfSources(t *testing.T) {
	x, y := indexOf(t, 1, []string{"a", "b"}, []string{"m"}), indexOf(t, 2, []string{"a", "b"}, []string{"m"})
	h := timegrid.HourStarting(time.Unix(0, 0))
	of := func(x *index, series []int, held ...[]int) (out []*object) {
		hd := &handle{x: x, series: series}
		for i, s := range held {
			out = append(out, &object{handle: hd, hour: h + timegrid.Hour(i), series: s})
		}
		return out
	}
	all := []int{0, 1}
	ms := []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "a", "b")}
	keys := map[string]string{}
	for name, c := range map[string]struct {
		what    string
		ms      []*labels.Matcher
		objects []*object
		sources int
	}{
		"whole":           {"names", nil, of(x, all, all, all, all), 1},
		"values":          {"values of a", nil, of(x, all, all), 1},
		"other values":    {"values of b", nil, of(x, all, all), 1},
		"matchers":        {"names", ms, of(x, all, all), 1},
		"another index":   {"names", nil, of(y, all, all), 1},
		"both":            {"names", nil, append(of(x, all, all), of(y, all, all)...), 2},
		"masked":          {"names", nil, of(x, all, []int{0}), 1},
		"others masked":   {"names", nil, of(x, all, []int{1}), 1},
		"masked and both": {"names", nil, of(x, all, []int{0}, []int{1}), 2},
	} {
		sources, key := textsOf(c.what, c.ms, c.objects)
		if len(sources) != c.sources {
			t.Errorf("%s: %d sources, want %d", name, len(sources), c.sources)
		}
		if other, ok := keys[key.String()]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		keys[key.String()] = name
	}
	_, a := textsOf("names", nil, of(x, all, all))
	_, b := textsOf("names", nil, of(x, all, all, all))
	if a != b {
		t.Error("one hour of an index and two have different keys")
	}
}

// TestTextsOfMaskedSeries: where the series of some agents do not count, names and values are those of the others.
func TestTextsOfMaskedSeries(t *testing.T) {
	x := indexOf(t, 1, []string{"a", "b"}, []string{"m", "n"})
	x.metas = make([]atomic.Pointer[meta], x.Len())
	values := func(series []int) (out []string) {
		s := textSource{x, series}
		x.labelValues("__name__", s.whole(), s.series, func(v string) { out = append(out, v) })
		slices.Sort(out)
		return slices.Compact(out)
	}
	for i := range x.Len() {
		if got, want := values([]int{i}), []string{x.Metric(i)}; !slices.Equal(got, want) {
			t.Errorf("series %d: %q, want %q", i, got, want)
		}
	}
	if got := values([]int{0, 1, 2, 3}); !slices.Equal(got, []string{"m", "n"}) {
		t.Errorf("%q", got)
	}
}
