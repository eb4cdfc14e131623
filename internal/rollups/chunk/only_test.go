package chunk

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestOnly: an index of some series has their labels, parts and rows, and nothing of others.
func TestOnly(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		all := drawSeries(r, 8, 40)
		f := write(t, drawOptions(r), all)
		x := readIndex(t, f.Index)
		var some []int
		for i := range x.Len() {
			if rapid.Bool().Draw(r, "in") {
				some = append(some, i)
			}
		}
		y := x.Only(some)
		if y.Len() != len(some) || y.Bytes() > x.Bytes() && len(some) < x.Len() {
			t.Fatalf("%d series in %d bytes; %d of %d", y.Len(), y.Bytes(), len(some), x.Bytes())
		}
		const least, most = -1 << 63, 1<<63 - 1
		dx, dy := NewDecoder(x, Limits{}), NewDecoder(y, Limits{})
		dx.Put(0, f.Chunk)
		dy.Put(0, f.Chunk)
		names := map[string]bool{nameLabel: true}
		for k, i := range some {
			if want, got := x.Series(i), y.Series(k); !reflect.DeepEqual(got, want) || y.Type(k) != x.Type(i) || y.Agent(k) != x.Agent(i) {
				t.Fatalf("%+v, want %+v", got, want)
			}
			for _, l := range x.Series(i).Labels {
				names[l.Name] = true
			}
			if a, b := x.Plan([]int{i}, least, most, -1), y.Plan([]int{k}, least, most, -1); !slices.Equal(a, b) {
				t.Fatalf("blocks %v, want %v", b, a)
			}
			var want, got Columns
			if _, err := dx.Series(i, least, most, AllColumns, &want); err != nil {
				t.Fatal(err)
			}
			if _, err := dy.Series(k, least, most, AllColumns, &got); err != nil {
				t.Fatal(err)
			}
			sameColumns(t, x.Metric(i), &got, &want)
		}
		if got := y.LabelNames(); len(some) > 0 && len(got) != len(names) {
			t.Fatalf("names %q, want %v", got, names)
		}
	})
}
