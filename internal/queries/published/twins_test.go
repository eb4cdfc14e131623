package published_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Agents that measured the same at the same times have equal chunks: each is read with
// each of its indexes, whether they stand in blocks of several shards or in one block.
func TestEqualChunksOfSeveralAgents(t *testing.T) {
	const agents, samples = 60, 20
	h := timegrid.HourStarting(time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC))
	var batches []publishedtest.Batch
	for a := range agents {
		b := frame.NewBuilder()
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "up"}, {Name: "host", Value: fmt.Sprint(a)}}, series.Gauge, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for k := range samples {
			if err := b.Append(id, (h.StartMS()+int64(k+1)*15_000)*1e6, 1); err != nil {
				t.Fatal(err)
			}
		}
		f, err := b.Build(identity.Boot{Agent: fmt.Sprintf("agent%d", a), Boot: "b"}, 1)
		if err != nil {
			t.Fatal(err)
		}
		batches = append(batches, publishedtest.Batch{Frame: f})
	}
	for _, shards := range []uint32{1, 4, 64} {
		for _, perChunk := range []int{1, 7, 0} {
			store := mem.New(time.Now)
			p := publishedtest.Publisher{Store: store, Authority: "test", Shards: shards, PerChunk: perChunk}
			if _, err := p.Publish(t.Context(), h, 1, batches, timegrid.Resolutions()...); err != nil {
				t.Fatal(err)
			}
			views, err := publishedtest.NewViews(store, "test")
			if err != nil {
				t.Fatal(err)
			}
			r, err := published.New(published.Config{Store: store})
			if err != nil {
				t.Fatal(err)
			}
			up := labels.MustNewMatcher(labels.MatchEqual, "__name__", "up")
			for range 2 { // with the caches empty, and full
				q := r.Query(views, shards, published.Span{Oldest: h, Newest: h}, published.Limits{})
				got := map[string]int{}
				list, err := q.Select(t.Context(), h.StartMS(), h.EndMS(), up)
				if err != nil {
					t.Fatal(err)
				}
				for i := range list {
					for runs := list[i].Runs(h.StartMS(), h.EndMS()); ; {
						run, ok := runs.Next()
						if !ok {
							break
						}
						got[list[i].Labels.Get("host")] += len(run.T)
					}
				}
				checkTwins(t, fmt.Sprintf("%d shards, %d a chunk, samples", shards, perChunk), got, agents, samples)
				if hosts, err := q.LabelValues(t.Context(), "host", h.StartMS(), h.EndMS()); err != nil || len(hosts) != agents {
					t.Errorf("%d shards, %d a chunk: %d values of host, %v", shards, perChunk, len(hosts), err)
				}
				rolled, ok, err := q.SelectRolled(t.Context(), published.Rows{Resolution: timegrid.FiveMinutes}, h.StartMS()+1, h.EndMS(), func(timegrid.Hour) bool { return false },
					func(series.Type) bool { return true }, up)
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				clear(got)
				for i := range rolled {
					for k := range rolled[i].Parts() {
						c, from, to, ok, err := rolled[i].Rows(k, h.StartMS()+1, h.EndMS(), chunk.ColCount, &chunk.Columns{})
						if err != nil || !ok {
							t.Fatal(ok, err)
						}
						for _, n := range c.Count[from:to] {
							got[rolled[i].Labels.Get("host")] += int(n)
						}
					}
				}
				checkTwins(t, fmt.Sprintf("%d shards, %d a chunk, rows of five minutes", shards, perChunk), got, agents, samples)
				if ps, _ := q.Problems(); len(ps) > 0 {
					t.Errorf("problem: %+v", ps[0])
				}
			}
		}
	}
}

func checkTwins(t *testing.T, what string, got map[string]int, agents, samples int) {
	t.Helper()
	sum := 0
	for host, n := range got {
		if sum += n; n != samples {
			t.Errorf("%s: %d of host %s, want %d", what, n, host, samples)
			return
		}
	}
	if len(got) != agents {
		t.Errorf("%s: %d series with %d samples, want %d with %d", what, len(got), sum, agents, agents*samples)
	}
}
