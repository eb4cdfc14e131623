package chunk

import (
	"bytes"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// A writer that is used again gives what a new one gives, whether the series are those
// of before or nearly so.
func TestWriterIsUsedAgain(t *testing.T) {
	change := func(f func(s *Series)) []*Series {
		out := goldenRaw()
		c := *out[2]
		c.Labels = slices.Clone(c.Labels)
		f(&c)
		out[2] = &c
		return out
	}
	w := NewWriter(Options{})
	for name, series := range map[string][]*Series{
		"equal":        goldenRaw(),
		"rows":         change(func(s *Series) { s.Columns = s.Cut(3, 9) }),
		"one less":     goldenRaw()[1:],
		"label":        change(func(s *Series) { s.Labels[1].Value += "x" }),
		"more labels":  change(func(s *Series) { s.Labels = append(s.Labels, series.Label{Name: "z", Value: "z"}) }),
		"fewer labels": change(func(s *Series) { s.Labels = s.Labels[:1] }),
		"name":         change(func(s *Series) { s.Labels[0].Value = "other" }),
		"agent":        change(func(s *Series) { s.Agent = "host-9" }),
		"unit":         change(func(s *Series) { s.Unit = "" }),
		"type":         change(func(s *Series) { s.Type = series.Unknown }),
		"order":        backwards(goldenRaw()),
	} {
		for _, before := range [][]*Series{goldenRaw(), series, goldenRolled()} {
			for _, ss := range [][]*Series{before, series} {
				w.Reset()
				for _, s := range ss {
					if err := w.Add(s); err != nil {
						t.Fatal(err)
					}
				}
				got, err := w.Finish()
				if err != nil {
					t.Fatal(err)
				}
				if want := write(t, Options{}, ss); !bytes.Equal(got.Chunk, want.Chunk) || !bytes.Equal(got.Index, want.Index) {
					t.Errorf("%s: other files than a new writer's", name)
				}
			}
		}
	}
}

func backwards(ss []*Series) []*Series {
	slices.Reverse(ss)
	return ss
}
