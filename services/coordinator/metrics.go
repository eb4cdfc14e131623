package coordinator

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// metrics of a coordinator. The guide lists them.
type metrics struct {
	changes  *prometheus.CounterVec // kind
	moved    *prometheus.CounterVec // kind
	grants   *prometheus.CounterVec // kind
	writes   *prometheus.CounterVec // kind, result
	renewals *prometheus.CounterVec // result
}

func newMetrics(reg prometheus.Registerer, s *Service) *metrics {
	const p = "lightmetrics_coordinator_"
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + name, Help: help}, labels)
	}
	m := &metrics{
		changes:  vec("assignments_total", "Changes of the assignment that this coordinator wrote.", "kind"),
		moved:    vec("moved_shards_total", "Shards whose target changed from one worker to another.", "kind"),
		grants:   vec("grants_total", "Shards that were granted.", "kind"),
		writes:   vec("unwritten_decisions_total", "Decisions that were not written, by result: refused (the mirror lagged, or another leads), failed.", "kind", "result"),
		renewals: vec("renewals_total", "Renewals of workers' leases, by result: ok, lost, failed.", "result"),
	}
	reg.MustRegister(m.changes, m.moved, m.grants, m.writes, m.renewals, newStateCollector(s),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p + "leading", Help: "1 while this coordinator assigns the shards."},
			func() float64 { return number(s.Leading()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p + "etcd_up", Help: "1 while etcd answers."},
			func() float64 { b := s.back.Load(); return number(b != nil && b.mirror.Err() == nil) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p + "term", Help: "Number of this coordinator's last term; 0 without a store for terms."},
			func() float64 {
				if b := s.back.Load(); b != nil {
					return float64(b.leader.Term())
				}
				return 0
			}))
	for _, k := range ownership.Kinds() {
		// Counters begin at 0, so that the first change is visible as an increase.
		m.changes.WithLabelValues(string(k))
		m.moved.WithLabelValues(string(k))
		m.grants.WithLabelValues(string(k))
	}
	return m
}

func number(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

func (m *metrics) observer() etcd.Observer {
	return etcd.Observer{
		Moved: func(k ownership.Kind, mv etcd.Move) {
			m.changes.WithLabelValues(string(k)).Inc()
			m.moved.WithLabelValues(string(k)).Add(float64(len(mv.Shards)))
		},
		Granted: func(k ownership.Kind, n int) { m.grants.WithLabelValues(string(k)).Add(float64(n)) },
		Refused: func(k ownership.Kind) { m.writes.WithLabelValues(string(k), "refused").Inc() },
		Failed:  func(k ownership.Kind) { m.writes.WithLabelValues(string(k), "failed").Inc() },
	}
}

func (m *metrics) renewed(err error) {
	switch {
	case err == nil:
		m.renewals.WithLabelValues("ok").Inc()
	case errors.Is(err, etcd.ErrSessionLost):
		m.renewals.WithLabelValues("lost").Inc()
	default:
		m.renewals.WithLabelValues("failed").Inc()
	}
}

// stateCollector shows what etcd says of each kind that has shards.
type stateCollector struct {
	s                            *Service
	shards, held, pending, works *prometheus.Desc
}

func newStateCollector(s *Service) *stateCollector {
	d := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("lightmetrics_coordinator_"+name, help, []string{"kind"}, nil)
	}
	return &stateCollector{s: s,
		shards:  d("shards", "Shards of the kind."),
		held:    d("held_shards", "Shards that a worker holds."),
		pending: d("misplaced_shards", "Shards that are not held by the worker that should own them."),
		works:   d("workers", "Live workers."),
	}
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.shards, c.held, c.pending, c.works} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	// Without etcd there is nothing to show; zeros would look like lost workers.
	b := c.s.back.Load()
	if b == nil {
		return
	}
	for _, k := range ownership.Kinds() {
		st := b.mirror.State(k)
		if st.Shards == 0 {
			continue
		}
		held, pending := 0, 0
		for i, g := range st.Grants {
			if g.Held() {
				held++
			}
			if g.Worker != st.Targets[i] {
				pending++
			}
		}
		gauge := func(d *prometheus.Desc, v int) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), string(k))
		}
		gauge(c.shards, int(st.Shards))
		gauge(c.held, held)
		gauge(c.pending, pending)
		gauge(c.works, len(ownership.Current(st.View().Workers)))
	}
}
