package regions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// copies are those that an operator has of etcd, in the order in which they were taken.
type copies struct {
	r     *cluster.Regions
	dir   string // one of its own
	paths []string
	// restored counts the restores: each begins a cluster with a token of its own.
	restored int
}

// take copies the database of region i's member. The coordinator is killed for it: a file that is being written could be
// torn.
func (c *copies) take(ctx context.Context, i int) error {
	of := c.r.Of[i]
	if of.Coordinator != nil {
		cluster.Kill(&of.Coordinator)
	}
	to := filepath.Join(c.dir, fmt.Sprintf("copy-%d.db", len(c.paths)))
	if err := copyFile(to, filepath.Join(c.r.Member(i).Dir, "member", "snap", "db")); err != nil {
		return err
	}
	c.paths = append(c.paths, to)
	return of.StartCoordinator(ctx)
}

func copyFile(to, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// restore wipes every member and begins a new cluster from a copy, as etcdutl does it.
func (c *copies) restore(ctx context.Context, n int) error {
	for _, of := range c.r.LeftOf() {
		if of.Coordinator != nil {
			cluster.Kill(&of.Coordinator)
		}
	}
	c.restored++
	var initial []string
	for _, m := range c.r.Members() {
		initial = append(initial, m.Name+"="+m.PeerURL)
	}
	for _, m := range c.r.Members() {
		if err := os.RemoveAll(m.Dir); err != nil {
			return err
		}
		err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: c.paths[n], Name: m.Name, OutputDataDir: m.Dir, PeerURLs: []string{m.PeerURL},
			InitialCluster: strings.Join(initial, ","), InitialClusterToken: fmt.Sprintf("restored-%s-%d", filepath.Base(c.dir), c.restored), SkipHashCheck: true,
		})
		if err != nil {
			return fmt.Errorf("restore %s: %w", m.Name, err)
		}
	}
	return startCoordinators(ctx, c.r)
}

// startCoordinators starts those that do not run, side by side: none is ready without a quorum.
func startCoordinators(ctx context.Context, r *cluster.Regions) error {
	return cluster.SideBySide(r.LeftOf(), func(of *cluster.Cluster) error {
		if of.Coordinator != nil {
			return nil
		}
		return of.StartCoordinator(ctx)
	})
}
