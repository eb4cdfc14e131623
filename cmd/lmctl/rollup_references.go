package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
)

type referencesView struct {
	Epoch      uint32   `json:"epoch"`
	Blocks     int      `json:"blocks"`
	Objects    int      `json:"objects"`
	Missing    int      `json:"missing"`
	Condemned  int      `json:"condemned"`
	Unreadable []string `json:"unreadable"`
	Rebuilt    bool     `json:"rebuilt"`
}

func (v referencesView) table() table {
	missing := "objects without their reference"
	if v.Rebuilt {
		missing = "references that were added"
	}
	return table{header: []string{"WHAT", "COUNT"}, rows: [][]string{
		{"epoch", fmt.Sprint(v.Epoch)}, {"blocks", fmt.Sprint(v.Blocks)}, {"objects", fmt.Sprint(v.Objects)},
		{missing, fmt.Sprint(v.Missing)}, {"condemned objects of blocks", fmt.Sprint(v.Condemned)},
		{"records that can't be read", fmt.Sprint(len(v.Unreadable))}}}
}

func rollupReferences(out *format) *cobra.Command {
	s := &service{}
	cmd := &cobra.Command{
		Use:   "references URL",
		Short: "Compare the coordinator's reference sets with the blocks",
		Long: "Compares the reference sets of chunks and indexes, which the coordinator keeps, with all blocks. Exits 3\n" +
			"when some are missing: etcd was restored from an older copy, or began a new epoch. After a restore run\n" +
			"lmctl rollup references rebuild.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return askReferences(cmd, out, s, args[0], false)
		},
	}
	var yes, dry bool
	rebuild := &cobra.Command{
		Use:   "rebuild URL (--dry-run | --yes)",
		Short: "Begin a new epoch of reference sets and fill it from the blocks",
		Long: "For use after etcd was restored from a copy: references that came later than the copy are missing in it, and what was\n" +
			"condemned since is not. Begins a new epoch, which aborts what is being published (the workers make\n" +
			"the next generation), and then adds the references of every block. Collectors delete nothing in between.\n" +
			"Safe at any time and to repeat; workers may run.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if yes == dry {
				return usageError("say either --dry-run or --yes")
			}
			return askReferences(cmd, out, s, args[0], yes)
		},
	}
	rebuild.Flags().BoolVar(&dry, "dry-run", false, "only compare")
	rebuild.Flags().BoolVar(&yes, "yes", false, "begin a new epoch and add what is missing")
	s.flags(cmd, "127.0.0.1:4781", "coordinator")
	cmd.AddCommand(rebuild)
	return cmd
}

func askReferences(cmd *cobra.Command, out *format, s *service, url string, rebuild bool) error {
	ctx := cmd.Context()
	store, err := openBucket(ctx, url)
	if err != nil {
		return err
	}
	var v referencesView
	err = s.over(func(conn grpc.ClientConnInterface) (err error) {
		v, err = references(ctx, store, coordinator.NewRefs(conn, 0), rebuild, cmd.ErrOrStderr())
		return err
	})
	// These two need a text and an exit code of their own: the first is about the coordinator, and the
	// second tells what to run.
	if reported := (*cli.ExitError)(nil); errors.Is(err, publish.ErrRefsUnknown) && !errors.As(err, &reported) {
		return &cli.ExitError{Code: cli.ExitUnreachable, Err: fmt.Errorf("%s: %w", s.addr, err)}
	}
	if errors.Is(err, publish.ErrEpochMismatch) {
		return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%w; run lmctl rollup references rebuild, or start a rollup worker, which begins a new epoch of them", err)}
	}
	if err != nil {
		return reached(err)
	}
	if err := out.write(cmd.OutOrStdout(), v, v.table()); err != nil {
		return err
	}
	// After a rebuild Missing counts what was added, which is no finding any more.
	if !rebuild && v.Missing > 0 || len(v.Unreadable) > 0 {
		return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d references are missing, %d records can't be read", v.Missing, len(v.Unreadable))}
	}
	return nil
}

// wall is the clock of a command.
type wall struct{ run.WallClock }

// Now is the wall's.
func (wall) Now() time.Time { return time.Now() }

// references compares, and with rebuild begins a new epoch first and adds what is missing.
func references(ctx context.Context, store objstore.Store, refs publish.Refs, rebuild bool, progress io.Writer) (referencesView, error) {
	authority, _, err := rollupFacts(ctx, store)
	if err != nil {
		return referencesView{}, err
	}
	c, err := publish.NewCollector(publish.Config{Store: store, Refs: refs, Queue: publish.NewObjectQueue(store, nil), Clock: wall{}, AuthorityID: authority, WorkerID: "lmctl"})
	if err != nil {
		return referencesView{}, err
	}
	// The new epoch comes first. It refuses publications that began before it, so every block that is not
	// seen by the scan below has put its references into the new epoch itself.
	if rebuild {
		f, err := c.InitEpoch(ctx, rand.Reader, true)
		if err != nil {
			return referencesView{}, err
		}
		fmt.Fprintf(progress, "epoch %d has begun\n", f.Number)
	}
	blocks := 0
	rep, err := c.References(ctx, rebuild, func(r publish.References) {
		if r.Blocks/1000 > blocks/1000 {
			fmt.Fprintf(progress, "%d blocks, %d objects, %d missing so far\n", r.Blocks, r.Objects, r.Missing)
		}
		blocks = r.Blocks
	})
	if err != nil {
		return referencesView{}, err
	}
	f, err := refs.Epoch(ctx)
	return referencesView{f.Number, rep.Blocks, rep.Objects, rep.Missing, rep.Condemned, rep.Unreadable, rebuild}, err
}
