package reconciler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/acceptance/sharedid"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/scrub"
)

// metrics of a reconciler. The guide lists them.
type metrics struct {
	reg       prometheus.Registerer
	lag       prometheus.Histogram
	items     *prometheus.CounterVec // source
	ends      *prometheus.CounterVec // result
	created   *prometheus.CounterVec // kind
	repairs   *prometheus.CounterVec // kind
	opened    *prometheus.CounterVec // cause
	healed    prometheus.Counter
	open      prometheus.Gauge
	putBack   *prometheus.CounterVec // result
	audits    *prometheus.CounterVec // kind, result
	auditTime *prometheus.HistogramVec
	overlaps  prometheus.Counter
	foreign   *prometheus.CounterVec // family
}

func newMetrics(reg prometheus.Registerer, q *queue, shared *sharedid.Detector, now func() time.Time) *metrics {
	const p = "lightmetrics_reconciler_"
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: p + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: p + name, Help: help})
	}
	m := &metrics{
		reg: reg,
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{Name: p + "lag_seconds",
			Help:    "From acceptance (the collector's clock) until the batch was read from a segment of the journal and is in the ledgers.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86400}}),
		items:   vec("items_total", "Manifests that were queued, by how they were found.", "source"),
		ends:    vec("outcomes_total", "Ends of passes: ok, removed (the frame is gone by retention), reported, absent, unknown, retry, aborted.", "result"),
		created: vec("derived_created_total", "Derived keys written, by kind.", "kind"),
		repairs: vec("repairs_total", "Derived keys that a scan or audit found missing and wrote, by kind.", "kind"),
		opened:  vec("repair_records_opened_total", "Repair records opened, by cause.", "cause"),
		healed:  counter("repair_records_healed_total", "Repair records removed because the fault was gone."),
		open:    gauge("open_repairs", "Open repair records at the last check."),
		putBack: vec("put_back_total", "Frames that were damaged or missing and for which places were asked: put_back, none (no place has it), failed.", "result"),
		audits:  vec("audits_total", "Finished sweeps of open repair records (repair_sweep), by result.", "kind", "result"),
		auditTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: p + "audit_duration_seconds",
			Help: "Duration of such sweeps, including the work that they found.", Buckets: prometheus.ExponentialBuckets(0.005, 4, 11)}, []string{"kind"}),
		overlaps: counter("overlaps_total", "Identities that overlap others of their boot."),
		foreign:  vec("foreign_keys_total", "Keys under our prefixes that we never write, by family; reported, never changed.", "family"),
	}
	for _, r := range []string{"put_back", "none", "failed"} {
		m.putBack.WithLabelValues(r)
	}
	reg.MustRegister(m.putBack, m.lag, m.items, m.ends, m.created, m.repairs, m.opened, m.healed, m.open,
		m.audits, m.auditTime, m.overlaps, m.foreign,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p + "queue_length", Help: "Manifests that wait, are being reconciled or wait for a retry."},
			func() float64 { n, _ := q.length(); return float64(n) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p + "queue_age_seconds", Help: "How long the first manifest in the queue has waited."},
			func() float64 {
				if _, at := q.length(); !at.IsZero() {
					return now().Sub(at).Seconds()
				}
				return 0
			}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p + "shared_agent_ids", Help: "Agent ids that several machines use at once: boots that send samples of the same minutes at the same time."},
			func() float64 { return float64(len(shared.All(now()))) }))
	for _, s := range sources() {
		m.items.WithLabelValues(string(s))
	}
	m.ends.WithLabelValues("ok")
	for _, k := range reconcile.Kinds() {
		m.created.WithLabelValues(string(k))
		m.repairs.WithLabelValues(string(k))
	}
	for _, c := range reconcile.Causes() {
		m.opened.WithLabelValues(string(c))
	}
	return m
}

// scrubbed counts what the scrub checks, and shows how far and how fast it is.
func (m *metrics) scrubbed(s *scrub.Scrubber) {
	counter := func(name, help string, get func() uint64) {
		m.reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "lightmetrics_reconciler_" + name, Help: help}, func() float64 { return float64(get()) }))
	}
	gauge := func(name, help string, get func() float64) {
		m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_reconciler_scrub_" + name, Help: help}, get))
	}
	counter("scrubbed_frames_total", "Frames that the scrub has checked.", s.Checked)
	counter("scrubbed_bytes_total", "Bytes of frames that the scrub has read, and that have their hash.", s.Hashed)
	counter("scrub_suspects_total", "Frames that the scrub has not found where the journal says, or not whole; each is looked for elsewhere before a repair record is opened.", s.Suspects)
	gauge("frames_per_second", "Most frames that the scrub of this process checks in a second: as many as scrub.period asks for, and scrub.rate allows.", s.Pace)
	gauge("progress", "Part of the frames of this pass that was checked, 0 to 1, as this process knows.", s.Progress)
	gauge("unverified_seconds", "For how long, at most, some frame was not checked: since the begin of the last pass that has ended.", func() float64 { return s.Unverified().Seconds() })
	gauge("overdue_seconds", "For how long the end of a pass, or the begin of the next one, is late; 0 where neither is.", func() float64 { return s.Overdue().Seconds() })
}
