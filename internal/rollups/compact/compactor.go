package compact

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Store is what compaction and retention need of an object store.
type Store interface {
	objstore.Reader
	objstore.Creator
}

// Config of a Compactor. All but Settings are required.
type Config struct {
	Store       Store
	Publisher   *publish.Publisher
	AuthorityID string
	Settings    Settings
}

// Compactor compacts. It has no state of its own; two that do the same at once are harmless.
type Compactor struct{ cfg Config }

// NewCompactor checks the settings; it makes no request.
func NewCompactor(c Config) (*Compactor, error) {
	if c.Store == nil || c.Publisher == nil || c.AuthorityID == "" {
		return nil, errors.New("compact: store, publisher and authority are needed")
	}
	return &Compactor{c}, c.Settings.Validate()
}

// Result of a compaction.
type Result struct {
	// Set is the committed compaction; nil when its generation was given up.
	Block *catalog.Block
	// Created: by this call.
	Created bool
	// Turned sources point at it now, by this call; Skipped had become something else.
	Turned, Skipped int
}

// ErrGivenUp: the generation can't be made any more and is aborted; the next look plans anew.
var ErrGivenUp = errors.New("generation of a compaction is given up")

// Compact makes the candidate's next generation, or finishes the one that was begun in
// its place, under the fence of the group's first shard. It may be called again after any
// error, by anyone. Errors: those of publish.Publish, ErrSources, ErrNotConserved and
// ErrGivenUp.
func (c *Compactor) Compact(ctx context.Context, cand Candidate, fence uint64) (Result, error) {
	res, err := c.compact(ctx, cand, fence)
	if err != nil {
		err = fmt.Errorf("compact %s: %w", cand.Name.SlotPrefix(), err)
	}
	return res, err
}

func (c *Compactor) compact(ctx context.Context, cand Candidate, fence uint64) (Result, error) {
	slot, err := c.slot(ctx, cand.Name)
	if err != nil {
		return Result{}, err
	}
	// What was committed, and not turned to the end, comes first.
	for _, block := range slot.blocks {
		if wants(block, cand.Sources) {
			res := Result{Block: block}
			return res, c.turn(ctx, &res)
		}
	}
	name := cand.Name
	name.Generation = slot.top + 1
	p, sum, err := c.plan(ctx, name, cand)
	if record.Unreadable(err) {
		return Result{}, c.giveUp(ctx, name, err) // nobody can make it
	}
	if err != nil {
		return Result{}, err
	}
	sources, err := c.sources(ctx, p, cand.Sources)
	if errors.Is(err, ErrSources) {
		return Result{}, c.giveUp(ctx, name, err)
	}
	if err != nil {
		return Result{}, err
	}
	m, err := Merge(ctx, c.cfg.Store, p, sources)
	if errors.Is(err, ErrSources) || errors.Is(err, objstore.ErrNotFound) {
		return Result{}, c.giveUp(ctx, name, err)
	}
	if err != nil {
		return Result{}, err
	}
	got, err := c.cfg.Publisher.Publish(ctx, publish.Publication{
		Name: name, Shards: p.Shards, Fence: fence, PlanSHA256: sum, Outputs: m.Outputs, Supersedes: slot.committed(), Sources: p.Sources,
		// Equal rows are equal objects: those of an earlier generation may have rotted.
		Verify: slot.top > 0, Damaged: slot.damaged,
	})
	if err != nil {
		return Result{}, err
	}
	res := Result{Block: got.Block, Created: got.Created}
	return res, c.turn(ctx, &res)
}

// wants reports whether one of the sets should point at the compaction and does not.
func wants(c *catalog.Block, blocks []*catalog.Block) bool {
	for _, s := range blocks {
		i, ok := slices.BinarySearchFunc(c.Sources, s.Name, catalog.CompareSources)
		if ok && c.Sources[i] == s.Name && s.Into.Earlier(c.Name) {
			return true
		}
	}
	return false
}

// slot is what is there of a compaction's generations.
type slot struct {
	top    uint64
	blocks []*catalog.Block // committed ones, ascending
	// damaged are records that can't be read.
	damaged []string
}

func (s *slot) committed() uint64 {
	if n := len(s.blocks); n > 0 {
		return s.blocks[n-1].Name.Generation
	}
	return 0
}

