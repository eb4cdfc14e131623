package reconciler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/forward"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
)

// claimMetrics say how claims of the region are rolled forward. They are there only where there are regions.
type claimMetrics struct {
	rolled, scans, judged       *prometheus.CounterVec
	settled, replaced, affirmed prometheus.Counter
	left                        *prometheus.GaugeVec
	oldest, unreadable          prometheus.Gauge
	copies, copyBytes           prometheus.Gauge
}

func newClaimMetrics(reg prometheus.Registerer) *claimMetrics {
	m := &claimMetrics{
		rolled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_reconciler_claims_total",
			Help: "Claims of this region that were left alone, by what became of them: completed, durable (it was already), released, moved (somebody else went on), waits (for its sender), stuck."}, []string{"action"}),
		scans: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_reconciler_claim_scans_total",
			Help: "Scans of the claims of this region, by result."}, []string{"result"}),
		judged: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_reconciler_manifests_judged_total",
			Help: "Manifests without an entry that the linearizer was asked about, by verdict: ours, secondary (another region counts the batch), loser (quarantined), open (somebody else may go on), frameless (its frame is lost)."}, []string{"verdict"}),
		settled: prometheus.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_reconciler_claims_settled_total",
			Help: "Claims that were entered into the journal and settled here, in the place of their collectors."}),
		replaced: prometheus.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_reconciler_claims_replaced_total",
			Help: "Claims that were replaced by one for the frame that this region's key has."}),
		affirmed: prometheus.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_reconciler_affirmations_total",
			Help: "Affirmations of later claims that were written beside manifests."}),
		left: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lightmetrics_reconciler_claims_left",
			Help: "Claims of this region that the last scan could neither complete nor release: waits (for its sender), stuck, failed (tried again)."}, []string{"action"}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lightmetrics_reconciler_claims_oldest_seconds",
			Help: "Age of the oldest claim of this region that the last scan could neither complete nor release; 0 is none."}),
		unreadable: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lightmetrics_reconciler_claims_unreadable",
			Help: "Claims of any region that the last scan could not read."}),
		copies: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lightmetrics_reconciler_secondary_copies",
			Help: "Manifests of this region whose batch another region counts, as the last full audit found them."}),
		copyBytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lightmetrics_reconciler_secondary_copy_bytes",
			Help: "Bytes of the frames of these manifests."}),
	}
	for _, a := range forward.Actions() {
		m.rolled.WithLabelValues(string(a))
	}
	for _, v := range forward.Verdicts() {
		m.judged.WithLabelValues(string(v))
	}
	for _, r := range []string{"ok", "failed"} {
		m.scans.WithLabelValues(r)
	}
	for _, a := range leftActions {
		m.left.WithLabelValues(a)
	}
	reg.MustRegister(m.rolled, m.scans, m.judged, m.settled, m.replaced, m.affirmed, m.left, m.oldest, m.unreadable, m.copies, m.copyBytes)
	return m
}

var leftActions = []string{string(forward.Stuck), "failed"}

// leftClaims are those that a scan leaves as they are.
type leftClaims struct {
	now        time.Time
	by         map[string]int
	oldest     time.Duration
	unreadable int
}

func newLeft(now time.Time) *leftClaims { return &leftClaims{now: now, by: map[string]int{}} }

func (l *leftClaims) add(action string, c claims.Claim) {
	l.by[action]++
	since := c.ClaimedAt
	if c.State != claims.Claimed {
		since = c.DurableAt
	}
	l.oldest = max(l.oldest, l.now.Sub(time.Unix(0, since)))
}

// note takes what a scan left that went through all claims.
func (m *claimMetrics) note(l *leftClaims) {
	for _, a := range leftActions {
		m.left.WithLabelValues(a).Set(float64(l.by[a]))
	}
	m.oldest.Set(l.oldest.Seconds())
	m.unreadable.Set(float64(l.unreadable))
}

// audited takes the newest full audits.
func (m *claimMetrics) audited(full []audit.Stored) {
	for i := range full {
		if r := &full[i]; r.Finished() {
			m.copies.Set(float64(r.Copies))
			m.copyBytes.Set(float64(r.CopyBytes))
			return
		}
	}
}
