// Package build makes everything that one generation of an hour publishes: raw series from
// frames, or from the former generation and the frames that are new; their rows at every
// resolution; and the chunks of them. What it makes is a function of the plan, to the byte.
package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
)

// Config of a Builder.
type Config struct {
	Store       objstore.Reader
	Frames      *frames.Reader
	Metrics     *metrics.Metrics
	Log         *slog.Logger
	AuthorityID string
	// Memory in bytes that a part of an hour may take.
	Memory int64
	// Dir is where chunks of an hour in parts wait; "" is the system's directory of temporary files.
	Dir string
	// Learn takes every frame that is decoded, before anything is made of it.
	Learn func(accepted.Batch, *frame.Batch)
	// MetricRows from which on a metric has chunks of its own, MaxRows of a chunk, about.
	MetricRows, MaxRows int
	// MayUnroll are the resolutions whose rows are made only where they are smaller than the samples.
	MayUnroll []timegrid.Resolution
}

// Builder builds hours. It has no state and is safe for concurrent use.
type Builder struct{ cfg Config }

// New makes a builder.
func New(c Config) *Builder { return &Builder{c} }

// Result is what a generation publishes.
type Result struct {
	Counts  rollup.Counts
	Outputs map[timegrid.Resolution][]publish.Output
	// Unrolled are the resolutions that have no outputs because readers are to take the samples.
	Unrolled map[timegrid.Resolution]bool
	// Cost is the estimate of the memory that what was made of frames took; 0 where nothing was.
	Cost int64
	kept *spill // of Outputs; nil when they are in memory
}

// Close frees outputs that are not in memory.
func (r *Result) Close() error { return r.kept.close() }

// errNotExtendable: the former generation does not help, so all frames are to be read.
var errNotExtendable = errors.New("not extendable")

// undecidedError is errNotExtendable because of some of the new inputs: which of their records count, or which old ones
// no longer do, only frames say.
type undecidedError struct{ fresh []accepted.Batch }

func (e *undecidedError) Error() string {
	return fmt.Sprintf("%v with %d inputs", errNotExtendable, len(e.fresh))
}
func (e *undecidedError) Unwrap() error { return errNotExtendable }

// NeedsFrameError says that the frame of a published input can't be read, and that new ones can't be rolled up without
// it: they win sequence numbers from inputs whose rows are published, or have records of the same series and time.
type NeedsFrameError struct {
	Fresh []accepted.Batch
	Frame *frames.UnreadableError
}

func (e *NeedsFrameError) Error() string {
	return fmt.Sprintf("%d batches wait for a published one, first %s: %v", len(e.Fresh), e.Fresh[0].Identity, e.Frame)
}

// Unwrap gives the frame's error.
func (e *NeedsFrameError) Unwrap() error { return e.Frame }

// Build makes the chunks of the resolutions, from the plan's frames or from the former
// generation (nil for none) and what is new; step is called after each part. It gives nothing
// of a plan whose records are not conserved. Where a part takes more than Memory the error
// wraps rollup.ErrTooLarge. The caller closes the result.
//
// The frame of what the former generation has may be gone: then the new inputs are added to its rows. The error is a
// *NeedsFrameError where that can't be.
func (b *Builder) Build(ctx context.Context, p *hour.Plan, before *catalog.Block, resolutions []timegrid.Resolution, step func() error) (*Result, error) {
	out, err := b.build(ctx, p, before, resolutions, step, false)
	var gone *frames.UnreadableError
	if before == nil || !errors.As(err, &gone) || !before.Inputs.Covers(gone.Entry.Identity) {
		return out, err
	}
	out, xerr := b.build(ctx, p, before, resolutions, step, true)
	var undecided *undecidedError
	switch {
	case errors.As(xerr, &undecided):
		return nil, &NeedsFrameError{undecided.fresh, gone}
	case errors.Is(xerr, errNotExtendable):
		return nil, err
	}
	return out, xerr
}

