package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// planned is a plan as it stands in the store.
type planned struct {
	*rollup.Plan
	sha   identity.Digest
	found bool // it was there: another's, or of a former try
}

// readPlan reads a generation's plan; objstore.ErrNotFound when there is none.
func (s *Service) readPlan(ctx context.Context, h timegrid.Hour, id shard.ID, gen uint64) (*planned, error) {
	key := layout.RollupPlan(h, id, gen)
	body, _, err := s.store.Get(ctx, key, objstore.GetOptions{Limit: int64(rollup.PlanKind.MaxBytes)})
	if err != nil {
		return nil, fmt.Errorf("read plan: %w", err)
	}
	p, err := rollup.ParsePlan(body)
	if err != nil {
		return nil, rollup.PlanKind.Wrap(key, err)
	}
	if p.Key() != key || p.AuthorityID != s.cfg.AuthorityID || p.Shards != s.cfg.Shards {
		return nil, rollup.PlanKind.Corrupt(key, "it is of %s, authority %q, %d shards", p.Key(), p.AuthorityID, p.Shards)
	}
	return &planned{p, identity.Sum(body), true}, nil
}

// plan gives the generation's plan: the one that is there, or one that is made now of
// the former generation's inputs and the pending ones. What is in the store counts. perRecord
// is the memory that a record of the shard took lately, 0 when that is not known.
func (s *Service) plan(ctx context.Context, h timegrid.Hour, id shard.ID, gen uint64, pub *published, more []accepted.Batch, perRecord float64) (*planned, error) {
	old, err := s.readPlan(ctx, h, id, gen)
	if !errors.Is(err, objstore.ErrNotFound) {
		return old, err
	}
	inputs := more
	if before := pub.newest(); before != nil {
		p, err := s.readPlan(ctx, h, id, before.Name.Generation)
		if err != nil {
			return nil, err
		}
		inputs = merge(p.Inputs, more)
	}
	if len(inputs) == 0 {
		return nil, errNoInputs
	}
	p := &rollup.Plan{AuthorityID: s.cfg.AuthorityID, Shard: id, Shards: s.cfg.Shards, Hour: h, Generation: gen, Inputs: inputs}
	p.Parts = min(max(parts(p.Records(), int64(s.cfg.Jobs.Memory)), s.partsOf(int64(perRecord*float64(p.Records())))), s.cfg.Jobs.MaxParts)
	body, err := p.Marshal()
	if err != nil {
		return nil, err
	}
	if _, err := s.store.Create(ctx, p.Key(), body, objstore.PutOptions{ContentType: "application/json"}); err == nil {
		return &planned{p, identity.Sum(body), false}, nil
	} else if got, rerr := s.readPlan(ctx, h, id, gen); rerr == nil {
		return got, nil
	} else if errors.Is(rerr, objstore.ErrNotFound) {
		return nil, fmt.Errorf("create plan: %w", err)
	} else {
		return nil, errors.Join(err, rerr)
	}
}

// errNoInputs: there is nothing to roll up.
var errNoInputs = errors.New("no inputs")

// merge puts inputs into the order of their identities, each once.
func merge(a, b []accepted.Batch) []accepted.Batch {
	out := slices.Concat(a, b)
	slices.SortStableFunc(out, func(x, y accepted.Batch) int { return x.Identity.Compare(y.Identity) })
	return slices.CompactFunc(out, func(x, y accepted.Batch) bool { return x.Identity == y.Identity })
}

// recordBytes is about what a raw record takes at least while its hour is built, where a
// series has many: times and values as they came and as they leave, and a part of the encoder.
const recordBytes = 48

func parts(records uint64, memory int64) uint32 {
	n := (records*recordBytes + uint64(memory) - 1) / uint64(memory)
	return uint32(min(max(n, 1), rollup.MaxParts))
}
