package reconciler

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestOneIDOnTwoMachinesIsCounted: the metric of the alert counts agents whose boots send at the
// same time, and no agent that began a new boot.
func TestOneIDOnTwoMachinesIsCounted(t *testing.T) {
	s := newStore()
	now := time.Now()
	send := func(agent, boot string, from, to time.Duration) {
		for n := uint64(1); from > to; n, from = n+1, from-20*time.Second {
			id := identity.Batch{Agent: agent, Boot: boot, SeqStart: n, SeqEnd: n}
			m, frame := manifest(id)
			at := now.Add(-from).UnixNano()
			m.AcceptedAt, m.MinTime, m.MaxTime = at+int64(time.Second), at, at
			_, err := s.Put(bg, layout.Boot(id.BootOf()), []byte("{}"), objstore.PutOptions{})
			must(t, err)
			_, err = s.Put(bg, m.RawBlobKey, frame, objstore.PutOptions{})
			must(t, err)
			create(t, s, layout.Accepted(id), m.Marshal())
			must(t, journaltest.Append(bg, s, testAuthority, m.Entry(journal.Accepted)))
		}
	}
	send("web-2", "one", 10*time.Minute, 5*time.Minute)
	send("web-2", "two", 5*time.Minute, 0)
	r := start(t, quiet(), s)
	eventually(t, "all is reconciled", func() bool { return r.reconciled.Load() >= 30 })
	if got := gaugeOf(t, r, "lightmetrics_reconciler_shared_agent_ids"); got != 0 {
		t.Errorf("a new boot counts %v", got)
	}
	must(t, r.stop())
	send("web-1", "one", 10*time.Minute, 0)
	send("web-1", "two", 9*time.Minute, 0)
	r = start(t, quiet(), s)
	eventually(t, "one agent id is shared", func() bool { return gaugeOf(t, r, "lightmetrics_reconciler_shared_agent_ids") == 1 })
}

// gaugeOf is a metric as it would be scraped.
func gaugeOf(t *testing.T, r *running, name string) float64 {
	t.Helper()
	families, err := r.tel.Registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
