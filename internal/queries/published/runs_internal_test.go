package published

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestHoursOfAChunkAreJoined: a chunk of a compaction is read over its hours at once, up to where another piece, another
// chunk or series, or an hour that it lacks lies in between.
func TestHoursOfAChunkAreJoined(t *testing.T) {
	a, b := &handle{}, &handle{}
	of := func(h *handle, hour timegrid.Hour, i int) piece { return piece{&object{handle: h, hour: hour}, i} }
	for _, c := range []struct {
		name   string
		pieces []piece
		maxt   int64
		want   string
	}{
		{"consecutive hours", []piece{of(a, 1, 0), of(a, 2, 0), of(a, 3, 0)}, math.MaxInt64, "1-3"},
		{"another chunk", []piece{of(a, 1, 0), of(a, 2, 0), of(b, 3, 0), of(b, 4, 0)}, math.MaxInt64, "1-2 3-4"},
		{"another series", []piece{of(a, 1, 0), of(a, 2, 1), of(a, 3, 1)}, math.MaxInt64, "1-1 2-3"},
		{"an hour without rows", []piece{of(a, 1, 0), of(a, 3, 0), of(a, 4, 0)}, math.MaxInt64, "1-1 3-4"},
		{"a late batch", []piece{of(a, 1, 0), of(a, 2, 0), of(b, 2, 0), of(a, 3, 0), of(a, 4, 0)}, math.MaxInt64, "1-1 2-2x2 3-4"},
		{"a late batch first", []piece{of(a, 1, 0), of(b, 1, 0), of(b, 2, 0), of(b, 3, 0)}, math.MaxInt64, "1-1x2 2-3"},
		{"the range's end", []piece{of(a, 1, 0), of(a, 2, 0), of(a, 3, 0)}, timegrid.Hour(2).EndMS(), "1-2 3-3"},
	} {
		r := Runs{pieces: c.pieces, maxt: c.maxt}
		var got []string
		for len(r.pieces) > 0 {
			group, to := r.group()
			text := fmt.Sprintf("%d-%d", group[0].ob.hour, to)
			if len(group) > 1 {
				text += fmt.Sprint("x", len(group))
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
	}
}

// TestRowsOfHours: of rows on the bounds of hours those count that are later than the first hour's start, through the last
// hour's end; decoded ones and those that are kept alike.
func TestRowsOfHours(t *testing.T) {
	var c chunk.Columns
	for h := range timegrid.Hour(5) {
		for _, ms := range []int64{h.StartMS() + 1, h.StartMS() + 60_000, h.EndMS()} {
			c.T, c.V = append(c.T, ms*nsPerMS), append(c.V, float64(ms))
		}
	}
	kept := newColumns(0, 0, &c)
	for from := range timegrid.Hour(5) {
		for to := from; to < 5; to++ {
			var want []float64
			for _, v := range c.V {
				if v > float64(from.StartMS()) && v <= float64(to.EndMS()) {
					want = append(want, v)
				}
			}
			if got := cut(&c, from, to); !slices.Equal(got.V, want) {
				t.Errorf("decoded rows of %d to %d: %v, want %v", from, to, got.V, want)
			}
			if got := kept.rows(from, to); !slices.Equal(got.v, want) {
				t.Errorf("kept rows of %d to %d: %v, want %v", from, to, got.v, want)
			}
		}
	}
}
