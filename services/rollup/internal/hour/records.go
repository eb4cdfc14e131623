package hour

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Earliest is the first hour that can have blocks: times of samples are nanoseconds in 64 bits.
var Earliest = timegrid.HourOfNS(math.MinInt64)

// Store is what Records needs of the object store.
type Store interface {
	objstore.Getter
	objstore.Lister
	objstore.Creator
}

// Records reads manifests and plans of hours, and fixes plans. It has no state.
type Records struct {
	Store       Store
	AuthorityID string
	// Shards of the authority; a plan of another number of shards is none of its plans.
	Shards uint32
}

// Plan is a rollup plan as it is in the store.
type Plan struct {
	*rollup.Plan
	SHA256 identity.Digest
	// Found: it was there already, another worker's or that of a former attempt.
	Found bool
}

const (
	// requestTimeout of one small request.
	requestTimeout = 10 * time.Second
	// manifestsPage is some generations of all resolutions of one shard.
	manifestsPage = 64
)

// State lists the manifests of a shard's hour and reads those that count. It passes over the
// named manifests where they can't be read; any other one that can't be read is an error.
func (r Records) State(ctx context.Context, h timegrid.Hour, id shard.ID, passOver []string) (*State, error) {
	s := &State{Top: map[timegrid.Resolution]uint64{}, Blocks: map[timegrid.Resolution]*catalog.Block{}, Expired: map[timegrid.Resolution]catalog.Inputs{}}
	removed := map[timegrid.Resolution]uint64{}
	reader := catalog.NewReader(catalog.ReaderConfig{Read: r.manifest})
	// The keys of a shard stand together, in the order of the resolutions' names, of which 1h is
	// the first. So the listing starts at the shard and not at the hour's first key.
	o := objstore.ListOptions{Prefix: layout.BlockManifestsHour(h), StartAfter: layout.BlockManifest(h, id, timegrid.OneHour, 0), Limit: manifestsPage}
	for of, err := range catalog.Slots(ctx, pages{r.Store}, o) {
		if err != nil {
			return nil, fmt.Errorf("list %q: %w", o.Prefix, err)
		}
		if of.Name.Shard > id {
			break
		}
		// A name with a span is a compaction that begins in this hour. It says nothing of the hour's
		// generations: the blocks that were merged into it have manifests of their own.
		if of.Name.Shard < id || of.Name.Span > 0 {
			continue
		}
		st, err := reader.State(ctx, of)
		if err != nil {
			return nil, err
		}
		res := of.Name.Resolution
		s.Top[res] = st.Top
		for _, g := range st.Unreadable {
			key := g.Name.Key()
			if !record.Unreadable(g.Err) || !slices.Contains(passOver, key) {
				return nil, g.Err
			}
			s.Damaged = append(s.Damaged, key)
		}
		if st.Block != nil {
			s.Blocks[res] = st.Block
		}
		// A block that is gone because another one replaced it counts like an expired one: its
		// successor is damaged or lost, and what the block covered is covered all the same.
		if st.Removed != nil {
			removed[res] = st.Committed
		}
	}
	return s, r.findExpired(ctx, h, id, s, removed)
}

// findExpired finds the inputs of generations that retention removed. The blocks of one
// generation have the same inputs, so another resolution's block tells, or else the plan.
func (r Records) findExpired(ctx context.Context, h timegrid.Hour, id shard.ID, s *State, removed map[timegrid.Resolution]uint64) error {
	known := map[uint64]catalog.Inputs{}
	for _, b := range s.Blocks {
		known[b.Name.Generation] = b.Inputs
	}
	for res, gen := range removed {
		in, ok := known[gen]
		if !ok {
			plan, err := r.Plan(ctx, h, id, gen)
			if errors.Is(err, objstore.ErrNotFound) || record.Unreadable(err) {
				// Nothing tells what it covered. What is pending is rolled up again, which
				// costs work but loses nothing.
				continue
			}
			if err != nil {
				return err
			}
			if in, err = plan.InputSet(); err != nil {
				return err
			}
			known[gen] = in
		}
		s.Expired[res] = in
	}
	return nil
}

// Plan reads a generation's plan; objstore.ErrNotFound when there is none.
func (r Records) Plan(ctx context.Context, h timegrid.Hour, id shard.ID, gen uint64) (*Plan, error) {
	key := layout.RollupPlan(h, id, gen)
	body, _, err := r.Store.Get(ctx, key, objstore.GetOptions{Limit: int64(rollup.PlanKind.MaxBytes)})
	if err != nil {
		return nil, fmt.Errorf("read plan: %w", err)
	}
	p, err := rollup.ParsePlan(body)
	if err != nil {
		return nil, rollup.PlanKind.Wrap(key, err)
	}
	if p.Key() != key || p.AuthorityID != r.AuthorityID || p.Shards != r.Shards {
		return nil, rollup.PlanKind.Corrupt(key, "it is of %s, authority %q, %d shards", p.Key(), p.AuthorityID, p.Shards)
	}
	return &Plan{p, identity.Sum(body), true}, nil
}

// FixPlan creates the plan unless its generation has one, and gives the one that is in the
// store: all workers make the generation from that.
func (r Records) FixPlan(ctx context.Context, p *rollup.Plan) (*Plan, error) {
	body, err := p.Encode()
	if err != nil {
		return nil, err
	}
	_, err = r.Store.Create(ctx, p.Key(), body, objstore.PutOptions{ContentType: "application/zstd"})
	if err == nil {
		return &Plan{p, identity.Sum(body), false}, nil
	}
	// Whatever the create said, a plan that can be read now is the plan: it may be another
	// worker's, or this one's after an answer that was lost.
	got, rerr := r.Plan(ctx, p.Hour, p.Shard, p.Generation)
	switch {
	case rerr == nil:
		return got, nil
	case errors.Is(rerr, objstore.ErrNotFound):
		return nil, fmt.Errorf("create plan: %w", err)
	default:
		return nil, errors.Join(err, rerr)
	}
}

func (r Records) manifest(ctx context.Context, key string) (catalog.Record, objstore.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	rec, info, err := catalog.Read(ctx, r.Store, r.AuthorityID, key)
	if err != nil {
		return rec, info, fmt.Errorf("read %q: %w", key, err)
	}
	return rec, info, nil
}

// pages lists with a deadline for each page.
type pages struct{ l objstore.Lister }

func (p pages) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return p.l.List(ctx, o)
}
