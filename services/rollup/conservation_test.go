package rollup

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Nothing is made of a plan whose records do not all come out of its parts, and it is told of.
func TestLostRecordsAreNotPublished(t *testing.T) {
	w := newWorld(t, newMem())
	w.some(agentOf(0, 0), hour0, 0, 5, 0)
	w.drive(testConfig(), Grant{Shard: 0, Fence: 1})
	svc := w.worker(testConfig(), w.store)
	o, err := w.owner(svc, Grant{Shard: 0, Fence: 2})
	must(t, err)
	p, err := svc.readPlan(t.Context(), hour0, 0, 1)
	must(t, err)
	if m, err := svc.make(t.Context(), p, nil, timegrid.Resolutions(), func() error { return nil }); err != nil || m.counts.Inputs != p.Records() {
		t.Fatalf("the whole plan, of %d records: %v", p.Records(), err)
	}
	p.Parts = 0 // a part that is forgotten
	m, err := svc.make(t.Context(), p, nil, timegrid.Resolutions(), func() error { return nil })
	var lost *rollup.ConservationError
	if m != nil || !errors.As(err, &lost) {
		t.Fatalf("without a part: %v", err)
	}
	h := job{o: o, h: hour0}
	if err := h.failed(t.Context(), p, &published{}, nil, err); !errors.As(err, &lost) {
		t.Errorf("the job ends with %v", err)
	}
	if n := testutil.ToFloat64(svc.m.conservation); n != 1 {
		t.Errorf("%v alarms", n)
	}
}
