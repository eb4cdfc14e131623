package load

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Rollups is a summary of a bucket's blocks.
type Rollups struct {
	Blocks      int // committed, of all generations
	Generations int // of raw resolutions
	Aborted     int
	Hours       int // of shards
	Records     uint64
	Workers     map[string]int // blocks by worker
}

// ErrNotRolledUp: accepted batches are missing in the blocks. A later check may find them.
var ErrNotRolledUp = errors.New("not everything is rolled up")

// CheckRollups reads the blocks of a bucket at rest and gives every difference:
// generations without a hole and fences that only grow; the highest generation has
// exactly the accepted batches of its shard and hour, in all resolutions; and its chunks are, byte for
// byte, what the frames of these batches give when they are rolled up again.
func CheckRollups(ctx context.Context, c *cluster.Cluster, shards uint32) (*Rollups, error) {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return nil, err
	}
	x := &rollups{ctx: ctx, store: store, authority: c.AuthorityID(), blocks: map[slot][]*catalog.Block{}, report: &Rollups{Workers: map[string]int{}}}
	if err := x.read(); err != nil {
		return nil, err
	}
	wanted, err := x.accepted(shards)
	if err != nil {
		return nil, err
	}
	// All inputs first: that reads no frame, and what is not rolled up yet shows.
	tops := map[place]map[timegrid.Resolution]*catalog.Block{}
	for at, ids := range wanted {
		if tops[at], err = x.top(at, ids); err != nil {
			return nil, fmt.Errorf("shard %s, hour %s: %w", at.shard, at.hour, err)
		}
	}
	for at, top := range tops {
		if err := x.check(at, top); err != nil {
			return nil, fmt.Errorf("shard %s, hour %s: %w", at.shard, at.hour, err)
		}
	}
	for at := range x.blocks {
		if len(wanted[place{at.shard, at.hour}]) == 0 {
			return nil, fmt.Errorf("shard %s, hour %s: published without an accepted batch", at.shard, at.hour)
		}
	}
	x.report.Hours = len(wanted)
	return x.report, nil
}

type place struct {
	shard shard.ID
	hour  timegrid.Hour
}

type slot struct {
	place
	resolution timegrid.Resolution
}

type rollups struct {
	ctx       context.Context
	store     objstore.Store
	authority string
	blocks    map[slot][]*catalog.Block // by generation; nil where one was aborted
	report    *Rollups
}

// read reads all manifests; a listing is in the order of generations.
func (x *rollups) read() error {
	fences := map[slot]uint64{}
	for i, err := range objstore.List(x.ctx, x.store, objstore.ListOptions{Prefix: layout.ManifestsPrefix}) {
		if err != nil {
			return err
		}
		name, err := layout.ParseBlockManifest(i.Key)
		if err != nil {
			return err
		}
		rec, _, err := catalog.Read(x.ctx, x.store, x.authority, i.Key)
		if err != nil {
			return err
		}
		at := slot{place{name.Shard, name.Hour}, name.Resolution}
		// Aborted generations have a nil entry, so the length is the last generation.
		if want := uint64(len(x.blocks[at]) + 1); name.Generation != want {
			return fmt.Errorf("%s: generation %d is missing before it", i.Key, want)
		}
		x.blocks[at] = append(x.blocks[at], rec.Block)
		var fence uint64
		switch {
		case rec.Block != nil:
			fence = rec.Block.Fence
			x.report.Blocks++
			x.report.Workers[rec.Block.WorkerID]++
			if name.Resolution == timegrid.Raw {
				x.report.Generations++
			}
			if !rec.Block.Counts.Conserved() || rec.Block.Inputs.Records() != rec.Block.Counts.Records {
				return fmt.Errorf("%s: counts %+v of %d input records", i.Key, rec.Block.Counts, rec.Block.Inputs.Records())
			}
		case rec.Removed != nil:
			fence = rec.Removed.Fence
		default:
			x.report.Aborted++
			continue
		}
		// A lower fence means that a worker published after it had lost the shard.
		if fence < fences[at] {
			return fmt.Errorf("%s: fence %d after %d", i.Key, fence, fences[at])
		}
		fences[at] = fence
	}
	return nil
}

// accepted gives the batches of every shard and hour.
func (x *rollups) accepted(shards uint32) (map[place][]identity.Batch, error) {
	batches, err := CountedManifests(x.ctx, x.store, x.authority)
	if err != nil {
		return nil, err
	}
	all := map[place][]identity.Batch{}
	for _, m := range batches {
		for h := timegrid.HourOfNS(m.MinTime); h <= timegrid.HourOfNS(m.MaxTime); h++ {
			at := place{shard.Of(m.Identity.Agent, shards), h}
			all[at] = append(all[at], m.Identity)
		}
	}
	return all, nil
}

