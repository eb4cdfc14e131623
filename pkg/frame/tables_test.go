package frame

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// tablesBatch is a batch of one of few tables: two of them in a row are often the same, or the same up to a group.
func tablesBatch(t *testing.T, rnd *rand.Rand) *Batch {
	b := NewBuilder()
	if rnd.IntN(3) > 0 {
		must(t, b.SetResource(series.Label{Name: "host", Value: fmt.Sprint("h", rnd.IntN(2))}))
	}
	// Groups are series with the same times.
	for group := range 1 + rnd.IntN(3) {
		histograms, more, start := rnd.IntN(6) == 0, rnd.IntN(4) == 0, int64(0)
		if rnd.IntN(6) == 0 {
			start = 77
		}
		for i := range 2 + group {
			labels := []series.Label{{Name: series.MetricName, Value: fmt.Sprint("m", group)}, {Name: "i", Value: fmt.Sprint(i)}}
			if more {
				labels = append(labels, series.Label{Name: "z", Value: "more"})
			}
			id, err := b.AddSeries(labels, series.Unknown, []string{"", "s"}[rnd.IntN(8)/7], start)
			must(t, err)
			for row := range 1 + group {
				if histograms {
					must(t, b.AppendHistogram(id, int64(row+1)*1e9, series.Histogram{Schema: 1, PositiveSpans: []int32{0, 1}, PositiveBuckets: []float64{rnd.Float64()}}))
				} else {
					must(t, b.Append(id, int64(row+1)*1e9, rnd.Float64()))
				}
			}
		}
	}
	out, err := b.Build(boot, uint64(rnd.IntN(100)))
	must(t, err)
	return out
}

// cutBatch leaves out groups of b, or labels of the series of its first one, and keeps the strings.
func cutBatch(b *Batch, rnd *rand.Rand) *Batch {
	out := *b
	out.Groups = slices.Clone(b.Groups[:1+rnd.IntN(len(b.Groups))])
	if rnd.IntN(2) == 0 {
		g := &out.Groups[0]
		g.Series = slices.Clone(g.Series)
		for i := range g.Series {
			g.Series[i].Labels = g.Series[i].Labels[:len(g.Series[i].Labels)-1]
		}
	}
	out.Identity.SeqEnd = out.Identity.SeqStart + out.Records() - 1
	return &out
}

// A Batch that is decoded into over and over has what a new one has, and the same errors: whatever came before, frames that
// are refused among them. The version of its tables stays while they do, and not longer.
func TestTablesThatComeAgain(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		d := NewDecoder()
		var b Batch
		var base, next *Batch
		var tables string
		version, kept := uint64(0), 0
		for step := range 200 {
			var w payloadWriter
			switch {
			case base == nil || rnd.IntN(8) == 0:
				base = tablesBatch(t, rnd)
				next = base
			case rnd.IntN(2) == 0:
				next = cutBatch(base, rnd)
			}
			payload := slices.Clone(w.write(next))
			for range rnd.IntN(8) / 6 {
				payload[rnd.IntN(len(payload))] ^= 1 << rnd.IntN(8)
			}
			lim := Limits{}
			if rnd.IntN(8) == 0 {
				lim = Limits{SeriesLabels: 1 + rnd.IntN(3), DecodedBytes: 300 + rnd.IntN(1200)}
			}
			f := rawFrame(next.Identity, None, payload, len(payload))
			var fresh Batch
			want, got := NewDecoder().Decode(f, &fresh, lim), d.Decode(f, &b, lim)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("seed %d, step %d: %v, a new batch: %v", seed, step, got, want)
			}
			if want != nil {
				continue
			}
			if diff := diffBatch(&fresh, &b); diff != "" {
				t.Fatalf("seed %d, step %d: %s", seed, step, diff)
			}
			now := describeTables(&fresh)
			if b.TablesVersion() == version {
				if kept++; now != tables {
					t.Fatalf("seed %d, step %d: one version of\n%s\nand\n%s", seed, step, tables, now)
				}
			}
			version, tables = b.TablesVersion(), now
			if version == fresh.TablesVersion() || version == 0 {
				t.Fatalf("seed %d, step %d: version %d of two batches", seed, step, version)
			}
		}
		if kept == 0 {
			t.Fatalf("seed %d: no tables came twice in a row", seed)
		}
	}
}

func describeTables(b *Batch) string {
	out := fmt.Sprint(b.Strings, b.Resource)
	for i := range b.Groups {
		out += fmt.Sprint(len(b.Groups[i].Histograms) > 0, b.Groups[i].Series)
	}
	return out
}
