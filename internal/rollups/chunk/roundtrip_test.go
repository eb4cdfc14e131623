package chunk

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

func write(t testing.TB, opt Options, series []*Series) *Files {
	t.Helper()
	w := NewWriter(opt)
	for _, s := range series {
		if err := w.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	f, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func readIndex(t testing.TB, b []byte) *Index {
	t.Helper()
	x, err := ReadIndex(b, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// find gives the number of a series in the index.
func find(t testing.TB, x *Index, s *Series) int {
	t.Helper()
	for i := range x.Len() {
		r := x.Series(i)
		if r.Agent == s.Agent && r.Type == s.Type && r.Unit == s.Unit && slices.Equal(r.Labels, s.Labels) {
			return i
		}
	}
	t.Fatalf("%q is not in the index", s.Labels)
	return -1
}

func drawOptions(t *rapid.T) Options {
	return Options{
		BlockSeries: rapid.SampledFrom([]int{0, 1, 2, 3}).Draw(t, "block series"),
		BlockValues: rapid.SampledFrom([]int{0, 1, 100}).Draw(t, "block values"),
		Rows:        rapid.SampledFrom([]int{0, 1, 7, 40}).Draw(t, "rows of a part"),
	}
}

// TestRoundTrip: every column comes back with its very bits, through the index and from
// only the bytes that Plan names.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		series := drawSeries(rt, 8, 100)
		f := write(t, drawOptions(rt), series)
		x := readIndex(t, f.Index)
		if x.Len() != len(series) || x.Samples() != f.Samples || x.Chunk != f.ID || x.FooterOffset != f.FooterOffset {
			t.Fatalf("index of %d series, %d samples; files %+v", x.Len(), x.Samples(), f.Samples)
		}
		var c Columns
		for _, s := range series {
			i := find(t, x, s)
			d := NewDecoder(x, Limits{})
			for _, r := range x.Plan([]int{i}, math.MinInt64, math.MaxInt64, rapid.SampledFrom([]int64{0, 64, 1 << 20}).Draw(rt, "gap")) {
				d.Put(r.Offset, f.Chunk[r.Offset:r.End()])
			}
			n, err := d.Series(i, math.MinInt64, math.MaxInt64, AllColumns, &c)
			if err != nil || n != len(s.T) {
				t.Fatalf("%d rows, %v", n, err)
			}
			sameColumns(t, s.Name(), &c, &s.Columns)
			ref := x.Series(i)
			if ref.Rows != len(s.T) || ref.MinT != s.T[0] || ref.MaxT != s.T[len(s.T)-1] {
				t.Fatalf("index says %d rows, %d to %d", ref.Rows, ref.MinT, ref.MaxT)
			}
		}
	})
}

// TestColumnsAreReadAlone: a reader that wants some columns gets exactly those.
func TestColumnsAreReadAlone(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		series := drawSeries(rt, 4, 50)
		f := write(t, Options{}, series)
		x := readIndex(t, f.Index)
		d := NewDecoder(x, Limits{})
		d.Put(0, f.Chunk)
		s := series[rapid.IntRange(0, len(series)-1).Draw(rt, "which")]
		want := Mask(rapid.Uint32Range(0, uint32(AllColumns)).Draw(rt, "columns"))
		var all, some Columns
		for _, q := range []struct {
			m Mask
			c *Columns
		}{{AllColumns, &all}, {want, &some}} {
			if _, err := d.Series(find(t, x, s), math.MinInt64, math.MaxInt64, q.m, q.c); err != nil {
				t.Fatal(err)
			}
		}
		if some.mask() != all.mask()&want {
			t.Fatalf("columns %#x, wanted %#x of %#x", some.mask(), want, all.mask())
		}
		for i := range columns {
			if bit := Mask(1) << i; some.mask()&bit&^(histColumns|countColumns|ColStart) != 0 && !sameBits(*some.float(bit), *all.float(bit)) {
				t.Fatalf("column %#x differs", bit)
			}
		}
	})
}

// TestOrderOfAddingDoesNotMatter: nor does what a Writer wrote before.
func TestOrderOfAddingDoesNotMatter(t *testing.T) {
	used := NewWriter(Options{})
	rapid.Check(t, func(rt *rapid.T) {
		series := drawSeries(rt, 8, 40)
		f := write(t, Options{}, series)
		used.Reset()
		for _, s := range rapid.Permutation(series).Draw(rt, "order") {
			// Equal times at another place in memory are equal.
			s := *s
			s.T = slices.Clone(s.T)
			if err := used.Add(&s); err != nil {
				t.Fatal(err)
			}
		}
		g, err := used.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(f.Chunk, g.Chunk) || !bytes.Equal(f.Index, g.Index) || f.ID != g.ID || f.IndexID != g.IndexID {
			t.Fatal("two orders, two chunks")
		}
	})
}

