package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
)

type asideView struct {
	Agent   string `json:"agent_id"`
	Hour    string `json:"hour"`
	Shard   string `json:"shard"`
	Series  uint64 `json:"series"`
	Records uint64 `json:"records"`
	Bytes   int64  `json:"bytes"`
	Limit   int64  `json:"limit_bytes"`
	Reason  string `json:"reason"`
	By      string `json:"by"`
	At      string `json:"at"`
	State   string `json:"state"`
}

func rollupAside(out *format) *cobra.Command {
	var release string
	cmd := &cobra.Command{
		Use:   "aside URL [--release AGENT]",
		Short: "List agents whose hours are too large to be rolled up, or have one tried again",
		Long: "Lists the hours of agents that workers set aside, since they do not fit into their memory; the other agents\n" +
			"of the shard are rolled up. Their batches stay accepted and pending: queries read them from memory, or say\n" +
			"NOT_ROLLED_UP. With --release all hours of that agent are tried again within about a minute; workers do so by\n" +
			"themselves once jobs.memory or jobs.max_parts were raised. Exits 3 when an agent is set aside, or a record\n" +
			"can't be read.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&release, "release", "", "agent whose hours are to be tried again")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		store, err := openBucket(ctx, args[0])
		if err != nil {
			return err
		}
		r, err := newRepairer(ctx, store, time.Now)
		if err != nil {
			return err
		}
		// A record that cannot be read is counted, and does not hide the others.
		bad, left := 0, 0
		asides, err := r.Asides(ctx, func(key string, err error) {
			bad++
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", key, err)
		})
		if err != nil {
			return reached(err)
		}
		views, t := []asideView{}, table{header: []string{"AGENT", "HOUR", "SHARD", "SERIES", "RECORDS", "BYTES", "LIMIT", "REASON", "BY", "SINCE", "STATE"}}
		for _, a := range asides {
			v := asideView{a.Agent, a.Hour.String(), a.Shard.String(), a.Series, a.Records, a.Bytes, a.Limit, a.Reason, a.By, when(a.At), "set aside"}
			if release != "" && a.Agent == release {
				// The shard's owner sees that it is gone within about a minute.
				if err := store.Delete(ctx, a.Key()); err != nil {
					return reached(fmt.Errorf("delete %q: %w", a.Key(), err))
				}
				v.State = "released"
			} else {
				left++
			}
			views = append(views, v)
			t.rows = append(t.rows, []string{v.Agent, v.Hour, v.Shard, fmt.Sprint(v.Series), fmt.Sprint(v.Records), fmt.Sprint(v.Bytes), fmt.Sprint(v.Limit), v.Reason, v.By, v.At, v.State})
		}
		if err := out.write(cmd.OutOrStdout(), views, t); err != nil {
			return err
		}
		switch {
		// A release that found nothing is a finding: the name may be misspelled, and the agent would wait
		// for ever.
		case release != "" && left == len(views):
			return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("no hour of agent %q is set aside", release)}
		case release == "" && left+bad > 0:
			return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d hours of agents are set aside, %d records can't be read", left, bad)}
		}
		return nil
	}
	return cmd
}
