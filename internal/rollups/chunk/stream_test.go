package chunk

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A stream's files are read as a Writer's are, and equal them where nothing is split.
func TestStreamRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		series := drawSeries(rt, rapid.IntRange(1, 12).Draw(rt, "series"), 40)
		slices.SortFunc(series, func(a, b *Series) int { return a.ID.Compare(&b.ID) })
		opt := drawOptions(rt)
		st := NewStream(opt)
		for range 2 { // memory is used again
			st.Reset()
			longest := 0
			for _, s := range series {
				if err := st.Add(s); err != nil {
					rt.Fatal(err)
				}
				longest = max(longest, s.Rows())
			}
			f, err := st.Finish()
			if err != nil {
				rt.Fatal(err)
			}
			x := readIndex(t, f.Index)
			d := NewDecoder(x, Limits{})
			d.Put(0, f.Chunk)
			if x.Len() != len(series) || x.Samples() != f.Samples {
				rt.Fatalf("%d series, %d samples", x.Len(), x.Samples())
			}
			for i, s := range series {
				if r := x.Series(i); r.ID.Compare(&s.ID) != 0 {
					rt.Fatalf("series %d is %v, want %v", i, r.Labels, s.Labels)
				}
				var got Columns
				if _, err := d.Series(i, math.MinInt64, math.MaxInt64, AllColumns, &got); err != nil {
					rt.Fatal(err)
				}
				sameColumns(t, "stream", &got, &s.Columns)
			}
			if longest <= opt.orDefault().Rows {
				if w := write(t, opt, series); !bytes.Equal(w.Chunk, f.Chunk) || !bytes.Equal(w.Index, f.Index) {
					rt.Fatal("a Writer writes other files")
				}
			}
		}
	})
}

func TestStreamWantsOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		series := drawSeries(rt, 3, 4)
		if len(series) < 2 {
			return
		}
		slices.SortFunc(series, func(a, b *Series) int { return b.ID.Compare(&a.ID) })
		st := NewStream(Options{})
		if err := st.Add(series[0]); err != nil {
			rt.Fatal(err)
		}
		if st.Add(series[1]) == nil {
			rt.Fatal("series came out of order, and nothing was said")
		}
		if _, err := st.Finish(); err == nil {
			rt.Fatal("finished all the same")
		}
	})
}
