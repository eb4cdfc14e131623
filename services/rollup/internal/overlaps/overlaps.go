// Package overlaps finds the accepted batches of one boot whose record numbers overlap those
// of an hour's pending batches. A number counts once, for the batch that was accepted first,
// so every hour that has one of them as an input must have all of them.
//
// Overlapping batches of one hour are inputs of it anyway. Those of other hours are searched
// among what is pending, and in the blocks of the hours beside: numbers ascend with time, so
// that is where an agent that numbers records twice has the others. Where a neighbour's
// records can't be read, the identity manifests tell: a damaged hour does not hold up the
// hours beside it.
//
// The package decides and reads, and starts nothing: no goroutines, no clock of its own.
package overlaps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
)

// Backlog takes what is found.
type Backlog interface {
	// JoinOverlaps does the part of the work that needs nothing but what is pending.
	JoinOverlaps(now time.Time)
	Inputs(timegrid.Hour) []accepted.Batch
	AddHour(id identity.Batch, h timegrid.Hour, now time.Time)
	AddInput(e accepted.Batch, h timegrid.Hour, now time.Time)
}

// Deltas have late batches that no block has yet.
type Deltas interface {
	// Overlapping are those that share record numbers with id, but id.
	Overlapping(id identity.Batch) []delta.Batch
}

// Records are the manifests and plans of hours.
type Records interface {
	State(ctx context.Context, h timegrid.Hour, id shard.ID, passOver []string) (*hour.State, error)
	Plan(ctx context.Context, h timegrid.Hour, id shard.ID, gen uint64) (*hour.Plan, error)
}

// Manifests are the identity manifests of accepted batches.
type Manifests interface {
	objstore.Getter
	objstore.Lister
}

// Finder finds overlapping batches for the hours of one shard.
type Finder struct {
	Shard     shard.ID
	Backlog   Backlog
	Deltas    Deltas
	Records   Records
	Manifests Manifests
	// Damaged is called with the error of a record of a neighbour that can't be read.
	Damaged func(error)
}

// Find makes the hour's pending batches, and those that overlap them, inputs of each other's
// hours.
func (f *Finder) Find(ctx context.Context, h timegrid.Hour, now time.Time) error {
	f.Backlog.JoinOverlaps(now)
	pending := f.Backlog.Inputs(h)
	f.findLate(pending, h, now)
	for _, beside := range []timegrid.Hour{h - 1, h + 1} {
		if err := f.findBeside(ctx, pending, beside, h, now); err != nil {
			return err
		}
	}
	return nil
}

// findLate compares the pending batches of h with those in deltas, of whatever hour: they are in the next generations
// of their hours.
func (f *Finder) findLate(pending []accepted.Batch, h timegrid.Hour, now time.Time) {
	for _, e := range pending {
		for _, with := range f.Deltas.Overlapping(e.Identity) {
			f.Backlog.AddInput(with.Batch, h, now)
			for _, other := range with.Hours {
				f.Backlog.AddHour(e.Identity, other, now)
			}
		}
	}
}

// findBeside compares the pending batches of h with the raw block of a neighbour.
func (f *Finder) findBeside(ctx context.Context, pending []accepted.Batch, beside, h timegrid.Hour, now time.Time) error {
	st, err := f.Records.State(ctx, beside, f.Shard, nil)
	if record.Unreadable(err) {
		// The neighbour waits for a repair request, but h need not: which batches overlap is a
		// matter of what was accepted, whether or not it is published.
		f.Damaged(err)
		return f.findAccepted(ctx, pending, beside, h, now)
	}
	if err != nil {
		return err
	}
	block := st.Blocks[timegrid.Raw]
	if block == nil {
		return nil
	}
	var found []identity.Batch
	for _, e := range pending {
		with := InBlock(block.Inputs, e.Identity)
		if len(with) > 0 {
			f.Backlog.AddHour(e.Identity, beside, now)
		}
		found = append(found, with...)
	}
	return f.addPublished(ctx, h, block, found, now)
}

// addPublished makes inputs of a neighbour's block inputs of h.
func (f *Finder) addPublished(ctx context.Context, h timegrid.Hour, block *catalog.Block, ids []identity.Batch, now time.Time) error {
	if len(ids) == 0 {
		return nil
	}
	// The block has identities only. The plan has what is needed to read the frames.
	p, err := f.Records.Plan(ctx, block.Name.Hour, f.Shard, block.Name.Generation)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil // plans outlive their hours by far: this one is too old to be made again
	}
	if record.Unreadable(err) {
		f.Damaged(err)
		return f.addAccepted(ctx, ids, h, now)
	}
	if err != nil {
		return err
	}
	for _, e := range p.Inputs {
		if slices.Contains(ids, e.Identity) {
			f.Backlog.AddInput(e, h, now)
		}
	}
	return nil
}

