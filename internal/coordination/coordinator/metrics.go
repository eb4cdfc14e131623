package coordinator

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	owned    prometheus.Gauge
	granted  prometheus.Counter
	ended    *prometheus.CounterVec // cause
	sessions prometheus.Counter
	renewals prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	const p = "lightmetrics_owner_"
	m := &metrics{
		owned:    prometheus.NewGauge(prometheus.GaugeOpts{Name: p + "shards", Help: "Shards that this worker works on."}),
		granted:  prometheus.NewCounter(prometheus.CounterOpts{Name: p + "grants_total", Help: "Shards that this worker was granted."}),
		ended:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "ends_total", Help: "Ends of work on a shard: revoked, lost, expired, draining, returned."}, []string{"cause"}),
		sessions: prometheus.NewCounter(prometheus.CounterOpts{Name: p + "sessions_total", Help: "Sessions that began; each but the first means that all shards were lost."}),
		renewals: prometheus.NewCounter(prometheus.CounterOpts{Name: p + "renewals_total", Help: "Renewals of the lease that were answered."}),
	}
	if reg != nil {
		reg.MustRegister(m.owned, m.granted, m.ended, m.sessions, m.renewals)
	}
	return m
}

func (m *metrics) end(ctx context.Context) {
	cause := "returned"
	switch err := context.Cause(ctx); {
	case errors.Is(err, ErrRevoked):
		cause = "revoked"
	case errors.Is(err, ErrLost):
		cause = "lost"
	case errors.Is(err, ErrLeaseExpired):
		cause = "expired"
	case errors.Is(err, ErrDraining):
		cause = "draining"
	}
	m.ended.WithLabelValues(cause).Inc()
}
