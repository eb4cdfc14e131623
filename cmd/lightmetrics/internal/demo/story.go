package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

const (
	// batchesBefore and batchesAfter are accepted before and after the kill.
	batchesBefore = 4
	batchesAfter  = 4
)

// story is the demo up to its verdict.
func story(ctx context.Context, c *cluster.Cluster, s *screen) error {
	if err := startAll(ctx, c, s); err != nil {
		return err
	}
	s.step("agent reads this host every second; waiting for %d accepted batches", batchesBefore)
	before, err := waitForBatches(ctx, c, batchesBefore)
	if err != nil {
		return err
	}
	s.title("Accepted so far (identity manifests in the bucket, seen through the query service):")
	showAgents(s, before)
	s.title("PromQL over this host's metrics:")
	if err := showPromQL(ctx, c, s); err != nil {
		return err
	}
	if err := killCollector(ctx, c, s, before); err != nil {
		return err
	}
	if err := rollUp(ctx, c, s); err != nil {
		return err
	}
	if err := verdict(ctx, c, s); err != nil {
		return err
	}
	return recompute(ctx, c, s)
}

func startAll(ctx context.Context, c *cluster.Cluster, s *screen) error {
	steps := []struct {
		what  string
		start func(context.Context) error
	}{
		{"object store, fsynced, S3 over HTTP at " + c.Addr.Store, c.StartStore},
		{"reconciler at " + c.Addr.ReconcilerHTTP, c.StartReconciler},
		{"coordinator, etcd embedded, at " + c.Addr.CoordinatorGRPC, c.StartCoordinator},
		{"rollup worker 1 at " + c.Addr.Rollups[0], func(ctx context.Context) error { return c.StartRollup(ctx, 0) }},
		{"rollup worker 2 at " + c.Addr.Rollups[1], func(ctx context.Context) error { return c.StartRollup(ctx, 1) }},
		{"query (Prometheus API) at " + c.Addr.QueryHTTP, c.StartQuery},
		{"agent, status page at " + c.Addr.AgentHTTP, c.StartAgent},
	}
	for n, st := range steps {
		// Collectors come right after the object store: they create the authority that all others need.
		if n == 1 {
			for i := range c.Collectors {
				if err := c.StartCollector(ctx, i); err != nil {
					return err
				}
				s.step("ready: collector %d, store qualified, gRPC at %s", i+1, c.Addr.Collectors[i].GRPC)
			}
		}
		if err := st.start(ctx); err != nil {
			return err
		}
		s.step("ready: %s", st.what)
	}
	return nil
}

// waitForBatches waits until the query service knows n accepted batches.
func waitForBatches(ctx context.Context, c *cluster.Cluster, n uint64) ([]*queryv1.Agent, error) {
	var rows []*queryv1.Agent
	err := cluster.Poll(ctx, fmt.Sprintf("%d accepted batches", n), func() (bool, error) {
		var err error
		rows, _, err = c.Agents(ctx)
		return err == nil && batches(rows) >= n, err
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, c.Agent.Tail(10))
	}
	return rows, nil
}

func showAgents(s *screen, rows []*queryv1.Agent) {
	var t [][]string
	for _, a := range rows {
		t = append(t, []string{a.GetAgentId(), fmt.Sprint(a.GetBatchCount()), fmt.Sprint(a.GetRecordCount()),
			fmt.Sprintf("%d..%d", a.GetFirstSeq(), a.GetAcceptedThrough()), fmt.Sprint(len(a.GetGaps())), fmt.Sprint(len(a.GetOverlaps()))})
	}
	s.rows("AGENT\tBATCHES\tRECORDS\tSEQUENCE\tGAPS\tOVERLAPS", t)
}

// showPromQL asks what a person would ask first; the host must answer something.
func showPromQL(ctx context.Context, c *cluster.Cluster, s *screen) error {
	rows := [][]string{}
	for _, q := range []string{
		"node_load1",
		"node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes",
		"sum by (mode) (rate(node_cpu_seconds_total[30s])) > 0",
	} {
		vec, _, err := c.Instant(ctx, q, time.Now())
		if err != nil {
			return err
		}
		if len(vec) == 0 {
			return fmt.Errorf("PromQL %s: no answer", q)
		}
		for _, p := range vec {
			rows = append(rows, []string{q, labelString(p.Metric), fmt.Sprintf("%.4g", float64(p.Value))})
			q = ""
		}
	}
	s.rows("EXPRESSION\tLABELS\tVALUE", rows)
	return nil
}

// killCollector kills the collector that the agent talks to and waits for more batches.
func killCollector(ctx context.Context, c *cluster.Cluster, s *screen, before []*queryv1.Agent) error {
	i, err := connectedCollector(ctx, c)
	if err != nil {
		return err
	}
	s.blank()
	s.step("kill -9 collector %d (pid %d), the one that the agent is connected to", i+1, c.Collectors[i].Pid())
	cluster.Kill(&c.Collectors[i])
	rows, err := waitForBatches(ctx, c, batches(before)+batchesAfter)
	if err != nil {
		return err
	}
	s.step("%d more batches accepted through the other one", batches(rows)-batches(before))
	return nil
}

// connectedCollector is the index of the collector that the agent talks to.
func connectedCollector(ctx context.Context, c *cluster.Cluster) (int, error) {
	st, err := c.AgentStatus(ctx)
	if err != nil {
		return 0, err
	}
	for _, cs := range st.Sender.Collectors {
		for i, a := range c.Addr.Collectors {
			if cs.Connected && cs.Address == a.GRPC {
				return i, nil
			}
		}
	}
	return 0, errors.New("the agent is connected to no collector")
}

func batches(rows []*queryv1.Agent) (n uint64) {
	for _, a := range rows {
		n += a.GetBatchCount()
	}
	return n
}

// labelString writes the labels that tell the series of one metric apart.
func labelString(m model.Metric) string {
	var parts []string
	for k, v := range m {
		if k != model.MetricNameLabel && k != "instance" && k != "job" {
			parts = append(parts, fmt.Sprintf("%s=%q", k, v))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
