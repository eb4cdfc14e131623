package telemetry

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

var descReady = prometheus.NewDesc("lightmetrics_ready",
	"1 while a part of what the service needs is there, as /-/ready says; the service is ready when all parts are.", []string{"part"}, nil)

// readyCollector gives the readiness of a service at the time of the scrape.
type readyCollector struct {
	of atomic.Pointer[run.Readiness]
}

// Describe implements prometheus.Collector.
func (c *readyCollector) Describe(ch chan<- *prometheus.Desc) { ch <- descReady }

// Collect implements prometheus.Collector.
func (c *readyCollector) Collect(ch chan<- prometheus.Metric) {
	r := c.of.Load()
	if r == nil {
		return // not started, or a service that needs nothing
	}
	for _, p := range r.Status() {
		v := 0.0
		if p.Ready {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(descReady, prometheus.GaugeValue, v, p.Part)
	}
}
