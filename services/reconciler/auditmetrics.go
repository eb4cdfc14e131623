package reconciler

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/derived/audit"
)

// auditMetrics say how late audits are. An audit that takes its time keeps the loop of audits busy, so the age is taken
// when it is asked for.
type auditMetrics struct {
	mu sync.Mutex
	// due is when the work of a scope was due that is the oldest of those not done; it may lie ahead. Absent: there is none.
	due map[string]time.Time
}

func newAuditMetrics(reg prometheus.Registerer, now func() time.Time) *auditMetrics {
	m := &auditMetrics{due: map[string]time.Time{}}
	for _, scope := range []string{audit.Full, audit.News} {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "lightmetrics_reconciler_audit_overdue_seconds", ConstLabels: prometheus.Labels{"scope": scope},
			Help: "Time since the last shard of an audit that has not finished was due, or since an audit was due that nobody has begun; 0 where neither is so. By scope: full, news.",
		}, func() float64 { return m.overdue(scope, now()).Seconds() }))
	}
	return m
}

func (m *auditMetrics) overdue(scope string, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	due, ok := m.due[scope]
	if !ok {
		return 0
	}
	return max(now.Sub(due), 0)
}

// note takes the newest audits of a scope, of which one is begun each interval; 0 is never.
func (m *auditMetrics) note(scope string, history []audit.Stored, interval time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if due, ok := oldestDue(history, interval); ok {
		m.due[scope] = due
		return
	}
	delete(m.due, scope)
}

// oldestDue is when the first audit that has not finished should have begun its last shard, or when the next one is due.
func oldestDue(history []audit.Stored, interval time.Duration) (due time.Time, ok bool) {
	for i := range history {
		r := &history[i]
		if last := r.DueAt(r.ShardCount() - 1); !r.Finished() && (!ok || last.Before(due)) {
			due, ok = last, true
		}
	}
	if !ok && len(history) > 0 && interval > 0 {
		return time.Unix(history[0].StartedAt, 0).Add(interval), true
	}
	return due, ok
}
