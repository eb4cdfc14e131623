// Package demo runs the main job on one machine: an embedded store, collectors,
// reconciler, coordinator, rollup workers, query and an agent that reads this host, each
// a process of its own. It kills a collector and a rollup worker and shows that nothing
// is lost, nothing counted twice, and that answers from rolled-up chunks are those of the raw samples.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// Options of a run.
type Options struct {
	// Once runs through and exits.
	Once bool
	// Dir keeps data, settings and logs; "" is a fresh one that is removed at the end.
	Dir string
	// Keep leaves Dir in place.
	Keep bool
	// Collectors is the number of collectors, at least 2.
	Collectors int
	// Regions is the number of regions; 0 is one store without regions.
	Regions int
	// Deadline bounds the part up to the verdict.
	Deadline time.Duration
}

// Command is "lightmetrics demo".
func Command() *cobra.Command {
	o := Options{Collectors: 2, Deadline: 90 * time.Second}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the main job on this machine and show that it holds",
		Long: "Runs the embedded object store, collectors, reconciler, coordinator, rollup workers, query and an agent\n" +
			"that reads this host, as processes on loopback with credentials made for this run. Shows what was accepted,\n" +
			"answers PromQL over the host's metrics, kills a collector and a rollup worker, and proves from the bucket that\n" +
			"nothing is lost, nothing counted twice, and that answers from rolled-up chunks are those of the raw\n" +
			"samples. Then it keeps running until interrupted.\n" +
			"\n" +
			"With --regions 3 it runs three regions under one identity linearizer, each with a store, an etcd member, two\n" +
			"collectors, reconciler, rollup worker and query service, and an agent for each, which falls back to the others' collectors.\n" +
			"It kills one region and cuts another off, by a gate that stands between the regions and holds back every byte, and\n" +
			"shows that each identity has one answer, agents return to their region, none has a gap, and PromQL in each region\n" +
			"counts everything once.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Collectors < 2 || o.Collectors > 16 {
				return errors.New("--collectors: want 2 to 16")
			}
			if o.Regions != 0 {
				if o.Regions != regionCount {
					return fmt.Errorf("--regions: want %d", regionCount)
				}
				if !cmd.Flags().Changed("deadline") {
					o.Deadline = regionsDeadline
				}
			}
			return execute(cmd.Context(), o, newScreen(cmd.OutOrStdout()))
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Once, "once", false, "run through and exit 0 or 1")
	f.StringVar(&o.Dir, "dir", "", "directory for data, settings and logs (a fresh one, removed at the end)")
	f.BoolVar(&o.Keep, "keep", false, "keep the directory")
	f.IntVar(&o.Collectors, "collectors", o.Collectors, "number of collectors")
	f.IntVar(&o.Regions, "regions", 0, "number of regions: 3, or 0 for one store without regions")
	f.DurationVar(&o.Deadline, "deadline", o.Deadline, "time until the verdict")
	return cmd
}

// execute runs the demo and cleans up behind it.
func execute(ctx context.Context, o Options, s *screen) (err error) {
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "lightmetrics-demo-"); err != nil {
			return err
		}
		if !o.Keep {
			defer os.RemoveAll(o.Dir)
		}
	} else if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if o.Regions > 0 {
		return executeRegions(ctx, o, self, s)
	}
	c, err := cluster.New(cluster.Options{
		Bin: self, Dir: o.Dir, Collectors: o.Collectors, Rollups: rollupWorkers, DefaultPorts: true, BatchAge: time.Second, Adjust: adjust,
	})
	if err != nil {
		return err
	}
	defer func() {
		s.step("stopping")
		c.StopAll()
		if err != nil && o.Once {
			err = fmt.Errorf("%w (logs in %s; --keep keeps them)", err, o.Dir)
		}
	}()
	dctx, cancel := context.WithTimeout(ctx, o.Deadline)
	defer cancel()
	if err := story(dctx, c, s); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted before the verdict")
		}
		return err
	}
	if o.Once {
		return nil
	}
	if err := restore(ctx, c); err != nil {
		return err
	}
	s.urls(c)
	return c.Wait(ctx)
}

const rollupWorkers = 2

// adjust makes a dead rollup worker noticed before the reader loses patience.
func adjust(process string, settings map[string]any) {
	if process == "coordinator" {
		settings["lease"] = map[string]any{"worker": "3s"}
		settings["rebalance"] = map[string]any{"quiet_period": "1s", "max_delay": "3s"}
	}
}

// restore starts again what the story stopped.
func restore(ctx context.Context, c *cluster.Cluster) error {
	for i, p := range c.Collectors {
		if p == nil {
			if err := c.StartCollector(ctx, i); err != nil {
				return err
			}
		}
	}
	for i, p := range c.Rollups {
		if p == nil {
			if err := c.StartRollup(ctx, i); err != nil {
				return err
			}
		}
	}
	return c.StartAgent(ctx)
}
