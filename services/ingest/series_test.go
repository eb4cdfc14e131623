package ingest

import (
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/rollups/sketch"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// batchOf has one series for each value of the label i, in [from, to).
func batchOf(t testing.TB, resource bool, from, to int) *frame.Batch {
	t.Helper()
	fb := frame.NewBuilder()
	host := series.Label{Name: "host", Value: "web-1"}
	if resource {
		if err := fb.SetResource(host); err != nil {
			t.Fatal(err)
		}
	}
	for i := from; i < to; i++ {
		labels := []series.Label{{Name: "__name__", Value: "m"}}
		if !resource || i%2 == 0 { // half of them say again what the resource says
			labels = append(labels, host)
		}
		id, err := fb.AddSeries(append(labels, series.Label{Name: "i", Value: fmt.Sprint(i)}), series.Gauge, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := fb.Append(id, 1, float64(i)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := fb.Build(identity.Boot{Agent: "web-1", Boot: "b"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestMeasure: a series is its resolved labels, wherever they stand.
func TestMeasure(t *testing.T) {
	var m measurer
	var own, shared, more shape
	m.measure(batchOf(t, false, 0, 100), &own)
	m.measure(batchOf(t, true, 0, 100), &shared)
	m.measure(batchOf(t, true, 0, 101), &more)
	if own.series != 100 || own.seen != shared.seen {
		t.Errorf("%d series; labels of the resource make other series of them: %v", own.series, own.seen != shared.seen)
	}
	if want := len("__name__m" + "hostweb-1" + "i99"); own.labelBytes != want || shared.labelBytes != want {
		t.Errorf("labels of %d and %d bytes, want %d", own.labelBytes, shared.labelBytes, want)
	}
	if n := more.seen.Estimate(); n < 95 || n > 107 {
		t.Errorf("101 series are estimated as %.1f", n)
	}
}

func seenOf(t testing.TB, from, to int) *sketch.Sketch {
	t.Helper()
	var s sketch.Sketch
	for i := from; i < to; i++ {
		s.Add(sketch.Mix(uint64(i), uint64(i)+1))
	}
	return &s
}

// TestActiveSeriesWindow: a series counts for one window at least and for two at most.
func TestActiveSeriesWindow(t *testing.T) {
	now := time.Unix(0, 0)
	a := newAgents(Limits{AgentSeries: 1000, SeriesWindow: time.Hour, AgentsTracked: 10}, func() time.Time { return now })
	take := func(from, to int, want bool) {
		t.Helper()
		if _, ok := a.takeSeries("a", seenOf(t, from, to)); ok != want {
			t.Errorf("at %v: series %d to %d are taken: %v, want %v", now.Sub(time.Unix(0, 0)), from, to, ok, want)
		}
	}
	take(0, 800, true)
	take(800, 1600, false)
	if a.atSeriesLimit() != 1 {
		t.Errorf("%d agents at their limit, want 1", a.atSeriesLimit())
	}
	take(0, 800, true) // nothing of what was refused is counted
	now = now.Add(61 * time.Minute)
	take(800, 1600, false) // the first ones may be 61 minutes old, or 1
	take(0, 100, true)
	now = now.Add(60 * time.Minute)
	take(800, 1600, true) // now only those 100 count
	take(1600, 2000, false)
	if a.atSeriesLimit() != 1 {
		t.Errorf("%d agents at their limit, want 1", a.atSeriesLimit())
	}
	now = now.Add(5 * time.Hour)
	take(5000, 5900, true)
	if a.atSeriesLimit() != 0 {
		t.Errorf("%d agents at their limit after hours without a refusal, want 0", a.atSeriesLimit())
	}
}

// TestActiveSeriesAreBounded: memory is of the agents that sent last, however many there are.
func TestActiveSeriesAreBounded(t *testing.T) {
	a := newAgents(Limits{AgentSeries: 10, SeriesWindow: time.Hour, AgentsTracked: 5}, time.Now)
	for i := range 100 {
		a.takeSeries(fmt.Sprint("agent-", i), seenOf(t, 0, 8))
		a.takeSeries("steady", seenOf(t, 0, 8))
	}
	if a.recent.Len() != 5 {
		t.Errorf("%d agents remembered, want 5", a.recent.Len())
	}
	if _, ok := a.takeSeries("steady", seenOf(t, 8, 16)); ok {
		t.Error("an agent that sends all the time was forgotten")
	}
}
