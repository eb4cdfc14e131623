package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// published is what the manifests of a shard's hour say.
type published struct {
	// top is the highest decided generation of each resolution, 0 for none.
	top map[timegrid.Resolution]uint64
	// sets is the highest committed one; no entry when there is none.
	sets map[timegrid.Resolution]*catalog.Block
	// expired are the inputs of the highest one where retention removed it: it covers what
	// it did, and a batch that stands in the intake again brings it back for nobody.
	expired map[timegrid.Resolution]catalog.Inputs
	// damaged are records that can't be read and that an order passes over.
	damaged []string
}

// storeTimeout of one small request.
const storeTimeout = 10 * time.Second

// published lists the manifests and reads those that count.
func (s *Service) published(ctx context.Context, h timegrid.Hour, id shard.ID) (*published, error) {
	return s.publishedBut(ctx, h, id, nil)
}

// publishedBut passes over those of the named records that can't be read.
func (s *Service) publishedBut(ctx context.Context, h timegrid.Hour, id shard.ID, damaged []string) (*published, error) {
	p := &published{top: map[timegrid.Resolution]uint64{}, sets: map[timegrid.Resolution]*catalog.Block{}, expired: map[timegrid.Resolution]catalog.Inputs{}}
	expired := map[timegrid.Resolution]uint64{}
	records := catalog.NewReader(catalog.ReaderConfig{Read: s.record})
	// Keys of a shard stand together; its resolutions are in the order of their names.
	o := objstore.ListOptions{Prefix: layout.BlockManifestsHour(h), StartAfter: layout.BlockManifest(h, id, timegrid.OneHour, 0), Limit: setsPage}
	for of, err := range catalog.Slots(ctx, lister{s}, o) {
		if err != nil {
			return nil, fmt.Errorf("list %q: %w", o.Prefix, err)
		}
		if of.Name.Shard > id {
			break
		}
		if of.Name.Shard < id || of.Name.Span > 0 {
			continue
		}
		st, err := records.State(ctx, of)
		if err != nil {
			return nil, err
		}
		res := of.Name.Resolution
		p.top[res] = st.Top
		for _, g := range st.Doubt {
			key := g.Name.Key()
			if !record.Unreadable(g.Err) || !slices.Contains(damaged, key) {
				return nil, g.Err
			}
			p.damaged = append(p.damaged, key)
		}
		if st.Block != nil {
			p.sets[res] = st.Block
		}
		// Where it is gone since another one replaced it, that one is damaged, or lost: what the set
		// covered is covered.
		if st.Removed != nil {
			expired[res] = st.Committed
		}
	}
	return p, s.expired(ctx, h, id, p, expired)
}

// lister lists with a deadline for each page.
type lister struct{ s *Service }

func (l lister) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	return l.s.list(ctx, o)
}

// expired finds the inputs of generations that retention removed: resolutions of a generation
// have the same, and its plan has them.
func (s *Service) expired(ctx context.Context, h timegrid.Hour, id shard.ID, p *published, gens map[timegrid.Resolution]uint64) error {
	plans := map[uint64]catalog.Inputs{}
	for _, block := range p.sets {
		plans[block.Name.Generation] = block.Inputs
	}
	for res, gen := range gens {
		in, ok := plans[gen]
		if !ok {
			plan, err := s.readPlan(ctx, h, id, gen)
			if errors.Is(err, objstore.ErrNotFound) || record.Unreadable(err) {
				continue // nobody knows: what is pending is rolled up again
			}
			if err != nil {
				return err
			}
			if in, err = plan.InputSet(); err != nil {
				return err
			}
			plans[gen] = in
		}
		p.expired[res] = in
	}
	return nil
}

// setsPage is some generations of the resolutions of one shard.
const setsPage = 64

func (s *Service) list(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return s.store.List(ctx, o)
}

func (s *Service) record(ctx context.Context, key string) (catalog.Record, objstore.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	r, info, err := catalog.Read(ctx, s.store, s.cfg.AuthorityID, key)
	if err != nil {
		return r, info, fmt.Errorf("read %q: %w", key, err)
	}
	return r, info, nil
}

// next is the generation to make or to finish: the first that some resolution has not decided.
func (p *published) next() uint64 {
	first := p.top[timegrid.Raw]
	for _, res := range timegrid.Resolutions() {
		first = min(first, p.top[res])
	}
	return first + 1
}

// unfinished: a generation is decided in some resolutions and not in others.
func (p *published) unfinished() bool {
	for _, res := range timegrid.Resolutions() {
		if p.top[res] != p.top[timegrid.Raw] {
			return true
		}
	}
	return false
}

// committed reports whether some resolution that is not open has the generation committed, or
// may have had it: those of one that was given up half-way have not.
func (p *published) committed(gen uint64, open []timegrid.Resolution) bool {
	for _, res := range timegrid.Resolutions() {
		if slices.Contains(open, res) {
			continue
		}
		if _, expired := p.expired[res]; expired || p.sets[res] != nil && p.sets[res].Name.Generation >= gen {
			return true
		}
	}
	return len(p.damaged) > 0
}

// covers reports whether the committed sets of all resolutions have the batch as an input, or
// had it when they expired.
func (p *published) covers(id identity.Batch) bool {
	var last *catalog.Block
	for _, res := range timegrid.Resolutions() {
		block := p.sets[res]
		if block == nil {
			if in, ok := p.expired[res]; !ok || !in.Covers(id) {
				return false
			}
			continue
		}
		// Resolutions of one plan have the same inputs.
		if last != nil && block.PlanSHA256 == last.PlanSHA256 {
			continue
		}
		if !block.Inputs.Covers(id) {
			return false
		}
		last = block
	}
	return true
}

// before is the highest committed generation of the resolution below gen, 0 for none. sets
// holds the highest of all: a higher one than gen means that gen is long decided.
func (p *published) before(res timegrid.Resolution, gen uint64) uint64 {
	if block := p.sets[res]; block != nil && block.Name.Generation < gen {
		return block.Name.Generation
	}
	return 0
}

// newest is the set of the highest generation of any resolution: raw sets may expire first,
// and the next generation has the inputs of them all.
func (p *published) newest() *catalog.Block {
	var newest *catalog.Block
	for _, res := range timegrid.Resolutions() {
		if s := p.sets[res]; s != nil && (newest == nil || s.Name.Generation > newest.Name.Generation) {
			newest = s
		}
	}
	return newest
}