// TestTimeRanges: rows of blocks outside of the range are neither planned nor read.
func TestTimeRanges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rows := rapid.IntRange(1, 60).Draw(rt, "rows")
		s := &Series{ID: series.ID{Agent: "a", Labels: []series.Label{{Name: nameLabel, Value: "up"}}}}
		for i := range rows {
			s.T, s.V = append(s.T, int64(i)*10), append(s.V, float64(i*i))
		}
		f := write(t, Options{Rows: 7}, []*Series{s})
		x := readIndex(t, f.Index)
		mint := rapid.Int64Range(-20, 620).Draw(rt, "mint")
		maxt := mint + rapid.Int64Range(0, 300).Draw(rt, "width")
		d := NewDecoder(x, Limits{})
		for _, r := range x.Plan([]int{0}, mint, maxt, 0) {
			d.Put(r.Offset, f.Chunk[r.Offset:r.End()])
		}
		var c Columns
		n, err := d.Series(0, mint, maxt, AllColumns, &c)
		if err != nil || n != len(c.T) || len(c.V) != n {
			t.Fatalf("%d rows, %v", n, err)
		}
		inside := 0
		for i, at := range c.T {
			if c.V[i] != float64(at/10*at/10) {
				t.Fatalf("%v at %d", c.V[i], at)
			}
			if at >= mint && at <= maxt {
				inside++
			}
		}
		want := 0
		for _, at := range s.T {
			if at >= mint && at <= maxt {
				want++
			}
		}
		if inside != want || n-inside >= 14 {
			t.Fatalf("%d rows of %d, and %d outside", inside, want, n-inside)
		}
	})
}

// TestPlanCoalesces: ranges cover exactly the wanted blocks, and gaps up to the setting.
func TestPlanCoalesces(t *testing.T) {
	var all []*Series
	for k := range 10 {
		s := &Series{ID: series.ID{Labels: labels(nameLabel, "m", "k", string(rune('a'+k)))}}
		for i := range 20 {
			s.T, s.V = append(s.T, int64(i)), append(s.V, math.Sqrt(float64(i*k+1)))
		}
		all = append(all, s)
	}
	x := readIndex(t, write(t, Options{BlockSeries: 1}, all).Index)
	block := func(i int) Range { return x.blocks[i] }
	times := x.timeBlocks[0]
	far := block(7).Offset - block(2).End()
	for _, c := range []struct {
		gap  int64
		want []Range
	}{
		{0, []Range{{block(1).Offset, block(2).End() - block(1).Offset}, block(7), times}},
		{far - 1, []Range{{block(1).Offset, block(2).End() - block(1).Offset}, {block(7).Offset, times.End() - block(7).Offset}}},
		{far, []Range{{block(1).Offset, times.End() - block(1).Offset}}},
	} {
		if got := x.Plan([]int{7, 1, 2}, 0, 19, c.gap); !slices.Equal(got, c.want) {
			t.Errorf("gap %d: %v, want %v", c.gap, got, c.want)
		}
	}
	if got := x.Plan([]int{1}, 20, 30, 0); got != nil {
		t.Errorf("nothing lies in the range, planned %v", got)
	}
}

// TestSelect agrees with looking at every series.
func TestSelect(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		series := drawSeries(rt, 20, 2)
		x := readIndex(t, write(t, Options{}, series).Index)
		var ms []Matcher
		for range rapid.IntRange(0, 3).Draw(rt, "matchers") {
			m := Matcher{Name: rapid.SampledFrom([]string{nameLabel, "a", "job", "zone", "none", "A"}).Draw(rt, "name"), Not: rapid.Bool().Draw(rt, "not")}
			if rapid.Bool().Draw(rt, "func") {
				prefix := rapid.SampledFrom([]string{"", "1", "cpu"}).Draw(rt, "prefix")
				m.Match = func(v string) bool { return strings.HasPrefix(v, prefix) }
			} else {
				m.Values = rapid.SliceOfN(rapid.SampledFrom([]string{"", "1", "12", "2", "up", "cpu", "é"}), 0, 3).Draw(rt, "values")
				if m.Values == nil {
					m.Values = []string{}
				}
			}
			ms = append(ms, m)
		}
		var want []int
		for i := range x.Len() {
			ok := true
			for k := range ms {
				v := ""
				for _, l := range x.Series(i).Labels {
					if l.Name == ms[k].Name {
						v = l.Value
					}
				}
				ok = ok && ms[k].matches(v)
			}
			if ok {
				want = append(want, i)
			}
		}
		if got := x.Select(ms...); !slices.Equal(got, want) {
			t.Fatalf("%+v selects %v, want %v", ms, got, want)
		}
		values := map[string]map[string]bool{}
		for _, s := range series {
			for _, l := range s.Labels {
				if values[l.Name] == nil {
					values[l.Name] = map[string]bool{}
				}
				values[l.Name][l.Value] = true
			}
		}
		if names := x.LabelNames(); len(names) != len(values) || !slices.IsSorted(names) {
			t.Fatalf("label names %q, want %v", names, values)
		}
		for name := range values {
			if vs := x.LabelValues(name); len(vs) != len(values[name]) || !slices.IsSorted(vs) {
				t.Fatalf("values of %s %q, want %v", name, vs, values[name])
			}
		}
	})
}
