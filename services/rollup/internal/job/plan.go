package job

import (
	"context"
	"errors"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/sizing"
)

// ErrNoInputs says that there is nothing to roll up.
var ErrNoInputs = errors.New("no inputs")

// Planner fixes plans: what a generation is made of, for every worker and every attempt.
type Planner struct {
	Records hour.Records
	Limits  sizing.Limits
}

// Plan gives the generation's plan: the one that is there, or one that is made now of the former
// generation's inputs and the pending ones. through are the positions of the journal that the plan
// records, nil for none. perRecord is the memory that a
// record of the shard took lately, 0 when that is not known.
func (p Planner) Plan(ctx context.Context, h timegrid.Hour, id shard.ID, gen uint64, st *hour.State, pending []accepted.Batch, through *journal.Positions, perRecord float64) (*hour.Plan, error) {
	old, err := p.Records.Plan(ctx, h, id, gen)
	if !errors.Is(err, objstore.ErrNotFound) {
		return old, err
	}
	inputs := pending
	if before := st.Newest(); before != nil {
		// The block has only the identities of its inputs. Its plan has all that is needed to read
		// their frames, should they have to be read again.
		old, err := p.Records.Plan(ctx, h, id, before.Name.Generation)
		if err != nil {
			return nil, err
		}
		inputs = merge(old.Inputs, pending)
	}
	if len(inputs) == 0 {
		return nil, ErrNoInputs
	}
	next := &rollup.Plan{AuthorityID: p.Records.AuthorityID, Shard: id, Shards: p.Records.Shards, Hour: h, Generation: gen, Inputs: inputs, Journal: through}
	next.Parts = p.Limits.Parts(next.Records(), perRecord)
	return p.Records.FixPlan(ctx, next)
}

// merge puts inputs into the order of their identities, each once.
func merge(a, b []accepted.Batch) []accepted.Batch {
	out := slices.Concat(a, b)
	slices.SortStableFunc(out, func(x, y accepted.Batch) int { return x.Identity.Compare(y.Identity) })
	return slices.CompactFunc(out, func(x, y accepted.Batch) bool { return x.Identity == y.Identity })
}
