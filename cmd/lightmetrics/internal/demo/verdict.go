package demo

import (
	"context"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// tally is what each side counts once the agent stands still.
type tally struct {
	numbered uint64 // records that the agent numbered
	bucket   *fsck.Report
	rows     []*queryv1.Agent
	counted  float64  // samples by PromQL
	warnings []string // why PromQL's answer is partial
	partial  bool
}

// verdict stops the agent, reads the bucket itself, frame by frame, and holds the
// agent's, the query service's and PromQL's counts against it.
func verdict(ctx context.Context, c *cluster.Cluster, s *screen) error {
	s.step("stopping the agent: it sends what it holds, then every side is counted")
	if err := cluster.Stop(&c.Agent); err != nil {
		return err
	}
	t := &tally{}
	disagree := t.count(ctx, c)
	if t.bucket == nil {
		return disagree
	}
	s.title("Nothing lost, nothing counted twice:")
	showAgents(s, t.rows)
	s.rows("WHO\tWHAT\tCOUNT", [][]string{
		{"agent", "records numbered and queued", fmt.Sprint(t.numbered)},
		{"bucket", "records in accepted frames", fmt.Sprint(t.bucket.Records)},
		{"query", "records in its ledgers", fmt.Sprint(records(t.rows))},
		{"bucket", "samples in accepted frames (without staleness markers)", fmt.Sprint(t.bucket.Samples)},
		{"PromQL", "sum(count_over_time(…)) over every metric", fmt.Sprintf("%.0f", t.counted)},
		{"bucket", "manifests whose frame is missing or wrong", fmt.Sprint(t.bucket.Found)},
	})
	if disagree != nil {
		return disagree
	}
	s.step("verdict: every record that the agent numbered is in the bucket once, and in the answers once")
	return nil
}

// count asks all sides until they agree or the context ends.
func (t *tally) count(ctx context.Context, c *cluster.Cluster) error {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return err
	}
	if t.numbered, err = c.Numbered(); err != nil {
		return err
	}
	err = cluster.Poll(ctx, "all sides to agree", func() (bool, error) {
		var err error
		if t.bucket, err = fsck.Run(ctx, store, fsck.Options{AuthorityID: cluster.Authority}); err != nil {
			return false, err
		}
		var complete *queryv1.Completeness
		if t.rows, complete, err = c.Agents(ctx); err != nil {
			return false, err
		}
		t.partial = complete.GetPartial()
		if t.counted, t.warnings, err = c.CountSamples(ctx, time.Now()); err != nil {
			return false, err
		}
		return t.judge() == nil, t.judge()
	})
	return err
}

// judge says what does not hold.
func (t *tally) judge() error {
	switch {
	case !t.bucket.Healthy():
		return fmt.Errorf("the bucket is not whole: %v", t.bucket.Findings[0])
	case t.bucket.Records != t.numbered:
		return fmt.Errorf("the agent numbered %d records, the bucket has %d", t.numbered, t.bucket.Records)
	case records(t.rows) != t.numbered:
		return fmt.Errorf("the agent numbered %d records, the query service knows %d", t.numbered, records(t.rows))
	case t.counted != float64(t.bucket.Samples):
		return fmt.Errorf("the bucket has %d samples, PromQL counts %.0f", t.bucket.Samples, t.counted)
	case t.partial || len(t.warnings) > 0:
		return fmt.Errorf("the answer is partial: %v", t.warnings)
	}
	for _, a := range t.rows {
		if len(a.GetGaps())+len(a.GetOverlaps()) > 0 {
			return fmt.Errorf("agent %s has gaps or overlaps", a.GetAgentId())
		}
	}
	return nil
}

func records(rows []*queryv1.Agent) (n uint64) {
	for _, a := range rows {
		n += a.GetRecordCount()
	}
	return n
}