// build is Build; with only, it reads no frames of what the former generation has, and fails with errNotExtendable.
func (b *Builder) build(ctx context.Context, p *hour.Plan, before *catalog.Block, resolutions []timegrid.Resolution, step func() error, only bool) (out *Result, err error) {
	r := &Result{Outputs: map[timegrid.Resolution][]publish.Output{}}
	if p.Parts > 1 {
		if r.kept, err = newSpill(b.cfg.Dir); err != nil {
			return nil, err
		}
	}
	defer func() {
		if out != r || err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	enc := newEncoder(b.cfg.MetricRows, b.cfg.MaxRows, r.kept)
	defer enc.free()
	for i := range p.Parts {
		part := rollup.Part{Index: i, Of: p.Parts}
		raw, counts, err := b.extend(ctx, p, before, part, only)
		if errors.Is(err, errNotExtendable) && only {
			return nil, err
		}
		if errors.Is(err, errNotExtendable) && i > 0 && before != nil {
			// The parts before this one were made of the former generation, whose counts are of all
			// parts and can't be divided. So all parts are made again, of frames.
			return b.build(ctx, p, nil, resolutions, step, false)
		}
		if errors.Is(err, errNotExtendable) {
			before = nil
			var cost int64
			raw, counts, cost, err = b.fromFrames(ctx, p.Hour, p.Order(), nil, p.Inputs, part)
			r.Cost += cost
		}
		if err != nil {
			return nil, err
		}
		r.Counts.Add(counts)
		// The first part decides for all, since a block has rows or has none.
		if r.Unrolled == nil {
			if r.Unrolled, err = unrolled(raw, b.cfg.MayUnroll); err != nil {
				return nil, err
			}
		}
		if err := b.encode(ctx, enc, raw, resolutions, r); err != nil {
			return nil, err
		}
		if err := step(); err != nil {
			return nil, err
		}
	}
	if before != nil {
		b.cfg.Metrics.Extended.Inc()
	}
	// Each part conserves its own records. That no part is missing shows only in the sum.
	if r.Counts.Inputs != p.Records() {
		return nil, &rollup.ConservationError{Counts: r.Counts}
	}
	return r, r.Counts.Conserved()
}

// encode makes the chunks of a part at the resolutions and adds them to the outputs of r.
func (b *Builder) encode(ctx context.Context, enc *encoder, raw []chunk.Series, resolutions []timegrid.Resolution, r *Result) error {
	var finer []chunk.Series
	for _, res := range timegrid.Resolutions() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !slices.Contains(resolutions, res) || r.Unrolled[res] {
			finer = nil
			continue
		}
		rows := raw
		if res != timegrid.Raw {
			rows = roll(raw, finer, res)
			finer = rows
		}
		outs, err := enc.encode(rows)
		if err != nil {
			return fmt.Errorf("encode %s: %w", res, err)
		}
		r.Outputs[res] = append(r.Outputs[res], outs...)
	}
	return nil
}

// roll rolls the raw series up to res; finer may have their rows at the next finer resolution.
func roll(raw, finer []chunk.Series, res timegrid.Resolution) []chunk.Series {
	roller := rollup.NewRoller(res)
	out := make([]chunk.Series, len(raw))
	for i := range raw {
		if finer == nil {
			roller.RollInto(&out[i], &raw[i], nil)
		} else {
			roller.RollInto(&out[i], &raw[i], &finer[i])
		}
	}
	return out
}

