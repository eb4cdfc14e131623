package query_test

import (
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/query"
)

// 60 agents with 20 equal samples each at equal times: there are 1,200 samples before they
// are rolled up, and as many afterwards, from samples and from rolled rows.
func TestAgentsWithEqualValues(t *testing.T) {
	const agents, samples = 60, 20
	end := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	a := newAuthority(t)
	a.rollups()
	var batches []publishedtest.Batch
	for i := range agents {
		var ps []point
		for k := range samples {
			ps = append(ps, point{"up", 1, end.Add(time.Duration(k-samples) * time.Minute)})
		}
		b := a.build(identity.Boot{Agent: fmt.Sprintf("twin%d", i), Boot: "b"}, 1, end, ps...)
		f := &frame.Batch{}
		if err := frame.Decode(b.frame, f, frame.Limits{}); err != nil {
			t.Fatal(err)
		}
		a.accept(b)
		batches = append(batches, publishedtest.Batch{Frame: f, AcceptedAt: b.manifest.AcceptedAt})
	}
	n := start1(t, a, nil)
	rows := start1(t, a, func(c *query.Config) { c.Rollup.Resolutions = false })
	check := func(when string) {
		t.Helper()
		at := " @ " + unix(end)
		for expr, want := range map[string]string{
			"count(up offset 1m" + at + ")":                       fmt.Sprint(agents),
			"sum(count_over_time(up[1h]" + at + "))":              fmt.Sprint(agents * samples),
			"sum(sum_over_time(up[1h]" + at + "))":                fmt.Sprint(agents * samples),
			"count(count by (instance) (up offset 1m" + at + "))": fmt.Sprint(agents),
		} {
			for _, node := range []*node{n, rows} {
				if got := node.value(expr); got != want {
					t.Errorf("%s: %s is %s, want %s", when, expr, got, want)
				}
			}
		}
		// Aligned, so that rolled rows answer.
		if got := n.valueAt("sum(count_over_time(up[1h]))", end); got != fmt.Sprint(agents*samples) {
			t.Errorf("%s, by windows: %s samples, want %d", when, got, agents*samples)
		}
	}
	check("in memory")
	for _, h := range publishedtest.Hours(batches) {
		a.publish(h, 1, batches)
	}
	for _, node := range []*node{n, rows} {
		eventually(t, "memory lets go", func() bool { return node.LateBatches() == 0 })
	}
	check("rolled up")
}
