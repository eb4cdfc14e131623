package rollup

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// helps are those of the record, as name=text.
func (w *world) helps() string {
	w.t.Helper()
	s, _, err := helps.Read(w.t.Context(), w.store, testAuthority)
	if errors.Is(err, objstore.ErrNotFound) {
		return "none"
	}
	must(w.t, err)
	out := []string{}
	for _, h := range s.List() {
		out = append(out, h.Name+"="+h.Text)
	}
	return fmt.Sprint(out)
}

// TestHelpsAreRecordedBeforeTheirBlocks: a worker that is killed between the record and what is published leaves a record
// that has everything of blocks and deltas: nobody reads their frames again.
func TestHelpsAreRecordedBeforeTheirBlocks(t *testing.T) {
	const all = "[late_0=What late_0 means. late_1=What late_1 means. load=What load means. requests_total=What requests_total means.]"
	for _, c := range []struct {
		point, at string
	}{
		{"rollup.job.planned.after", "none"},
		{"rollup.helps.written.after", "[load=What load means. requests_total=What requests_total means.]"},
		{"rollup.job.published.after", "[load=What load means. requests_total=What requests_total means.]"},
		{"rollup.delta.written.after", all},
	} {
		w := newWorld(t, newMem())
		w.some(agentOf(0, 0), hour0, 0, 4, 0)
		cfg := deltaConfig()
		must(t, failpoint.Arm(c.point+"="+string(failpoint.Panic)+"@1"))
		ended := w.dies(c.point, cfg)
		_ = failpoint.Arm("")
		if got := w.helps(); !ended || got != c.at {
			t.Errorf("%s: ended %v, the record has %s, want %s", c.point, ended, got, c.at)
		}
		// The next owner finishes what the first one began, without the frames of what is published.
		w.drive(cfg, ownership.Grant{Shard: 0, Fence: 3})
		if left := w.left(0); len(left) > 0 {
			t.Errorf("%s: batches left: %v", c.point, left)
		}
	}
}

// TestHelpsOfASteadyFleetAreWrittenOnce, however many hours and workers there are; what is new is added.
func TestHelpsOfASteadyFleetAreWrittenOnce(t *testing.T) {
	s := storetest.Count(newMem())
	w := newWorld(t, s)
	seq := uint64(0)
	for h := range 4 {
		seq = w.some(agentOf(0, 0), hour0+timegrid.Hour(h), 0, 3, seq)
		w.advance(time.Hour)
		w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: uint64(h + 1)})
	}
	if n := s.Of("create", layout.RollupHelpsKey) + s.Of("replace", layout.RollupHelpsKey); n != 1 {
		t.Errorf("written %d times", n)
	}
	w.accept(agentOf(0, 0), seq, point{"new", series.Gauge, at(hour0+3, time.Minute), 1})
	w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 5})
	if got := w.helps(); got != "[load=What load means. new=What new means. requests_total=What requests_total means.]" {
		t.Error(got)
	}
}

// TestADamagedRecordOfHelpsHoldsNothingUp, nor does one of a newer release, which stays.
func TestADamagedRecordOfHelpsHoldsNothingUp(t *testing.T) {
	for body, replaced := range map[string]bool{"{": true, `{"schema":"lightmetrics.metric_helps.v2"}`: false} {
		w := newWorld(t, newMem())
		_, err := w.store.Put(t.Context(), layout.RollupHelpsKey, []byte(body), objstore.PutOptions{})
		must(t, err)
		w.some(agentOf(0, 0), hour0, 0, 3, 0)
		w.drive(testConfig(), ownership.Grant{Shard: 0, Fence: 1})
		w.check(hour0, 0, 1)
		b, _, err := w.store.Get(t.Context(), layout.RollupHelpsKey, objstore.GetOptions{})
		must(t, err)
		if (string(b) == body) == replaced {
			t.Errorf("%s: now %s", body, b)
		}
	}
}