// fromFrames makes the raw series of a part from the frames of inputs, which lose the numbers to others than these; cost
// is about the memory that they took.
func (b *Builder) fromFrames(ctx context.Context, h timegrid.Hour, order []accepted.Claim, lost [][]ledger.Range, inputs []accepted.Batch, part rollup.Part) (series []chunk.Series, counts rollup.Counts, cost int64, err error) {
	rb := rollup.NewBuilder(h, order, part)
	for i, numbers := range lost {
		rb.Lose(i, numbers)
	}
	rb.Limit(b.cfg.Memory)
	// Of what only takes part in deciding overlaps the frame is not needed. It may be gone, and the numbers count
	// once all the same.
	var here []accepted.Batch
	var at []int
	for i, e := range inputs {
		if e.In(h) {
			here, at = append(here, e), append(at, i)
		} else if err := rb.AddElsewhere(i); err != nil {
			return nil, rollup.Counts{}, 0, err
		}
	}
	if err := b.decode(ctx, here, func(i int, f *frame.Batch) error { return rb.Add(at[i], f) }); err != nil {
		return nil, rollup.Counts{}, 0, err
	}
	cost = rb.Bytes()
	series, counts, err = rb.Finish()
	return series, counts, cost, err
}

// extend makes a part of the plan's raw series of the former raw generation and the frames that
// are new: what reading all frames gives, to the bit. errNotExtendable where that can't be, or, unless there is no
// other way, where it is no cheaper.
func (b *Builder) extend(ctx context.Context, p *hour.Plan, before *catalog.Block, part rollup.Part, only bool) ([]chunk.Series, rollup.Counts, error) {
	none := rollup.Counts{}
	if before == nil || before.Name.Generation >= p.Generation {
		return nil, none, errNotExtendable
	}
	var fresh []accepted.Batch
	var freshIn, oldIn []accepted.Claim
	for i, in := range p.Order() {
		if before.Inputs.Covers(in.Identity) {
			oldIn = append(oldIn, in)
		} else {
			fresh, freshIn = append(fresh, p.Inputs[i]), append(freshIn, in)
		}
	}
	// The plan must have all that the former generation had. And where much is new, reading all
	// frames costs little more than reading the former generation's chunks as well.
	if uint64(len(oldIn)) != before.Inputs.Batches() || !only && 2*len(fresh) > len(oldIn) {
		return nil, none, errNotExtendable
	}
	lost, ok := rollup.Losses(oldIn, freshIn)
	if !ok && !only {
		return nil, none, errNotExtendable
	}
	if !ok {
		e := &undecidedError{}
		for _, i := range rollup.Winners(oldIn, freshIn) {
			e.fresh = append(e.fresh, fresh[i])
		}
		return nil, none, e
	}
	more, counts, cost, err := b.fromFrames(ctx, p.Hour, freshIn, lost, fresh, part)
	if err != nil {
		return nil, none, err
	}
	old, err := b.rowsOf(ctx, before, part, cost)
	if err != nil && ctx.Err() == nil && !errors.Is(err, rollup.ErrTooLarge) {
		b.cfg.Log.Info("the former generation can't be read; all frames are", "set", before.Name.Key(), "error", err)
		return nil, none, errNotExtendable
	}
	if err != nil {
		return nil, none, err
	}
	raw, both := rollup.Extend(old, more)
	if both != nil && only {
		old = slices.DeleteFunc(old, func(s chunk.Series) bool { return s.Agent != both.Agent })
		return nil, none, b.findRepeating(ctx, p.Hour, both.Agent, old, fresh, lost, part)
	}
	if both != nil {
		return nil, none, errNotExtendable
	}
	if part.Index > 0 {
		return raw, counts, nil // the former generation's counts are of all parts, and count once
	}
	c := before.Counts
	counts.Add(rollup.Counts{Inputs: c.Records, Published: c.Published, OtherHours: c.OtherHours, Overlapped: c.Overlapped, Duplicates: c.Duplicates})
	return raw, counts, nil
}

// findRepeating gives the *undecidedError of the fresh inputs of an agent that repeat records of its old series.
func (b *Builder) findRepeating(ctx context.Context, h timegrid.Hour, agent string, old []chunk.Series, fresh []accepted.Batch, lost [][]ledger.Range, part rollup.Part) error {
	e := &undecidedError{}
	for i, f := range fresh {
		if f.Agent != agent || !f.In(h) {
			continue
		}
		ss, _, _, err := b.fromFrames(ctx, h, []accepted.Claim{f.Claim()}, lost[i:i+1], fresh[i:i+1], part)
		if err != nil {
			return err
		}
		if _, both := rollup.Extend(old, ss); both != nil {
			e.fresh = append(e.fresh, f)
		}
	}
	if len(e.fresh) == 0 {
		return errNotExtendable
	}
	return e
}

