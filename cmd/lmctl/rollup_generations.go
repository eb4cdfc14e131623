package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

type generationView struct {
	Hour       string `json:"hour"`
	Shard      string `json:"shard"`
	Resolution string `json:"resolution"`
	Generation uint64 `json:"generation"`
	Fence      uint64 `json:"fence"`
	Batches    uint64 `json:"batches"`
	Records    uint64 `json:"records"`
	Samples    uint64 `json:"samples"`
	CreatedAt  string `json:"created_at"`
	Worker     string `json:"worker_id"`
	// Unrolled: it has no rows, since they would be no smaller than the samples.
	Unrolled bool `json:"unrolled,omitempty"`
	// Into is the compaction that has the rows.
	Into string `json:"into,omitempty"`
	// Journal is null where the record does not say.
	Journal *journal.Positions `json:"journal"`
}

func rollupGenerations(out *format) *cobra.Command {
	hours := &rollupHours{}
	cmd := &cobra.Command{
		Use:   "generations URL --from HOUR",
		Short: "List the blocks that count, and through which positions of the journal each was made",
		Long: "Lists the generation that counts of each shard's hour and window, from --from to --to (default: the same hour, or day).\n" +
			"READ THROUGH are the positions of the journal before which the worker knew every batch of the shard when it fixed\n" +
			"the inputs: the number of the journal's head, and in how many runs; --output json has all of them. Batches at or\n" +
			"before these are inputs or in a delta, or pending: their frame could not be read, or their agent is set aside. Blocks\n" +
			"without them were made by a former release, by a repair, or by a worker that had not caught up. Exits 3 when a\n" +
			"record can't be read. SAMPLES of a window are \"as raw\" where its rows would be no smaller than the samples, and were\n" +
			"not made.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if hours.from == "" {
				return usageError("--from is needed")
			}
			if hours.to == "" {
				hours.to = hours.from
			}
			o, err := hours.options()
			if err != nil {
				return err
			}
			r, err := openRepairer(cmd.Context(), args[0], o.Shard)
			if err != nil {
				return err
			}
			bad := 0
			views, t := []generationView{}, table{header: []string{"HOUR", "SHARD", "WINDOW", "GENERATION", "BATCHES", "SAMPLES", "CREATED AT", "WORKER", "READ THROUGH"}}
			err = r.Generations(cmd.Context(), o, func(b *catalog.Block) error {
				v := viewGeneration(b)
				views = append(views, v)
				through := ""
				if v.Journal != nil {
					through = fmt.Sprintf("head %d, %d runs", v.Journal.Head, len(v.Journal.Runs))
				}
				samples := fmt.Sprint(b.Counts.Samples)
				if b.Unrolled {
					samples = "as raw"
				}
				t.rows = append(t.rows, []string{v.Hour, v.Shard, v.Resolution, fmt.Sprint(v.Generation), fmt.Sprint(v.Batches), samples, v.CreatedAt, v.Worker, orDash(through)})
				return nil
			}, func(key string, err error) {
				bad++
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", key, err)
			})
			if err != nil {
				return reached(err)
			}
			if err := out.write(cmd.OutOrStdout(), views, t); err != nil {
				return err
			}
			if bad > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d records can't be read", bad)}
			}
			return nil
		},
	}
	hours.flags(cmd)
	cmd.Flags().Lookup("from").Usage = "first hour of samples: 2006-01-02T15, a date, or a time (UTC)"
	cmd.Flags().Lookup("to").Usage = "last hour of samples, or day, included; default that of --from"
	return cmd
}

func viewGeneration(b *catalog.Block) generationView {
	v := generationView{
		Hour: b.Name.Hour.String(), Shard: b.Name.Shard.String(), Resolution: b.Name.Resolution.String(), Generation: b.Name.Generation, Fence: b.Fence,
		Batches: b.Inputs.Batches(), Records: b.Counts.Records, Samples: b.Counts.Samples, CreatedAt: when(b.CreatedAt), Worker: b.WorkerID, Journal: b.Journal, Unrolled: b.Unrolled,
	}
	if b.Redirect != nil {
		v.Into = b.Redirect.Name.Key()
	}
	return v
}
