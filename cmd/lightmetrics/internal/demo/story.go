package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/cluster"
	"lightmetrics.dev/lightmetrics/pkg/fsck"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

const (
	pollEvery = 200 * time.Millisecond
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
	s.step("stopping the agent: it sends what it holds, then every side is counted")
	if err := cluster.Stop(&c.Agent); err != nil {
		return err
	}
	return verdict(ctx, c, s)
}

func startAll(ctx context.Context, c *cluster.Cluster, s *screen) error {
	steps := []struct {
		what  string
		start func(context.Context) error
	}{
		{"object store, fsynced, S3 over HTTP at " + c.Addr.Store, c.StartStore},
		{"reconciler at " + c.Addr.ReconcilerHTTP, c.StartReconciler},
		{"query (Prometheus API) at " + c.Addr.QueryHTTP, c.StartQuery},
		{"agent, status page at " + c.Addr.AgentHTTP, c.StartAgent},
	}
	for n, st := range steps {
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
func waitForBatches(ctx context.Context, c *cluster.Cluster, n uint64) ([]cluster.AgentRow, error) {
	var rows []cluster.AgentRow
	err := poll(ctx, fmt.Sprintf("%d accepted batches", n), func() (bool, error) {
		var err error
		rows, err = c.Agents(ctx)
		return err == nil && batches(rows) >= n, err
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, c.Agent.Tail(10))
	}
	return rows, nil
}

func showAgents(s *screen, rows []cluster.AgentRow) {
	var t [][]string
	for _, a := range rows {
		t = append(t, []string{a.AgentID, fmt.Sprint(a.BatchCount), fmt.Sprint(a.RecordCount),
			fmt.Sprintf("%d..%d", a.FirstSeq, a.AcceptedThrough), fmt.Sprint(len(a.Gaps)), fmt.Sprint(len(a.Overlaps))})
	}
	s.table("AGENT BATCHES RECORDS SEQUENCE GAPS OVERLAPS", t)
}

// showPromQL asks what a person would ask first; the host must answer something.
func showPromQL(ctx context.Context, c *cluster.Cluster, s *screen) error {
	rows := [][]string{}
	for _, q := range []string{
		"node_load1",
		"node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes",
		"sum by (mode) (rate(node_cpu_seconds_total[30s])) > 0",
	} {
		vec, err := c.Instant(ctx, q)
		if err != nil {
			return fmt.Errorf("PromQL %s: %w", q, err)
		}
		if len(vec) == 0 {
			return fmt.Errorf("PromQL %s: no answer", q)
		}
		for _, p := range vec {
			rows = append(rows, []string{q, p.LabelString(), p.Value})
			q = ""
		}
	}
	s.table("EXPRESSION LABELS VALUE", rows)
	return nil
}

// killCollector kills the collector that the agent talks to and waits for more batches.
func killCollector(ctx context.Context, c *cluster.Cluster, s *screen, before []cluster.AgentRow) error {
	i, err := c.connectedCollector(ctx)
	if err != nil {
		return err
	}
	s.title("")
	s.step("kill -9 collector %d (pid %d), the one that the agent is connected to", i+1, c.Collectors[i].Pid())
	cluster.Kill(&c.Collectors[i])
	rows, err := waitForBatches(ctx, c, batches(before)+batchesAfter)
	if err != nil {
		return err
	}
	s.step("%d more batches accepted through the other one", batches(rows)-batches(before))
	return nil
}

// verdict reads the bucket itself, frame by frame, and holds the agent's, the query
// service's and PromQL's counts against it.
func verdict(ctx context.Context, c *cluster.Cluster, s *screen) error {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return err
	}
	sent, err := c.lastAssigned()
	if err != nil {
		return err
	}
	var r *fsck.Report
	var rows []cluster.AgentRow
	var counted, partial string
	err = poll(ctx, "all sides to agree", func() (bool, error) {
		if r, err = fsck.Run(ctx, objstore.Reader(store), fsck.Options{AuthorityID: cluster.Authority}); err != nil {
			return false, err
		}
		if rows, err = c.Agents(ctx); err != nil {
			return false, err
		}
		if counted, partial, err = c.countSamples(ctx); err != nil {
			return false, err
		}
		return r.Records == records(rows) && counted == fmt.Sprint(r.Samples), nil
	})
	disagree := errors.Is(err, errPollEnded)
	if err != nil && !disagree {
		return err
	}
	s.title("Nothing lost, nothing counted twice:")
	showAgents(s, rows)
	s.table("WHO COUNTS WHAT NUMBER", [][]string{
		{"agent", "records-numbered-and-queued", fmt.Sprint(sent)},
		{"bucket", "records-in-accepted-frames", fmt.Sprint(r.Records)},
		{"query", "records-in-its-ledgers", fmt.Sprint(records(rows))},
		{"bucket", "samples-in-accepted-frames", fmt.Sprint(r.Samples)},
		{"PromQL", "sum(count_over_time(…))", counted},
		{"bucket", "frames-that-fail-their-hash", fmt.Sprint(r.Found)},
	})
	switch {
	case disagree:
		return fmt.Errorf("the counts do not agree: %w", err)
	case !r.Healthy():
		return fmt.Errorf("the bucket is not whole: %v", r.Findings[0])
	case r.Records != sent:
		return fmt.Errorf("the agent numbered %d records, the bucket has %d", sent, r.Records)
	case gapsAndOverlaps(rows) != 0:
		return errors.New("the sequence has gaps or overlaps")
	case partial != "":
		return fmt.Errorf("the answer is partial: %s", partial)
	}
	s.step("verdict: every record that the agent numbered is in the bucket once and in the answers once")
	return nil
}

var errPollEnded = errors.New("gave up")

// poll asks every now and then until done, an error, or the context's end.
func poll(ctx context.Context, what string, ask func() (bool, error)) error {
	var last error
	for {
		ok, err := ask()
		if ok {
			return nil
		}
		last = err
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last: %v)", what, errPollEnded, last)
		case <-time.After(pollEvery):
		}
	}
}