// rowsOf reads the raw series of a block that are in the part, in the order of rollup.Builder.
// cost is taken already of Memory: *rollup.TooLargeError where it does not suffice.
func (b *Builder) rowsOf(ctx context.Context, of *catalog.Block, part rollup.Part, cost int64) ([]chunk.Series, error) {
	if of.Redirect != nil {
		// Its rows were merged with those of other hours and shards.
		out, err := compact.Series(ctx, b.cfg.Store, b.cfg.AuthorityID, of)
		out = slices.DeleteFunc(out, func(one chunk.Series) bool { return !part.Holds(&one) })
		rollup.SortSeries(out)
		return out, err
	}
	var out []chunk.Series
	fetch := block.From(b.cfg.Store)
	for i := range of.Objects {
		o := &of.Objects[i]
		body, err := fetch.Chunk(ctx, o)
		if err != nil {
			return nil, err
		}
		x, err := fetch.Index(ctx, o, chunk.Limits{})
		if err != nil {
			return nil, err
		}
		d := chunk.NewDecoder(x, chunk.Limits{})
		d.Put(0, body)
		for i := range x.Len() {
			ref := x.Series(i)
			one := chunk.Series{ID: ref.ID}
			if !part.Holds(&one) {
				continue
			}
			if _, err := d.Series(i, ref.MinT, ref.MaxT, chunk.AllColumns, &one.Columns); err != nil {
				return nil, fmt.Errorf("read %q: %w", o.ChunkKey, err)
			}
			out = append(out, one)
			if cost += rollup.Cost(1, uint64(one.Rows()), rollup.KeyBytes(&one)); cost > b.cfg.Memory {
				return nil, &rollup.TooLargeError{Limit: b.cfg.Memory, Parts: part.Of}
			}
		}
	}
	rollup.SortSeries(out)
	return out, nil
}

// maxNamed bounds the agents that a survey tells apart: those with the longest frames. All
// others are one without a name.
const maxNamed = 256

// Survey reads the frames of a plan and keeps nothing of them but sizes, so that it needs little
// memory whatever the hour would need.
func (b *Builder) Survey(ctx context.Context, p *hour.Plan) ([]rollup.Size, error) {
	bytes := map[string]uint64{}
	for _, e := range p.Inputs {
		bytes[e.Agent] += e.FrameBytes
	}
	agents := make([]string, 0, len(bytes))
	for a := range bytes {
		agents = append(agents, a)
	}
	slices.SortFunc(agents, func(x, y string) int { return cmp.Or(cmp.Compare(bytes[y], bytes[x]), cmp.Compare(x, y)) })
	sv := rollup.NewSurvey(p.Hour, agents[:min(len(agents), maxNamed)])
	here := slices.DeleteFunc(slices.Clone(p.Inputs), func(e accepted.Batch) bool { return !e.In(p.Hour) })
	err := b.decode(ctx, here, func(_ int, f *frame.Batch) error {
		sv.Add(f)
		return nil
	})
	return sv.Sizes(), err
}

// decode reads the frames of entries, hands each to fn, and counts their bytes.
func (b *Builder) decode(ctx context.Context, entries []accepted.Batch, fn func(int, *frame.Batch) error) error {
	dec := b.cfg.Frames.Decoder()
	return b.cfg.Frames.Each(ctx, entries, func(i int, raw []byte) error {
		b.cfg.Metrics.FrameBytes.Add(float64(len(raw)))
		f, err := dec.Decode(raw)
		if err != nil {
			return &frames.UnreadableError{Entry: entries[i], Err: err}
		}
		b.cfg.Learn(entries[i], f)
		return fn(i, f)
	})
}
