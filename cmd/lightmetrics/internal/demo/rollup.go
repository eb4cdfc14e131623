package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

// rollUp shows what is published, kills the worker that published it and waits until the
// other one has taken over. Then that one stops too, so that what follows stays in memory.
func rollUp(ctx context.Context, c *cluster.Cluster, s *screen) error {
	first, err := waitForBlock(ctx, c, "a block", func(*catalog.Block) bool { return true })
	if err != nil {
		return err
	}
	s.title("Rolled up so far (blocks in the bucket):")
	if err := showBlocks(ctx, c, s); err != nil {
		return err
	}
	owner := 0
	for owner < len(c.Rollups) && first.WorkerID != cluster.RollupName(owner) {
		owner++
	}
	if owner == len(c.Rollups) {
		return fmt.Errorf("a block was published by %q, none of the workers", first.WorkerID)
	}
	s.blank()
	s.step("kill -9 %s (pid %d), the owner of shard %s", first.WorkerID, c.Rollups[owner].Pid(), first.Name.Shard)
	cluster.Kill(&c.Rollups[owner])
	next, err := waitForBlock(ctx, c, "the other worker to take over", func(n *catalog.Block) bool {
		return n.Name.Shard == first.Name.Shard && n.WorkerID != first.WorkerID && n.Name.Hour >= first.Name.Hour
	})
	if err != nil {
		return err
	}
	s.step("%s took over: generation %d after %d, fence %d after %d", next.WorkerID, next.Name.Generation, first.Name.Generation, next.Fence, first.Fence)
	// The fence is what keeps the killed worker from publishing should it come back, so a takeover without
	// a higher one is a failure.
	if next.Fence <= first.Fence {
		return fmt.Errorf("the fence went from %d to %d", first.Fence, next.Fence)
	}
	for i, p := range c.Rollups {
		if p != nil {
			s.step("stopping %s: what is accepted from now on stays in the memory of the query service", cluster.RollupName(i))
			if err := cluster.Stop(&c.Rollups[i]); err != nil {
				return err
			}
		}
	}
	rows, _, err := c.Agents(ctx)
	if err != nil {
		return err
	}
	_, err = waitForBatches(ctx, c, batches(rows)+2)
	return err
}

// rawBlocks are the raw blocks that count, of the run's hours.
func rawBlocks(ctx context.Context, c *cluster.Cluster) ([]*catalog.Block, error) {
	now := time.Now()
	return c.RawBlocks(ctx, now.Add(-time.Hour), now)
}

func waitForBlock(ctx context.Context, c *cluster.Cluster, what string, ok func(*catalog.Block) bool) (*catalog.Block, error) {
	var found *catalog.Block
	err := cluster.Poll(ctx, what, func() (bool, error) {
		all, err := rawBlocks(ctx, c)
		if i := slices.IndexFunc(all, ok); i >= 0 {
			found = all[i]
		}
		return found != nil, err
	})
	return found, err
}

func showBlocks(ctx context.Context, c *cluster.Cluster, s *screen) error {
	all, err := rawBlocks(ctx, c)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, x := range all {
		var bytes uint64
		for _, o := range x.Objects {
			bytes += o.ChunkBytes + o.IndexBytes
		}
		rows = append(rows, []string{
			x.Name.Shard.String(), x.Name.Hour.String(), fmt.Sprint(x.Name.Generation), x.WorkerID, fmt.Sprint(x.Fence),
			fmt.Sprint(x.Inputs.Batches()), fmt.Sprint(x.Counts.Published), fmt.Sprint(len(x.Objects)), fmt.Sprint(bytes),
		})
	}
	s.rows("SHARD\tHOUR\tGENERATION\tWORKER\tFENCE\tBATCHES\tRECORDS\tCHUNKS\tBYTES", rows)
	return nil
}
