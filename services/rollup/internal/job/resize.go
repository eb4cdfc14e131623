package job

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/sizing"
)

// ErrDied says that the last worker which made this generation did not live to say how it ended.
var ErrDied = errors.New("the worker that made it was killed")

// Reasons for which an agent is set aside, as its record has them.
const (
	ReasonTooLarge = "too large"
	ReasonDied     = "its worker was killed"
)

// surveyor estimates what the agents of a plan need.
type surveyor interface {
	Survey(ctx context.Context, p *hour.Plan) ([]rollup.Size, error)
}

// resizer replaces a generation that does not fit into memory by one that does.
type resizer struct {
	limits    sizing.Limits
	records   hour.Records
	surveyor  surveyor
	publisher *publish.Publisher
	metrics   *metrics.Metrics
	log       *slog.Logger
	workerID  string
	now       func() time.Time
}

// resize aborts the generation at the open resolutions and fixes the plan of the next one; cause
// says why. An error says that it could not, and the job is tried again. A crash between two of
// its steps repeats them.
func (r resizer) resize(ctx context.Context, s *Shard, p *hour.Plan, st *hour.State, open []timegrid.Resolution, cause error) error {
	sizes, err := r.surveyor.Survey(ctx, p)
	if err != nil {
		return errors.Join(cause, err)
	}
	r.metrics.Resized.Inc()
	failed := sizing.Attempt{
		Parts: p.Parts, Died: errors.Is(cause, ErrDied), Sizes: sizes, Inputs: p.Inputs, Held: st.Holds,
		// The plan of a repair request is all that knows what damaged blocks had.
		KeepAll: s.Requests.Pending(p.Hour),
	}
	s.PerRecord = float64(failed.Total()) / float64(max(p.Records(), 1))
	next, ok := r.limits.Resize(failed)
	if !ok {
		return cause // no plan has more parts
	}
	// The records of agents stand before any plan leaves the agents out, and that plan before the
	// generation is aborted. So a worker that continues from here, at any point, plans the same.
	if err := r.setAside(ctx, s, p, next.SetAside, failed.Died); err != nil {
		return errors.Join(cause, err)
	}
	inputs := p.Inputs
	if len(next.SetAside) > 0 {
		inputs = failed.Keep(func(agent string) bool { return s.Aside.SetAside(p.Hour, agent) })
	}
	r.log.Warn("an hour does not fit into memory; its next generation has more parts", "shard", p.Shard, "hour", p.Hour, "generation", p.Generation,
		"parts", p.Parts, "next", next.Parts, "bytes", next.Bytes, "inputs", len(inputs), "error", cause)
	if len(inputs) > 0 {
		plan := &rollup.Plan{AuthorityID: p.AuthorityID, Shard: p.Shard, Shards: p.Shards, Hour: p.Hour, Generation: p.Generation + 1, Parts: next.Parts, Inputs: inputs, Journal: p.Journal}
		if _, err := r.records.FixPlan(ctx, plan); err != nil {
			return errors.Join(cause, err)
		}
	}
	if err := abort(ctx, r.publisher, p, open, "does not fit into memory"); err != nil {
		return errors.Join(cause, err)
	}
	return nil
}

// setAside records the agents that are left out of the plan's hour.
func (r resizer) setAside(ctx context.Context, s *Shard, p *hour.Plan, agents []rollup.Size, died bool) error {
	reason := ReasonTooLarge
	if died {
		reason = ReasonDied
	}
	for _, z := range agents {
		err := s.Aside.Add(ctx, catalog.Aside{
			AuthorityID: p.AuthorityID, Shard: p.Shard, Hour: p.Hour, Agent: z.Agent, Series: z.Series, Records: z.Records, Bytes: z.Bytes,
			Limit: r.limits.Hour(), Reason: reason, By: r.workerID, At: r.now().UnixNano(),
		})
		if err != nil {
			return err
		}
		r.metrics.SetAside.Inc()
	}
	return nil
}

// abort decides that the plan's generation is not made at the open resolutions.
func abort(ctx context.Context, p *publish.Publisher, plan *hour.Plan, open []timegrid.Resolution, reason string) error {
	// In the reverse of the order in which they are published. A worker that dies half-way leaves
	// some resolutions open, and whoever tries the generation next aborts these too.
	for _, res := range slices.Backward(open) {
		n := catalog.Name{Hour: plan.Hour, Shard: plan.Shard, Resolution: res, Generation: plan.Generation}
		if _, err := p.Abort(ctx, n, reason); err != nil {
			return err
		}
	}
	return nil
}