// slot reads all generations, since sources may point at each that is committed, or be to.
func (c *Compactor) slot(ctx context.Context, n catalog.Name) (*slot, error) {
	s := &slot{}
	records := catalog.NewReader(catalog.ReaderConfig{Read: reading(c.cfg.Store, c.cfg.AuthorityID)})
	for of, err := range catalog.Slots(ctx, c.cfg.Store, objstore.ListOptions{Prefix: n.SlotPrefix()}) {
		if err != nil {
			return s, err
		}
		all, err := records.All(ctx, of)
		if err != nil {
			return s, err
		}
		s.top = of.Top()
		for _, g := range all {
			switch {
			case record.Unreadable(g.Err):
				// Whoever points at it can't be read either, and is no source until it is made again.
				s.damaged = append(s.damaged, g.Name.Key())
			case g.Err != nil:
				return s, g.Err
			case g.Record.Block != nil:
				s.blocks = append(s.blocks, g.Record.Block)
			}
		}
	}
	return s, nil
}

// plan gives the generation's plan: the one that is there, or one of the candidate.
func (c *Compactor) plan(ctx context.Context, name catalog.Name, cand Candidate) (*Plan, identity.Digest, error) {
	key := layout.BlockPlan(name)
	p := &Plan{
		AuthorityID: c.cfg.AuthorityID, Name: name, Shards: cand.Sources[0].Shards,
		ObjectBytes: uint64(c.cfg.Settings.ObjectBytes), Rows: uint32(c.cfg.Settings.Rows),
		BlockSeries: uint32(c.cfg.Settings.BlockSeries), BlockValues: uint32(c.cfg.Settings.BlockValues),
	}
	for _, s := range cand.Sources {
		p.Sources = append(p.Sources, s.Name)
	}
	body, err := p.Marshal()
	if err != nil {
		return nil, identity.Digest{}, err
	}
	// Another's, or ours after a lost answer: what is there counts.
	there, created, err := objstore.CreateOrGet(ctx, c.cfg.Store, key, body, int64(PlanKind.MaxBytes), objstore.PutOptions{ContentType: "application/json"})
	if err != nil || created {
		return p, identity.Sum(body), err
	}
	if p, err = ParsePlan(key, there); err != nil {
		return nil, identity.Digest{}, err
	}
	if p.AuthorityID != c.cfg.AuthorityID {
		return nil, identity.Digest{}, PlanKind.Corrupt(key, "it is of the authority %.128q", p.AuthorityID)
	}
	return p, identity.Sum(there), nil
}

// sources gives the plan's sources as they are: those that the caller has, others are
// read. ErrSources when one is removed.
func (c *Compactor) sources(ctx context.Context, p *Plan, have []*catalog.Block) ([]*catalog.Block, error) {
	at := map[catalog.Name]*catalog.Block{}
	for _, s := range have {
		at[s.Name] = s
	}
	into := map[catalog.Name]*catalog.Block{}
	out := make([]*catalog.Block, len(p.Sources))
	for i, n := range p.Sources {
		if out[i] = at[n]; out[i] != nil {
			continue
		}
		s, err := c.block(ctx, n)
		if err != nil {
			return nil, err
		}
		if s.Into != nil {
			to := s.Into.Name
			if into[to] == nil {
				if into[to], err = c.block(ctx, to); err != nil {
					return nil, err
				}
			}
			s.Into.Block = into[to]
		}
		out[i] = s
	}
	return out, nil
}

func (c *Compactor) block(ctx context.Context, n catalog.Name) (*catalog.Block, error) {
	r, _, err := catalog.Read(ctx, c.cfg.Store, c.cfg.AuthorityID, n.Key())
	switch {
	case err != nil:
		return nil, err
	case r.Block == nil:
		return nil, fmt.Errorf("%w: %s is removed", ErrSources, n.Key())
	}
	return r.Block, nil
}

// giveUp aborts the generation, so that the next one can be planned.
func (c *Compactor) giveUp(ctx context.Context, n catalog.Name, cause error) error {
	if _, err := c.cfg.Publisher.Abort(ctx, n, "sources can not be merged"); err != nil {
		return errors.Join(cause, err)
	}
	return fmt.Errorf("%w: %w", ErrGivenUp, cause)
}

// turn makes the sources point at the compaction, which is committed.
func (c *Compactor) turn(ctx context.Context, res *Result) error {
	for _, src := range res.Block.Sources {
		ch, err := c.cfg.Publisher.Compact(ctx, src, res.Block.Name)
		if err != nil {
			return err
		}
		if ch == publish.Turned {
			res.Turned++
		} else {
			res.Skipped++
		}
	}
	return nil
}
