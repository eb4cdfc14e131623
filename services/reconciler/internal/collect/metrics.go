package collect

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
)

// Metrics of garbage collection. Those of the state are the same in every reconciler, as far as each has read it.
type Metrics struct {
	blobs    *prometheus.CounterVec // source, action
	kept     *prometheus.CounterVec // reason
	bytes    prometheus.Counter
	errors   prometheus.Counter
	requests prometheus.Counter
	tripped  prometheus.Gauge
	over     prometheus.Gauge
	reports  prometheus.Gauge
	oldest   prometheus.Gauge
	awaited  prometheus.Gauge
	markers  prometheus.Gauge
	foreign  prometheus.Gauge
	orphans  *prometheus.GaugeVec // age

	mu  sync.Mutex
	due time.Time
}

// ages are the labels of gc.Ages.
var ages = []string{"2d", "7d", "30d", "older"}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer, now func() time.Time) *Metrics {
	const p = "lightmetrics_reconciler_gc_"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: p + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: p + name, Help: help})
	}
	m := &Metrics{
		blobs:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "blobs_total", Help: "What this reconciler did with blobs that may be orphans, by source (SWEEP, REPORTS) and action."}, []string{"source", "action"}),
		kept:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "kept_total", Help: "Such blobs that it kept, by reason. Of FRAME_UNREADABLE and RECORD_UNREADABLE an operator must look at each."}, []string{"reason"}),
		bytes:    counter("deleted_bytes_total", "Bytes of the orphan blobs that it deleted."),
		errors:   counter("errors_total", "Steps of garbage collection that failed; each goes on where it was."),
		requests: counter("requests_total", "Requests of garbage collection."),
		tripped:  gauge("breaker_tripped", "1 while the breaker holds: nothing is deleted until an operator has checked it."),
		over:     gauge("over_budget", "1 while the day's requests are used up."),
		reports:  gauge("reports", "Collectors' reports of submissions without an outcome that are not checked yet; at most 1,000 are counted."),
		oldest:   gauge("oldest_report_seconds", "Age of the oldest such report that was never checked; 0 where there is none."),
		awaited:  gauge("awaited_runs", "Runs of the journal that have not come to the epoch of what is condemned; nothing of that is deleted until they have."),
		markers:  gauge("markers", "Condemned markers of orphan blobs that were written since the state was made; they are permanent."),
		foreign:  gauge("foreign_keys", "Keys below raw-blobs/ that are no blob's, in the last sweep; never touched."),
		orphans:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: p + "candidates", Help: "Blobs that the last sweep found and that no entry of the journal names, by age: up to 2d, 7d, 30d, older."}, []string{"age"}),
	}
	reg.MustRegister(m.blobs, m.kept, m.bytes, m.errors, m.requests, m.tripped, m.over, m.reports, m.oldest, m.awaited, m.markers, m.foreign, m.orphans,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p + "sweep_overdue_seconds", Help: "Time since a sweep that has not ended began, or since the next one was due; 0 where neither is so."},
			func() float64 { return m.overdue(now()).Seconds() }))
	for _, s := range []gc.Source{gc.FromSweep, gc.FromReports} {
		m.blobs.WithLabelValues(string(s), string(gc.Deleted))
	}
	for _, age := range ages {
		m.orphans.WithLabelValues(age) // There are series before the first sweep.
	}
	return m
}

func (m *Metrics) overdue(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.due.IsZero() {
		return 0
	}
	return max(now.Sub(m.due), 0)
}

// waiting is said also of a step that failed.
func (m *Metrics) waiting(p *gc.Progress) {
	if p.Looked {
		m.reports.Set(float64(p.Waiting))
		m.oldest.Set(p.Oldest.Seconds())
	}
}

func (m *Metrics) note(p *gc.Progress, due time.Time) {
	m.mu.Lock()
	m.due = due
	m.mu.Unlock()
	flag := func(g prometheus.Gauge, on bool) {
		g.Set(0)
		if on {
			g.Set(1)
		}
	}
	flag(m.tripped, p.State.Holds())
	flag(m.over, p.OverBudget)
	m.awaited.Set(float64(p.Awaited))
	m.markers.Set(float64(p.State.Markers))
	m.foreign.Set(float64(p.State.Last.Foreign))
	// A sweep that found none has no counts.
	for i, age := range ages {
		n := uint64(0)
		if i < len(p.State.Last.Ages) {
			n = p.State.Last.Ages[i]
		}
		m.orphans.WithLabelValues(age).Set(float64(n))
	}
}

func (m *Metrics) executed(source gc.Source, r *gc.Report) {
	m.bytes.Add(float64(r.Bytes))
	for _, e := range r.Entries {
		m.blobs.WithLabelValues(string(source), string(e.Action)).Inc()
		if e.Action == gc.KeptBlob {
			m.kept.WithLabelValues(string(e.Reason)).Inc()
		}
	}
}
