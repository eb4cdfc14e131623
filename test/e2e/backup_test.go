package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// leftOut are families that no backup needs.
var leftOut = []string{"live", "probe", "reconcile", "audit"}

// TestBackupThroughS3 copies a bucket object by object, in the order of docs/guide/backup.md,
// while senders, an agent and a worker are at work. Then every process is killed, and a new
// system starts over the copy, with an empty coordinator and the agent's old queue. Everything that was
// acknowledged before the copy began is there and answered, everything in the copy is rolled up,
// the queue is delivered, and what was acknowledged too late for the copy is a gap.
func TestBackupThroughS3(t *testing.T) {
	t.Parallel()
	const shards = 2
	ctx := within(t, 5*time.Minute)
	o := cluster.Options{Collectors: 1, Rollups: 1, Shards: shards, ScrapeInterval: 200 * time.Millisecond, BatchAge: 400 * time.Millisecond, Adjust: quickWorkers}
	old := newCluster(t, o)
	startServices(ctx, t, old)
	must(t, old.StartAgent(ctx))
	fleet := load.StartFleet(ctx, old, load.FleetOptions{Seed: 14, Senders: 6, Rows: 5, Pause: 20 * time.Millisecond, BootBatches: 20})
	must(t, cluster.Poll(ctx, "enough batches, and hours of all shards to be rolled up", func() (bool, error) {
		if len(fleet.Sent().Acked) < 100 {
			return false, fleet.Err()
		}
		blocks, err := old.RawBlocks(ctx, time.Now().Add(-2*time.Hour), time.Now().Add(time.Hour))
		return len(blocks) >= shards, err
	}))

	o.Adjust = func(process string, settings map[string]any) {
		quickWorkers(process, settings)
		if process == "agent" {
			settings["data_dir"] = filepath.Join(old.Dir(), "agent")
		}
	}
	restored := newCluster(t, o)
	must(t, restored.StartStore(ctx))
	before := fleet.Sent()
	copied, err := copyBucket(ctx, t, old, restored)
	must(t, err)
	during := len(fleet.Sent().Acked) - len(before.Acked)
	t.Logf("%d batches acknowledged before the copy, %d while %d objects were copied", len(before.Acked), during, copied)
	if during == 0 {
		t.Error("the copy was not taken while batches were accepted")
	}

	// What is acknowledged from now on is lost with the old system; what the agent still
	// queues is not.
	lost := agentNext(ctx, t, old)
	waitAgent(ctx, t, old, "batches that the copy lacks", func(pending int, next uint64) bool { return next > lost+100 && pending == 0 })
	_, err = fleet.Stop()
	must(t, err)
	cluster.Kill(&old.Collectors[0])
	var queued uint64
	waitAgent(ctx, t, old, "a backlog", func(pending int, next uint64) bool { queued = next; return pending >= 5 })
	cluster.Kill(&old.Agent)
	cluster.Kill(&old.Query)
	cluster.Kill(&old.Rollups[0])
	cluster.Kill(&old.Reconciler)
	cluster.Kill(&old.Coordinator)
	cluster.Kill(&old.Store)

	store, err := restored.OpenStore(ctx)
	must(t, err)
	record, err := accept.InspectAuthority(ctx, store)
	must(t, err)
	_, err = accept.MoveAuthority(ctx, store, record) // lmctl authority move
	must(t, err)
	if begun, err := journal.IsComplete(ctx, store); err != nil || begun {
		t.Fatalf("the copy says that its journal is complete: %v", err)
	}
	startServices(ctx, t, restored)
	must(t, cluster.Poll(ctx, "an audit to complete the journal", func() (bool, error) { return journal.IsComplete(ctx, store) }))
	must(t, restored.StartAgent(ctx))
	waitAgent(ctx, t, restored, "the old queue to be delivered", func(pending int, next uint64) bool { return next > queued && pending <= 1 })
	must(t, cluster.Stop(&restored.Agent))

	checkRestored(ctx, t, restored, before, shards)
	checkLoss(ctx, t, restored, lost, queued)
}

// startServices starts all but the agent; the store unless it runs.
func startServices(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	if c.Store == nil {
		must(t, c.StartStore(ctx))
	}
	must(t, c.StartCoordinator(ctx))
	must(t, c.StartCollector(ctx, 0))
	must(t, c.StartReconciler(ctx))
	must(t, c.StartRollup(ctx, 0))
	must(t, c.StartQuery(ctx))
}

// agentNext is the next sequence number of the agent.
func agentNext(ctx context.Context, t *testing.T, c *cluster.Cluster) uint64 {
	t.Helper()
	st, err := c.AgentStatus(ctx)
	must(t, err)
	return st.Boot.NextSeq
}

