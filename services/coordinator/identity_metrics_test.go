package coordinator

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// gauges of the linearizer, by their labels in order of their names: "oldest_claim_seconds{eu,claimed}".
func (r *running) gauges() map[string]float64 {
	r.t.Helper()
	all, err := r.tel.Registry.Gather()
	must(r.t, err)
	out := map[string]float64{}
	for _, f := range all {
		name, ours := strings.CutPrefix(f.GetName(), "lightmetrics_coordinator_identity_")
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if ours && m.GetGauge() != nil {
				out[fmt.Sprintf("%s{%s}", name, strings.Join(labels, ","))] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

// A coordinator says for which of a bounded set of reasons it is closed, and which region it waits for.
func TestMetricsOfAClosedLinearizer(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	var lost atomic.Bool
	lost.Store(true)
	with := stores(buckets)
	with["asia"] = losable{with["asia"], &lost}
	s := startStores(t, withRegions(quick(t.TempDir()), buckets), with)
	until(t, "the region to be named", func() bool { return s.gauges()["waits_for_region{asia}"] == 1 })
	g := s.gauges()
	if g["closed{region}"] != 1 || g["waits_for_region{eu}"] != 0 || g["open{}"] != 0 {
		t.Errorf("%v", g)
	}
	sum := 0.0
	for _, r := range closedReasons {
		v, there := g["closed{"+string(r)+"}"]
		if sum += v; !there {
			t.Errorf("no reason %s", r)
		}
	}
	if sum != 1 {
		t.Errorf("%v reasons at once: %v", sum, g)
	}
	if _, there := g["claims{eu,claimed}"]; there {
		t.Errorf("claims are counted while it is closed: %v", g)
	}
	lost.Store(false)
	s.openedEpoch(1)
	g = s.gauges()
	for _, r := range closedReasons {
		if g["closed{"+string(r)+"}"] != 0 {
			t.Errorf("it is open, and closed: %s", r)
		}
	}
	if g["waits_for_region{asia}"] != 0 {
		t.Errorf("%v", g)
	}
	if problems, err := testutil.GatherAndLint(s.tel.Registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", err, problems)
	}
}

// Claims are counted by home and state on the coordinator that folds, with the age of the oldest, and what can't be folded is its lag.
func TestClaimsAreCounted(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	var lost atomic.Bool
	with := stores(buckets)
	for n := range with {
		with[n] = losable{with[n], &lost}
	}
	cfg := withRegions(quick(t.TempDir()), buckets)
	cfg.Identity.SettleHorizon, cfg.Identity.Idle = time.Second, time.Second
	s := startStores(t, cfg, with)
	s.openedEpoch(1)
	c := s.claims()
	settle(t, c, buckets["eu"], "eu", 1, "x")
	a := ask(t, c, op(claims.DoClaim, 11, "y", "us", 2, 0), claims.Held)
	ask(t, c, op(claims.DoClaim, 21, "z", "us", 3, 0), claims.Held)
	ask(t, c, op(claims.DoComplete, 21, "z", "us", 3, a.Epoch), claims.Decided)
	lost.Store(true) // nothing can be folded
	v := s.back.Load().identities
	round := func() map[string]float64 {
		t.Helper()
		_, _ = v.foldOld(t.Context(), v.open.Load())
		return s.gauges()
	}
	until(t, "the fold to fail", func() bool { return round()["fold_lag_seconds{}"] > 0 })
	g := s.gauges()
	for name, want := range map[string]float64{"claims{eu,settled}": 1, "claims{us,claimed}": 1, "claims{us,durable}": 1, "claims{us,settled}": 0, "claims{asia,claimed}": 0, "oldest_claim_seconds{eu,claimed}": 0, "unreadable_claims{}": 0} {
		if got, there := g[name]; !there || got != want {
			t.Errorf("%s is %v (%v), want %v", name, got, there, want)
		}
	}
	for _, name := range []string{"oldest_claim_seconds{us,claimed}", "oldest_claim_seconds{us,durable}", "oldest_claim_seconds{eu,settled}"} {
		if g[name] <= 0 || g[name] > 600 {
			t.Errorf("%s is %v", name, g[name])
		}
	}
	if at := g["counted_timestamp_seconds{}"]; at < float64(time.Now().Add(-10*time.Minute).Unix()) {
		t.Errorf("counted at %v", at)
	}
	lost.Store(false)
	until(t, "it to be folded", func() bool {
		g = round()
		return g["claims{eu,settled}"] == 0 && g["fold_lag_seconds{}"] == 0
	})
}

// Claims are due since the boot had enough of them for the horizon, or since the oldest was idle.
func TestSinceWhenClaimsAreDue(t *testing.T) {
	settled := func(at ...int64) (out []claims.Claim) {
		for _, n := range at {
			out = append(out, claims.Claim{Identity: identity.Batch{Agent: "a", Boot: "b"}, State: claims.Settled, DurableAt: n})
		}
		return out
	}
	many := make([]int64, foldLeast+5)
	for i := range many {
		many[i] = int64(1000 - i)
	}
	for want, list := range map[int64][]claims.Claim{
		105:                                settled(9, 5, 7),
		1000 - 5 - foldLeast + 1 + 63 + 10: settled(many...),
	} {
		if got := dueSince(list, 10, 100); got != want {
			t.Errorf("%d claims: %d, want %d", len(list), got, want)
		}
		// What is due now is due since then.
		if d := (folds.Due{Before: want - 10, Least: foldLeast, Old: want - 100 + 1}); !d.Is(list) {
			t.Errorf("%d claims are not due at %d", len(list), want)
		}
	}
	c := newCensus(time.Unix(0, 0))
	c.failed(settled(50), 10, 100)
	c.failed(settled(7), 10, 100)
	c.failed(settled(9), 10, 100)
	if c.unfolded != 107 {
		t.Error(c.unfolded)
	}
}
