package reconciler

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/layout"
)

// An audit is late when its last shard was due long ago, or when nobody has begun the next one; not while its shards wait for
// their times.
func TestAuditsThatAreOverdue(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	record := func(started, finished, spread int64, bounds ...string) audit.Stored {
		return audit.Stored{Record: audit.Record{Scope: audit.Full, StartedAt: started, FinishedAt: finished, Spread: spread, Bounds: bounds}}
	}
	const hour = 3600
	for name, c := range map[string]struct {
		history  []audit.Stored
		interval time.Duration
		now      int64
		want     time.Duration
	}{
		"none yet":                      {nil, time.Hour, 1000, 0},
		"under way":                     {[]audit.Stored{record(1000, 0, 0)}, time.Hour, 4000, 3000 * time.Second},
		"spread, before its last shard": {[]audit.Stored{record(1000, 0, hour, "m")}, time.Hour, 1000 + hour/2, 0},
		"spread, behind its last shard": {[]audit.Stored{record(1000, 0, hour, "m")}, time.Hour, 1000 + hour, hour / 2 * time.Second},
		"the oldest counts":             {[]audit.Stored{record(2000, 0, 0), record(1000, 0, 0)}, time.Hour, 2500, 1500 * time.Second},
		"finished":                      {[]audit.Stored{record(1000, 1500, 0)}, time.Hour, 1600, 0},
		"the next one is not begun":     {[]audit.Stored{record(1000, 1500, 0)}, time.Hour, 1000 + 3*hour, 2 * time.Hour},
		"there is to be no next one":    {[]audit.Stored{record(1000, 1500, 0)}, 0, 1000 + 3*hour, 0},
	} {
		m := &auditMetrics{due: map[string]time.Time{audit.Full: at(1)}} // of another time
		m.note(audit.Full, c.history, c.interval)
		if got := m.overdue(audit.Full, at(c.now)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A reconciler finds an audit that was begun long ago and that it can't work on, because it is of an inventory and
// it knows none: the metric says for how long.
func TestAnAuditThatNeverFinishesIsSeen(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	began := time.Now().Add(-50 * time.Hour)
	stuck := audit.Record{Scope: audit.Full, By: "r0", StartedAt: began.Unix(), UpdatedAt: began.Unix(), Inventory: "inventory/manifest.json", InventoryAt: began.Unix(), Files: 1, Shards: 1}
	create(t, s, layout.Audit(audit.Full, began, [16]byte{1}), stuck.Marshal())
	r := start(t, following(), s)
	eventually(t, "the metric says so", func() bool {
		v, ok := overdue(t, r, audit.Full)
		return ok && v > 49*3600 && v < 51*3600
	})
	if v, ok := overdue(t, r, audit.News); !ok || v != 0 {
		t.Errorf("news: %v, %v", v, ok)
	}
}

func overdue(t *testing.T, r *running, scope string) (float64, bool) {
	families, err := r.tel.Registry.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "lightmetrics_reconciler_audit_overdue_seconds" && m.GetLabel()[0].GetValue() == scope {
				return m.GetGauge().GetValue(), true
			}
		}
	}
	return 0, false
}
