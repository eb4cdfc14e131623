package blocks

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"lightmetrics.dev/lightmetrics/internal/queries/published"
)

type metrics struct {
	refreshes *prometheus.CounterVec
	failed    prometheus.Counter

	gets, bytes, samples prometheus.Counter
	hits                 *prometheus.CounterVec
	problems             prometheus.Counter
	resolutions          *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, k *Keeper) metrics {
	p := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return p.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return p.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	for i, name := range []string{"index", "block", "labels"} {
		p.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_query_cache_bytes", Help: "Memory of a cache of published objects, estimated.",
			ConstLabels: prometheus.Labels{"cache": name}}, func() float64 {
			x, b := k.CacheBytes()
			return float64([]int64{x, b, k.LabelBytes()}[i])
		})
	}
	return metrics{
		refreshes:   vec("lightmetrics_query_catalog_refreshes_total", "Refreshes of the list of blocks, by outcome.", "outcome"),
		failed:      counter("lightmetrics_query_catalog_poll_failures_total", "Polls of the blocks that failed."),
		gets:        counter("lightmetrics_query_published_gets_total", "Requests for parts of published objects."),
		bytes:       counter("lightmetrics_query_published_read_bytes_total", "Bytes that these requests read."),
		samples:     counter("lightmetrics_query_published_samples_total", "Samples and rolled rows that were decoded."),
		hits:        vec("lightmetrics_query_cache_hits_total", "Indexes and blocks that were in memory.", "cache"),
		problems:    counter("lightmetrics_query_published_problems_total", "Objects of blocks that queries could not read."),
		resolutions: vec("lightmetrics_query_resolution_selectors_total", "Selectors that were answered from rolled blocks, by resolution.", "resolution"),
	}
}

func (m *metrics) refreshed(err error) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.refreshes.WithLabelValues(outcome).Inc()
}

// Done counts what a query read.
func (k *Keeper) Done(q *published.Query) {
	s := q.Stats()
	k.m.gets.Add(float64(s.Gets))
	k.m.bytes.Add(float64(s.Bytes))
	k.m.samples.Add(float64(s.Samples))
	k.m.hits.WithLabelValues("index").Add(float64(s.IndexHits))
	k.m.hits.WithLabelValues("block").Add(float64(s.BlockHits))
	for w, n := range s.Resolutions {
		k.m.resolutions.WithLabelValues(w).Add(float64(n))
	}
	list, more := q.Problems()
	k.m.problems.Add(float64(len(list) + more))
}
