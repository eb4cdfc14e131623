package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

func rollupCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "rollup", Short: "Blocks: check, repair, rebuild; their reference sets"}
	cmd.AddCommand(rollupVerify(out), rollupRepair(out), rollupRenew(out), rollupRequests(out), rollupAside(out), rollupCoverage(out), rollupGenerations(out), rollupReferences(out))
	return cmd
}

func usageError(format string, args ...any) error {
	return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf(format, args...)}
}

// rollupHours is which hours a command is about.
type rollupHours struct {
	from, to string
	shard    int
}

func (r *rollupHours) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.from, "from", "", "first hour of samples: 2006-01-02T15, a date, or a time (UTC); default the first there is")
	cmd.Flags().StringVar(&r.to, "to", "", "last hour of samples, or day, included; default the last there is")
	cmd.Flags().IntVar(&r.shard, "shard", allShards, "only this shard")
}

// allShards is no shard: the default of --shard.
const allShards = -1

// parseHour names an hour by its start.
func parseHour(s string) (timegrid.Hour, error) {
	t, err := time.Parse("2006-01-02T15", s)
	if err != nil {
		if t, err = parseTime(s); err != nil {
			return 0, fmt.Errorf("%q is no hour like 2006-01-02T15", s)
		}
	}
	// Rounding would make --from 10:30 include a half hour that nobody named.
	if !t.Equal(t.Truncate(time.Hour)) {
		return 0, fmt.Errorf("%q is not the start of an hour", s)
	}
	return timegrid.HourStarting(t), nil
}

// options of a check. The last hour that a time can lie in bounds both sides.
func (r *rollupHours) options() (repair.Options, error) {
	o := repair.Options{From: timegrid.HourOfNS(math.MinInt64), To: timegrid.HourOfNS(math.MaxInt64)}
	var err error
	if r.from != "" {
		if o.From, err = parseHour(r.from); err != nil {
			return o, usageError("--from: %w", err)
		}
	}
	if r.to != "" {
		if o.To, err = parseHour(r.to); err != nil {
			return o, usageError("--to: %w", err)
		}
		// A date is all of its hours, as everybody means it.
		if _, err := time.Parse(time.DateOnly, r.to); err == nil {
			o.To += 23
		}
	}
	if o.To < o.From {
		return o, usageError("--to is before --from")
	}
	if r.shard < allShards || r.shard >= shard.Max {
		return o, usageError("--shard %d: from 0 to %d", r.shard, shard.Max-1)
	}
	if r.shard != allShards {
		id := shard.ID(r.shard)
		o.Shard = &id
	}
	return o, nil
}

// openRepairer opens a bucket that has rollups, and the shard if only one is wanted.
func openRepairer(ctx context.Context, url string, only *shard.ID) (*repair.Repairer, error) {
	store, err := openBucket(ctx, url)
	if err != nil {
		return nil, err
	}
	r, err := newRepairer(ctx, store, time.Now)
	if err != nil {
		return nil, err
	}
	if n := r.Shards(); only != nil && uint32(*only) >= n {
		return nil, usageError("--shard %s: the authority has shards 0 to %d", *only, n-1)
	}
	return r, nil
}

func newRepairer(ctx context.Context, store objstore.Store, now func() time.Time) (*repair.Repairer, error) {
	authority, shards, err := rollupFacts(ctx, store)
	if err != nil {
		return nil, err
	}
	journal := history.Reader{Store: store, Authority: authority}
	return repair.New(repair.Config{Store: store, AuthorityID: authority, Shards: shards, By: "lmctl", Now: now, Counted: journal.Counted,
		Scan: func(ctx context.Context, h timegrid.Hour, id shard.ID, fn func(accepted.Batch) error) error {
			of := history.Selection{
				Samples: history.Between(h.Start(), (h + 1).Start()),
				Agents:  func(agent string) bool { return shard.Of(agent, shards) == id },
			}
			_, err := journal.Read(ctx, of, 0, func(_ context.Context, p history.Page) error {
				for i := range p.Entries {
					if err := fn(p.Entries[i].Batch()); err != nil {
						return err
					}
				}
				return nil
			})
			return err
		}})
}

// rollupFacts reads the authority's id and its number of shards.
func rollupFacts(ctx context.Context, store objstore.Reader) (string, uint32, error) {
	authority, err := accept.ReadAuthority(ctx, store)
	if errors.Is(err, accept.ErrNoAuthority) {
		return "", 0, &cli.ExitError{Code: cli.ExitFailed, Err: errors.New("the bucket is no acceptance authority")}
	}
	if err != nil {
		return "", 0, reached(err)
	}
	n, err := shards.Read(ctx, store)
	if errors.Is(err, objstore.ErrNotFound) {
		return "", 0, &cli.ExitError{Code: cli.ExitFailed, Err: errors.New("the bucket has no rollups: their number of shards is not fixed")}
	}
	return authority.AuthorityID, n, reached(err)
}
