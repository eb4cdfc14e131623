package frame

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// A Builder that keeps its series gives batches with the content, and the strings, of one that begins anew.
func TestBuilderKeepsSeries(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	kept := NewBuilder()
	must(t, kept.SetResource(series.Label{Name: "host", Value: "h"}))
	for round := range 200 {
		fresh := NewBuilder()
		must(t, fresh.SetResource(series.Label{Name: "host", Value: "h"}))
		for _, b := range []*Builder{kept, fresh} {
			rnd := rand.New(rand.NewPCG(seed, uint64(round)))
			for i := range 1 + rnd.IntN(12) {
				if rnd.IntN(3) == 0 {
					continue
				}
				n := i + rnd.IntN(3)*10
				typ, unit := series.Gauge, fmt.Sprintf("unit_%d", n%5)
				if n%7 == 0 {
					typ = series.HistogramGauge
				}
				name := fmt.Sprintf("m%d", n)
				id, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: name}, {Name: fmt.Sprintf("l%d", n%4), Value: fmt.Sprintf("v%d", n/2)}}, typ, unit, 0)
				must(t, err)
				if rnd.IntN(4) == 0 {
					must(t, b.SetHelp(name, "help of "+name))
				}
				for ts := range int64(rnd.IntN(3)) { // or none at all
					if len(b.series[id].timestamps) > int(ts) {
						continue // the same series twice
					}
					if typ.Histogram() {
						must(t, b.AppendHistogram(id, 1+ts, series.Histogram{Count: float64(n), Sum: float64(n)}))
					} else {
						must(t, b.Append(id, 1+ts, float64(n)+float64(ts)))
					}
				}
			}
		}
		boot := identity.Boot{Agent: "a", Boot: "b"}
		got, gotErr := kept.Build(boot, 0)
		want, wantErr := fresh.Build(boot, 0)
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("round %d: %v, want %v", round, gotErr, wantErr)
		}
		if gotErr == nil {
			encoded, err := Encode(nil, got)
			must(t, err)
			decoded := &Batch{}
			must(t, Decode(encoded, decoded, Limits{}))
			if g, w := contents(decoded), contents(want); !maps.Equal(g, w) {
				t.Fatalf("round %d: %v, want %v", round, g, w)
			}
			// Fresh has the strings of series without records as well.
			used := map[string]bool{"": true, "host": true, "h": true}
			for _, g := range decoded.Groups {
				for _, s := range g.Series {
					used[decoded.Strings[s.Unit]] = true
					for _, l := range s.Labels {
						used[decoded.Strings[l.Name]], used[decoded.Strings[l.Value]] = true, true
					}
				}
			}
			if round > 0 && len(decoded.Strings) != len(used) {
				t.Fatalf("round %d: %d strings, and %d are used: %q", round, len(decoded.Strings), len(used), decoded.Strings)
			}
		}
		if rnd.IntN(10) == 0 {
			kept = NewBuilder()
			must(t, kept.SetResource(series.Label{Name: "host", Value: "h"}))
			// So that there is something to be left out.
			_, err := kept.AddSeries([]series.Label{{Name: series.MetricName, Value: "m1"}}, series.Gauge, "", 0)
			must(t, err)
		}
		kept.ResetRecords()
	}
}

// contents are the records and the helps of a batch.
func contents(b *Batch) map[string]string {
	all := map[string]string{}
	text := func(refs []series.LabelRef) string {
		var list []string
		for _, r := range refs {
			list = append(list, b.Strings[r.Name]+"="+b.Strings[r.Value])
		}
		slices.Sort(list)
		return fmt.Sprint(list)
	}
	for _, g := range b.Groups {
		rows := len(g.Timestamps)
		for i, s := range g.Series {
			key := fmt.Sprint(text(b.Resource), text(s.Labels), s.Type, b.Strings[s.Unit], s.StartTime)
			if g.Histograms != nil {
				all[key] = fmt.Sprint(g.Timestamps, g.Histograms[i*rows].Count, len(g.Histograms[i*rows:(i+1)*rows]))
			} else {
				all[key] = fmt.Sprint(g.Timestamps, g.Values[i*rows:(i+1)*rows])
			}
		}
	}
	helps := slices.SortedFunc(slices.Values(b.Helps), func(x, y Help) int { return cmp.Compare(b.Strings[x.Name], b.Strings[y.Name]) })
	for _, h := range helps {
		all["help "+b.Strings[h.Name]] = h.Text
	}
	return all
}
