package rollup

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/build"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/job"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// forgetful is a builder that forgets a part of every plan.
type forgetful struct{ *build.Builder }

func (f forgetful) Build(ctx context.Context, p *hour.Plan, before *catalog.Block, resolutions []timegrid.Resolution, step func() error) (*build.Result, error) {
	parts := *p.Plan
	parts.Parts--
	return f.Builder.Build(ctx, &hour.Plan{Plan: &parts, SHA256: p.SHA256}, before, resolutions, step)
}

// Nothing is made of a plan whose records do not all come out of its parts, nothing of it is
// published, and an alarm is raised.
func TestLostRecordsAreNotPublished(t *testing.T) {
	w := newWorld(t, newMem())
	w.some(agentOf(0, 0), hour0, 0, 5, 0)
	w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 1})
	svc := w.worker(testConfig(), w.store)
	wk, err := w.opened(svc)
	must(t, err)
	p, err := w.planOf(svc, 1)
	must(t, err)
	all := func() error { return nil }
	if r, err := wk.builder.Build(t.Context(), p, nil, timegrid.Resolutions(), all); err != nil || r.Counts.Inputs != p.Records() {
		t.Fatalf("the whole plan, of %d records: %v", p.Records(), err)
	}
	losing := forgetful{wk.builder}
	var lost *rollup.ConservationError
	if r, err := losing.Build(t.Context(), p, nil, timegrid.Resolutions(), all); r != nil || !errors.As(err, &lost) {
		t.Fatalf("without a part: %v", err)
	}

	// A job that meets it says so and publishes nothing.
	config := wk.owners.Jobs.Config
	config.Builder = losing
	wk.owners.Jobs = job.New(config)
	w.some(agentOf(0, 0), hour0-1, 0, 5, 100)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 2})
	must(t, err)
	if _, err := o.Round(t.Context()); !errors.As(err, &lost) {
		t.Errorf("the job ends with %v", err)
	}
	if n := testutil.ToFloat64(svc.m.Unconserved); n != 1 {
		t.Errorf("%v alarms", n)
	}
	for _, res := range timegrid.Resolutions() {
		if s := w.set(hour0-1, 0, res); s != nil {
			t.Errorf("%s is published: %+v", res, s.Name)
		}
	}
}