// readers of objects at one time.
const readers = 16

// top is the highest generation, if it has the inputs that it should.
func (x *rollups) top(at place, ids []identity.Batch) (map[timegrid.Resolution]*catalog.Block, error) {
	want, err := catalog.NewInputs(ids)
	if err != nil {
		return nil, err
	}
	top := map[timegrid.Resolution]*catalog.Block{}
	for _, res := range timegrid.Resolutions() {
		gens := x.blocks[slot{at, res}]
		for i := len(gens); i > 0 && top[res] == nil; i-- {
			top[res] = gens[i-1]
		}
		switch s := top[res]; {
		case s == nil:
			return nil, fmt.Errorf("%w: no %s block", ErrNotRolledUp, res)
		case s.Inputs.Digest() != want.Digest():
			// Missing batches may still come with a later generation. Batches that nobody accepted are a
			// fault for ever.
			if want.Contains(s.Inputs) {
				return nil, fmt.Errorf("%w: %s has %d of %d batches", ErrNotRolledUp, res, s.Inputs.Batches(), want.Batches())
			}
			return nil, fmt.Errorf("%s has %d batches, of %d accepted ones, and some that are not accepted", res, s.Inputs.Batches(), want.Batches())
		}
	}
	return top, nil
}

// check compares the chunks of a shard's hour with its frames.
func (x *rollups) check(at place, top map[timegrid.Resolution]*catalog.Block) error {
	raw, err := x.again(at.hour, top[timegrid.Raw])
	if err != nil {
		return err
	}
	for _, res := range timegrid.Resolutions() {
		if err := sameChunk(top[res], raw); err != nil {
			return fmt.Errorf("%s: %w", res, err)
		}
	}
	x.report.Records += top[timegrid.Raw].Counts.Published
	return nil
}

// again rolls up the inputs of a block again, from their frames.
func (x *rollups) again(h timegrid.Hour, s *catalog.Block) ([]chunk.Series, error) {
	body, _, err := x.store.Get(x.ctx, s.PlanKey, objstore.GetOptions{Limit: int64(rollup.PlanKind.MaxBytes)})
	if err != nil {
		return nil, err
	}
	plan, err := rollup.ParsePlan(body)
	if err != nil {
		return nil, err
	}
	inputs := make([]accepted.Claim, len(plan.Inputs))
	for i, e := range plan.Inputs {
		inputs[i] = e.Claim()
	}
	frames := make([][]byte, len(plan.Inputs))
	g, ctx := errgroup.WithContext(x.ctx)
	g.SetLimit(readers)
	for i, e := range plan.Inputs {
		g.Go(func() (err error) {
			frames[i], err = accept.ReadFrame(ctx, x.store, e.RawBlobKey, e.FrameSHA256, e.FrameBytes)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	b := rollup.NewBuilder(h, inputs, rollup.Part{})
	for i := range plan.Inputs {
		var f frame.Batch
		if err := frame.Decode(frames[i], &f, frame.DefaultLimits()); err != nil {
			return nil, err
		}
		if err := b.Add(i, &f); err != nil {
			return nil, err
		}
	}
	series, counts, err := b.Finish()
	if err != nil {
		return nil, err
	}
	if counts.Published != s.Counts.Published || counts.OtherHours != s.Counts.OtherHours ||
		counts.Overlapped != s.Counts.Overlapped || counts.Duplicates != s.Counts.Duplicates {
		return nil, fmt.Errorf("counts %+v, rolled up again %+v", s.Counts, counts)
	}
	return series, nil
}

// sameChunk compares a block with the raw series that it should hold. The fleets' hours
// are small: one chunk each.
func sameChunk(s *catalog.Block, raw []chunk.Series) error {
	// Rows that would be no smaller than the samples are not made.
	if len(raw) == 0 && len(s.Objects) == 0 || s.Unrolled {
		return nil
	}
	if len(s.Objects) != 1 {
		return fmt.Errorf("%d chunks, want 1", len(s.Objects))
	}
	w := chunk.NewWriter(chunk.Options{})
	for i := range raw {
		series := raw[i]
		if s.Name.Resolution != timegrid.Raw {
			series = rollup.NewRoller(s.Name.Resolution).Roll(&raw[i])
		}
		if err := w.Add(&series); err != nil {
			return err
		}
	}
	files, err := w.Finish()
	if err != nil {
		return err
	}
	if files.ID != s.Objects[0].ChunkSHA256 || files.IndexID != s.Objects[0].IndexSHA256 {
		return fmt.Errorf("chunk %s, rolled up again %s", s.Objects[0].ChunkSHA256, files.ID)
	}
	return nil
}
