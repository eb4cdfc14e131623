package objectstore

import (
	"context"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// placeMetrics describe the places of large bodies; there are none without places.
type placeMetrics struct{ of *atomic.Pointer[spread.Store] }

var (
	placeUp = prometheus.NewDesc("lightmetrics_objectstore_place_up",
		"1 while the place takes writes.", []string{"place"}, nil)
	placeFree = prometheus.NewDesc("lightmetrics_objectstore_place_free_bytes",
		"Free room of a local place.", []string{"place"}, nil)
	placeDecoded = prometheus.NewDesc("lightmetrics_objectstore_decoded_bytes_total",
		"Bytes that readers got from other shards than those that have them.", nil, nil)
	placeDegraded = prometheus.NewDesc("lightmetrics_objectstore_fragments_degraded_total",
		"Copies and shards that readers found missing or damaged.", nil, nil)
	placeRepaired = prometheus.NewDesc("lightmetrics_objectstore_fragments_repaired_total",
		"Copies and shards that were made again.", nil, nil)
)

// Describe implements prometheus.Collector.
func (p *placeMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{placeUp, placeFree, placeDecoded, placeDegraded, placeRepaired} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (p *placeMetrics) Collect(ch chan<- prometheus.Metric) {
	s := p.of.Load()
	if s == nil {
		return
	}
	st := s.Stats(context.Background())
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, pl := range st.Places {
		gauge(placeUp, truth(pl.Err == nil), pl.Name)
		if pl.Free >= 0 {
			gauge(placeFree, float64(pl.Free), pl.Name)
		}
	}
	for d, n := range map[*prometheus.Desc]int64{placeDecoded: st.DecodedBytes, placeDegraded: st.Degraded, placeRepaired: st.Repaired} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
}
