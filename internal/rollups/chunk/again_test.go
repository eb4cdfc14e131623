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

// Labels in the memory of those before are not read again: whatever else of a series may differ decides by itself.
func TestLabelsThatComeAgain(t *testing.T) {
	base := goldenRaw()
	change := func(f func(ss []*Series)) []*Series {
		out := make([]*Series, len(base))
		for i, s := range base {
			c := *s
			out[i] = &c
		}
		f(out)
		return out
	}
	all := map[string][]*Series{
		"equal":    change(func([]*Series) {}),
		"agent":    change(func(ss []*Series) { ss[1].Agent = "host-9" }),
		"unit":     change(func(ss []*Series) { ss[1].Unit = "feet" }),
		"type":     change(func(ss []*Series) { ss[1].Type = series.Unknown }),
		"fewer":    change(func(ss []*Series) { ss[1].Labels = ss[1].Labels[:2] }),
		"order":    backwards(change(func([]*Series) {})),
		"one less": change(func([]*Series) {})[1:],
		"the last": change(func([]*Series) {})[:len(base)-1],
		"rows":     change(func(ss []*Series) { ss[1].Columns = ss[1].Cut(3, 9) }),
	}
	twice := append(change(func([]*Series) {}), base[0])
	finish := func(w *Writer, ss []*Series) (*Files, error) {
		w.Reset()
		for _, s := range ss {
			if err := w.Add(s); err != nil {
				t.Fatal(err)
			}
		}
		return w.Finish()
	}
	for name, next := range all {
		for between, meddle := range map[string]func(w *Writer) error{
			"nothing":      func(*Writer) error { return nil },
			"not finished": func(w *Writer) error { w.Reset(); return w.Add(next[0]) },
			"refused": func(w *Writer) error {
				if _, err := finish(w, twice); err == nil {
					t.Fatal("a series twice")
				}
				return nil
			},
			"forgotten": func(w *Writer) error { w.Forget(); return nil },
		} {
			w := NewWriter(Options{})
			if _, err := finish(w, base); err != nil {
				t.Fatal(err)
			}
			if err := meddle(w); err != nil {
				t.Fatal(err)
			}
			got, err := finish(w, next)
			if err != nil {
				t.Fatal(err)
			}
			if want := write(t, Options{}, next); !bytes.Equal(got.Chunk, want.Chunk) || !bytes.Equal(got.Index, want.Index) {
				t.Errorf("%s after %s: other files than a new writer's", name, between)
			}
		}
	}
}