// backupOrder is the list of the loop in the guide.
func backupOrder(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/guide/backup.md")
	must(t, err)
	m := regexp.MustCompile(`(?m)^for p in (.+)$`).FindSubmatch(page)
	if m == nil {
		t.Fatal("the guide has no loop")
	}
	return strings.Fields(string(m[1]))
}

// copyBucket does what the loop of the guide does, through S3, and gives the number of objects.
func copyBucket(ctx context.Context, t *testing.T, from, to *cluster.Cluster) (int, error) {
	t.Helper()
	src, err := from.OpenStore(ctx)
	if err != nil {
		return 0, err
	}
	dst, err := to.OpenStore(ctx)
	if err != nil {
		return 0, err
	}
	order, n := backupOrder(t), 0
	families := slices.Clone(leftOut)
	for _, word := range order {
		family, below, part := strings.Cut(word, ":")
		families = append(families, family)
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(4)
		err := storetest.Each(gctx, src, family+"/"+below, func(i objstore.Info) error {
			if rest := strings.TrimPrefix(i.Key, family); !part && (strings.HasPrefix(rest, "/v1/delayed/") || strings.HasPrefix(rest, "/v1/progress/")) {
				return nil // the loop's --exclude
			}
			n++
			g.Go(func() error { return copyObject(gctx, src, dst, i.Key) })
			return nil
		})
		if err := errors.Join(err, g.Wait()); err != nil {
			return n, fmt.Errorf("%s: %w", word, err)
		}
	}
	// A family that the guide does not know would be lost without a word.
	return n, storetest.Each(ctx, src, "", func(i objstore.Info) error {
		if !slices.ContainsFunc(families, func(p string) bool { return strings.HasPrefix(i.Key, p+"/") }) {
			return fmt.Errorf("the guide copies no %s", i.Key)
		}
		return nil
	})
}

// copyObject copies one object; what was deleted since its listing is left out.
func copyObject(ctx context.Context, src, dst objstore.Store, key string) error {
	body, _, err := src.Get(ctx, key, objstore.GetOptions{})
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = dst.Put(ctx, key, body, objstore.PutOptions{})
	return err
}

// checkRestored finds everything that was acknowledged before the copy, in the bucket, in the
// answers and in the blocks.
func checkRestored(ctx context.Context, t *testing.T, c *cluster.Cluster, before load.Sent, shards uint32) {
	t.Helper()
	store, err := c.OpenStore(ctx)
	must(t, err)
	found := map[identity.Batch]identity.Digest{}
	samples := 0
	report, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: cluster.Authority, OnBatch: func(m accept.Manifest, b *frame.Batch) {
		found[m.Identity] = m.FrameSHA256
		if m.Identity.Agent != cluster.AgentID {
			samples += int(m.Identity.SeqEnd - m.Identity.SeqStart + 1)
		}
	}})
	must(t, err)
	for _, f := range report.Findings {
		t.Error(f)
	}
	missing := 0
	for id, d := range before.Acked {
		if found[id] != d {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("%d of %d batches that were acknowledged before the copy are not in it", missing, len(before.Acked))
	}
	if samples < before.Count {
		t.Errorf("%d samples in the copy, %d were acknowledged before it", samples, before.Count)
	}
	must(t, cluster.Poll(ctx, "PromQL to count what is in the bucket", func() (bool, error) {
		got, warnings, err := c.Scalar(ctx, "sum(count_over_time("+load.Metric+"[3h]))", time.Now())
		if err != nil {
			return false, err
		}
		partial := slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "partial") })
		return int(got) == samples && !partial, fmt.Errorf("%v of %d samples, warnings %v", got, samples, warnings)
	}))
	must(t, cluster.Poll(ctx, "every batch of the copy to be rolled up", func() (bool, error) {
		_, err := load.CheckRollups(ctx, c, shards)
		if err != nil && !errors.Is(err, load.ErrNotRolledUp) {
			t.Fatal(err)
		}
		return err == nil, err
	}))
}

// checkLoss finds the agent's boot with the queued records and a gap before them, in the answers of
// the query service.
func checkLoss(ctx context.Context, t *testing.T, c *cluster.Cluster, lost, queued uint64) {
	t.Helper()
	agents, _, err := c.Agents(ctx)
	must(t, err)
	for _, a := range agents {
		if a.GetAgentId() != cluster.AgentID || len(a.GetGaps()) == 0 {
			continue
		}
		last := a.GetGaps()[len(a.GetGaps())-1]
		t.Logf("copied before %d, queued before %d; gaps %v", lost, queued, a.GetGaps())
		if last.GetEnd() >= queued || last.GetEnd() < lost {
			t.Errorf("the last gap ends at %d, want between %d and %d", last.GetEnd(), lost, queued)
		}
		return
	}
	t.Errorf("no gap of the agent's is told: %v", agents)
}