// addAccepted makes published batches of another hour inputs of h when the plan that has
// their entries can't be read.
func (f *Finder) addAccepted(ctx context.Context, ids []identity.Batch, h timegrid.Hour, now time.Time) error {
	for _, id := range ids {
		e, err := f.manifest(ctx, id)
		if errors.Is(err, objstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		f.Backlog.AddInput(e, h, now)
	}
	return nil
}

// findAccepted does what findBeside does, by the identity manifests: it lists those of each
// boot once. pending is in the order of identities.
func (f *Finder) findAccepted(ctx context.Context, pending []accepted.Batch, beside, h timegrid.Hour, now time.Time) error {
	for i := 0; i < len(pending); {
		boot, end := pending[i].Identity.BootOf(), pending[i].SeqEnd
		j := i
		for ; j < len(pending) && pending[j].Identity.BootOf() == boot; j++ {
			end = max(end, pending[j].SeqEnd)
		}
		if err := f.findAcceptedOf(ctx, boot, pending[i:j], end, beside, h, now); err != nil {
			return err
		}
		i = j
	}
	return nil
}

// findAcceptedOf goes through the manifests of one boot; end is the highest number of pending.
func (f *Finder) findAcceptedOf(ctx context.Context, boot identity.Boot, pending []accepted.Batch, end uint64, beside, h timegrid.Hour, now time.Time) error {
	prefix := layout.AcceptedBoot(boot)
	// A batch that begins earlier overlaps only if it has that many records, and no batch has
	// more than the limit of a frame. So the listing can begin that far below.
	from := pending[0].SeqStart - min(pending[0].SeqStart, uint64(frame.DefaultLimits().Records))
	for i, err := range objstore.List(ctx, f.Manifests, objstore.ListOptions{Prefix: prefix, StartAfter: prefix + layout.SeqName(from, 0)}) {
		if err != nil {
			return fmt.Errorf("list %q: %w", prefix, err)
		}
		id, err := layout.ParseAccepted(i.Key)
		if err != nil {
			continue // a foreign key, or one of a boot whose name begins with this one's
		}
		if id.SeqStart > end {
			return nil
		}
		with := overlapping(pending, id)
		if len(with) == 0 || slices.ContainsFunc(pending, func(e accepted.Batch) bool { return e.Identity == id }) {
			continue
		}
		e, err := f.manifest(ctx, id)
		if err != nil {
			return err
		}
		if first, last := e.Hours(); beside < first || beside > last {
			continue
		}
		f.Backlog.AddInput(e, h, now)
		for _, one := range with {
			f.Backlog.AddHour(one, beside, now)
		}
	}
	return nil
}

// manifest reads what the identity manifest says of a batch.
func (f *Finder) manifest(ctx context.Context, id identity.Batch) (accepted.Batch, error) {
	key := layout.Accepted(id)
	b, _, err := f.Manifests.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxRecordBytes})
	if err != nil {
		return accepted.Batch{}, fmt.Errorf("read %q: %w", key, err)
	}
	m, err := accept.ParseManifest(b)
	if err != nil {
		return accepted.Batch{}, fmt.Errorf("read %q: %w", key, err)
	}
	return m.Batch(), nil
}

// overlapping are those of the batches that share numbers with id, but id.
func overlapping(of []accepted.Batch, id identity.Batch) (out []identity.Batch) {
	for _, e := range of {
		if e.Identity != id && e.Identity.Intersects(id) {
			out = append(out, e.Identity)
		}
	}
	return out
}

// InBlock gives the inputs of a block that share record numbers with id, but id itself.
func InBlock(in catalog.Inputs, id identity.Batch) (out []identity.Batch) {
	for _, b := range in.Boots() {
		if b.Agent != id.Agent || b.Boot != id.Boot {
			continue
		}
		for _, r := range b.Runs {
			// A run is batches of equal length, one behind the other, so the first one that can
			// overlap is computed: an hour has thousands, of which one or two overlap.
			first := uint64(0)
			if id.SeqStart > r.Start {
				first = (id.SeqStart - r.Start) / r.Records
			}
			for k := first; k < r.Batches; k++ {
				at := r.Start + k*r.Records
				o := identity.Batch{Agent: id.Agent, Boot: id.Boot, SeqStart: at, SeqEnd: at + (r.Records - 1)}
				if at > id.SeqEnd {
					break
				}
				if o != id && o.Intersects(id) {
					out = append(out, o)
				}
			}
		}
	}
	return out
}
