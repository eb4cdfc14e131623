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

// Compactor compacts. It has no state of its own; two that do the same work at once are harmless.
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
	// Block is the committed compaction; nil when its generation was aborted.
	Block *catalog.Block
	// Created says that this call committed it.
	Created bool
	// Redirected sources were changed by this call; Skipped ones had become something else.
	Redirected, Skipped int
}

// ErrAborted means that the generation can't be made any more and was aborted; the next scan plans another.
var ErrAborted = errors.New("generation of a compaction is aborted")

// Compact makes the candidate's next generation, or finishes one that was begun in its place, under the fence of
// the group's first shard. It may be called again after any error, by any worker. Errors: those of
// publish.Publish, ErrSources, ErrNotConserved and ErrAborted.
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
	// A compaction that is committed but to which not all sources redirect yet is finished before another is made.
	for _, block := range slot.blocks {
		if needsRedirect(block, cand.Sources) {
			res := Result{Block: block}
			return res, c.redirect(ctx, &res)
		}
	}
	name := cand.Name
	name.Generation = slot.top + 1
	p, sum, err := c.plan(ctx, name, cand)
	if record.Unreadable(err) {
		return Result{}, c.abort(ctx, name, err) // no worker can make a generation without its plan
	}
	if err != nil {
		return Result{}, err
	}
	sources, err := c.sources(ctx, p, cand.Sources)
	if errors.Is(err, ErrSources) {
		return Result{}, c.abort(ctx, name, err)
	}
	if err != nil {
		return Result{}, err
	}
	m, err := Merge(ctx, c.cfg.Store, p, sources)
	if errors.Is(err, ErrSources) || errors.Is(err, objstore.ErrNotFound) {
		return Result{}, c.abort(ctx, name, err)
	}
	if err != nil {
		return Result{}, err
	}
	got, err := c.cfg.Publisher.Publish(ctx, publish.Publication{
		Name: name, Shards: p.Shards, Fence: fence, PlanSHA256: sum, Outputs: m.Outputs, Supersedes: slot.committed(), Sources: p.Sources,
		// Equal rows make equal objects, so this generation may find objects of an earlier one, which may be
		// damaged.
		Verify: slot.top > 0, Damaged: slot.damaged,
	})
	if err != nil {
		return Result{}, err
	}
	res := Result{Block: got.Block, Created: got.Created}
	return res, c.redirect(ctx, &res)
}

// needsRedirect reports whether one of the blocks should redirect to the compaction and does not.
func needsRedirect(c *catalog.Block, blocks []*catalog.Block) bool {
	for _, s := range blocks {
		i, ok := slices.BinarySearchFunc(c.Sources, s.Name, catalog.CompareSources)
		if ok && c.Sources[i] == s.Name && s.Redirect.YieldsTo(c.Name) {
			return true
		}
	}
	return false
}

// slot has the generations of a compaction.
type slot struct {
	top    uint64
	blocks []*catalog.Block // committed ones, ascending
	// damaged are keys of records that can't be read.
	damaged []string
}

func (s *slot) committed() uint64 {
	if n := len(s.blocks); n > 0 {
		return s.blocks[n-1].Name.Generation
	}
	return 0
}

// slot reads all generations, since sources may redirect to any that is committed, now or later.
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
				// A block that redirects to it can't be resolved either, and is no source until its hour is
				// rebuilt.
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

// plan returns the generation's plan: the stored one, or else one for the candidate, which it stores.
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
	// If another worker has created a plan, that one counts: both must make the same objects.
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

// sources returns the plan's sources as they are now. It reads those that the caller does not have, and fails with
// ErrSources when one is removed.
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
		// Rows of a source that is compacted already are read from there. Many sources share one compaction, which
		// is read once.
		if s.Redirect != nil {
			to := s.Redirect.Name
			if into[to] == nil {
				if into[to], err = c.block(ctx, to); err != nil {
					return nil, err
				}
			}
			s.Redirect.Block = into[to]
		}
		out[i] = s
	}
	return out, nil
}

// block reads the record of a committed block.
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

// abort aborts the generation, so that the next one can be planned.
func (c *Compactor) abort(ctx context.Context, n catalog.Name, cause error) error {
	if _, err := c.cfg.Publisher.Abort(ctx, n, "sources can not be merged"); err != nil {
		return errors.Join(cause, err)
	}
	return fmt.Errorf("%w: %w", ErrAborted, cause)
}

// redirect makes the sources redirect to the compaction, which is committed.
func (c *Compactor) redirect(ctx context.Context, res *Result) error {
	n, err := c.cfg.Publisher.Compact(ctx, res.Block.Name, res.Block.Sources...)
	if res.Redirected = n; err == nil {
		res.Skipped = len(res.Block.Sources) - n
	}
	return err
}
