// Package job makes one generation of a shard's hour: it fixes the plan, builds what the plan
// says, and publishes that resolution by resolution. A job may die at any point: whoever has
// the shard next finds plan and manifests, and continues.
package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/build"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metadata"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/requests"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/sizing"
)

// Builder makes what a plan's generation publishes.
type Builder interface {
	Build(ctx context.Context, p *hour.Plan, before *catalog.Block, resolutions []timegrid.Resolution, step func() error) (*build.Result, error)
	Survey(ctx context.Context, p *hour.Plan) ([]rollup.Size, error)
}

// Config of the jobs of one worker.
type Config struct {
	Store     objstore.Store
	Records   hour.Records
	Builder   Builder
	Frames    *frames.Reader
	Helps     *metadata.Helps
	Publisher *publish.Publisher
	Metrics   *metrics.Metrics
	Log       *slog.Logger
	Now       func() time.Time
	Limits    sizing.Limits
	// Slots bounds what takes the memory of a job, compactions included.
	Slots    *semaphore.Weighted
	WorkerID string
	// Process is a random name of this process.
	Process string
}

// Jobs makes generations. It is safe for concurrent use, for different shards.
type Jobs struct {
	Config
	planner  Planner
	attempts attempts
	resizer  resizer
}

// New makes the jobs of one worker.
func New(c Config) *Jobs {
	return &Jobs{
		Config:   c,
		planner:  Planner{Records: c.Records, Limits: c.Limits},
		attempts: attempts{store: c.Store, log: c.Log, process: c.Process, now: c.Now},
		resizer: resizer{limits: c.Limits, records: c.Records, surveyor: c.Builder, publisher: c.Publisher, metrics: c.Metrics, log: c.Log,
			workerID: c.WorkerID, now: c.Now},
	}
}

// outcome of a job, for its metric.
type outcome string

const (
	completed outcome = "completed" // every resolution of the generation is decided
	failed    outcome = "failed"    // it is tried again later
	canceled  outcome = "canceled"  // the grant is over, or the service stops
)

// Make makes one generation of an hour, when there is room for a job. There is no row of
// pending work for it: the grant keeps others away most of the time, and where two workers make the
// same generation its plan and its manifests, which are created conditionally, decide. after is what is published of the
// hour now, nil where this job does not know.
func (j *Jobs) Make(ctx context.Context, s *Shard, h timegrid.Hour, gen uint64) (after *hour.State, err error) {
	if err := j.Slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer j.Slots.Release(1)
	start := j.Now()
	after, err = j.make(ctx, s, h, gen)
	what := completed
	switch {
	case err == nil:
	case ctx.Err() != nil || s.Lost() != nil:
		what = canceled
	default:
		what = failed
	}
	j.Metrics.Jobs.WithLabelValues(string(what)).Inc()
	j.Metrics.JobTime.Observe(j.Now().Sub(start).Seconds())
	return after, err
}

// generation is one that is being made.
type generation struct {
	shard   *Shard
	state   *hour.State
	open    []timegrid.Resolution // that are not decided
	request *requests.Request     // nil: none
	plan    *hour.Plan
	// committed are the blocks of open resolutions, as they are in the store.
	committed []*catalog.Block
}

// make makes the generation. What a former job has decided of it stays: the manifests say what
// is left to do.
func (j *Jobs) make(ctx context.Context, s *Shard, h timegrid.Hour, gen uint64) (after *hour.State, err error) {
	g, err := j.begin(ctx, s, h, gen)
	if err != nil {
		return nil, err
	}
	if len(g.open) == 0 {
		return nil, nil // decided by whoever had the job before
	}
	failpoint.Hit("rollup.job.planned.after")
	// The note is written before the frames are read, because reading them is what may kill a worker.
	died, err := j.attempts.begin(ctx, s, g.plan)
	if err != nil {
		return nil, err
	}
	defer j.attempts.end(ctx, s, h)
	if died {
		j.Metrics.Died.Inc()
		return nil, j.failed(ctx, g, ErrDied)
	}
	made, err := j.build(ctx, g)
	if err != nil {
		return nil, j.failed(ctx, g, err)
	}
	defer func() {
		if err := made.Close(); err != nil {
			j.Log.Warn("chunks of an hour in parts", "error", err)
		}
	}()
	if made.Cost > 0 {
		s.PerRecord = float64(made.Cost) / float64(max(g.plan.Records(), 1))
	}
	inputs, err := g.plan.InputSet()
	if err != nil {
		return nil, err
	}
	// Once there are blocks, query nodes that start don't read the frames.
	if err := j.Helps.Save(ctx); err != nil {
		return nil, err
	}
	if err := j.publish(ctx, g, made, inputs); err != nil {
		return nil, err
	}
	if len(g.committed) < len(g.open) {
		return nil, nil // somebody else has decided a resolution
	}
	return g.state.With(g.committed), nil
}

// begin finds out what is left to do of the generation, and fixes its plan.
func (j *Jobs) begin(ctx context.Context, s *Shard, h timegrid.Hour, gen uint64) (*generation, error) {
	g := &generation{shard: s}
	var err error
	if g.request, err = s.Requests.Of(ctx, h); err != nil {
		return nil, err
	}
	if g.state, err = j.Records.State(ctx, h, s.Shard, g.request.PassOver()); err != nil {
		return nil, err
	}
	if g.open = g.state.Undecided(gen); len(g.open) == 0 {
		return g, nil
	}
	// The inputs are asked for again, though the owner has just done so: the job may have waited for
	// its slot, and a frame that was lost since then would cost a generation.
	in, _, err := s.Inputs(ctx, h, j.Now())
	if err != nil {
		return nil, err
	}
	if err := g.request.CheckPlan(ctx, j.Records, g.state, gen); err != nil {
		return nil, err
	}
	if g.plan, err = j.planner.Plan(ctx, h, s.Shard, gen, g.state, in, s.readThrough(g.state), s.PerRecord); err != nil {
		if record.Unreadable(err) {
			j.Metrics.Damage(err)
		}
		return nil, err
	}
	if g.request == nil && g.plan.Found {
		// Who makes a repair request creates the request first and then its plan. So a plan that
		// is found may be that of a request which came after it was asked for above.
		if g.request, err = s.Requests.Of(ctx, h); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// build makes what the generation publishes. A requested one is made of all its frames, so that
// nothing of former generations is taken over.
func (j *Jobs) build(ctx context.Context, g *generation) (*build.Result, error) {
	if err := j.checkElsewhere(ctx, g); err != nil {
		return nil, err
	}
	before, lost := g.state.Blocks[timegrid.Raw], g.shard.Lost
	if g.request == nil {
		return j.Builder.Build(ctx, g.plan, before, g.open, lost)
	}
	made, err := j.Builder.Build(ctx, g.plan, nil, g.open, lost)
	var bad *frames.UnreadableError
	if errors.As(err, &bad) && before != nil {
		// A frame that is gone for good need not be the end of the hour: the rows of the former
		// raw block are as good, if they can be read and have the hashes that its manifest says.
		j.Log.Warn("a frame can't be read; the rows of the former raw block are tried", "shard", g.plan.Shard, "hour", g.plan.Hour,
			"identity", bad.Entry.Identity, "set", before.Name.Key())
		return j.Builder.Build(ctx, g.plan, before, g.open, lost)
	}
	return made, err
}

// checkElsewhere checks the frames of inputs from which new ones win sequence numbers and whose samples lie in other
// hours. Where such a frame is gone, the blocks of its hours keep the numbers, so they must not count here as well.
func (j *Jobs) checkElsewhere(ctx context.Context, g *generation) error {
	h := g.plan.Hour
	var elsewhere []accepted.Batch
	for _, e := range g.plan.Inputs {
		if !e.In(h) {
			elsewhere = append(elsewhere, e)
		}
	}
	for _, o := range elsewhere {
		var winning []accepted.Batch
		for _, e := range g.plan.Inputs {
			if e.In(h) && e.Identity.Intersects(o.Identity) && e.Claim().Wins(o.Claim()) && !g.state.Holds(e) {
				winning = append(winning, e)
			}
		}
		if len(winning) == 0 {
			continue
		}
		err := j.Frames.Check(ctx, o)
		var gone *frames.UnreadableError
		if !errors.As(err, &gone) {
			if err != nil {
				return err
			}
			continue
		}
		first, last := o.Hours()
		for _, of := range slices.Compact([]timegrid.Hour{first, last}) {
			st, err := j.Records.State(ctx, of, g.plan.Shard, nil)
			if err != nil {
				return err
			}
			// A block that has both was made when there was the frame.
			if winning := slices.DeleteFunc(slices.Clone(winning), st.Holds); st.Holds(o) && len(winning) > 0 {
				return &build.NeedsFrameError{Fresh: winning, Frame: gone}
			}
		}
	}
	return nil
}

// publish commits the open resolutions, or finds them decided.
func (j *Jobs) publish(ctx context.Context, g *generation, made *build.Result, inputs catalog.Inputs) error {
	if err := j.checkGrant(g); err != nil {
		return err
	}
	p, c := g.plan, made.Counts
	var pubs []publish.Publication
	for _, res := range g.open {
		pubs = append(pubs, publish.Publication{
			Name:   catalog.Name{Hour: p.Hour, Shard: p.Shard, Resolution: res, Generation: p.Generation},
			Shards: p.Shards, Fence: g.shard.Fence, PlanSHA256: p.SHA256, Inputs: inputs,
			Counts:  catalog.Counts{Records: c.Inputs, Published: c.Published, OtherHours: c.OtherHours, Overlapped: c.Overlapped, Duplicates: c.Duplicates},
			Outputs: made.Outputs[res], Unrolled: made.Unrolled[res], Supersedes: g.state.Before(res, p.Generation), Listed: true,
			Verify: g.shard.Requests.Pending(p.Hour), Damaged: g.state.Damaged, Journal: p.Journal,
		})
	}
	left := len(pubs)
	err := j.Publisher.PublishAll(ctx, pubs, func(i int, done publish.Result, err error) error {
		j.decided(g, g.open[i], done, err)
		if err == nil {
			g.committed = append(g.committed, done.Block)
		}
		failpoint.Hit("rollup.job.published.after")
		if left--; left == 0 {
			return nil
		}
		return j.checkGrant(g)
	})
	if err != nil && g.shard.Lost() == nil {
		j.Metrics.Refused.WithLabelValues(string(refusal(err))).Inc()
	}
	return err
}

// checkGrant refuses what the manifest's key would refuse as well; it only saves the work.
func (j *Jobs) checkGrant(g *generation) error {
	err := g.shard.Lost()
	if err != nil {
		j.Metrics.Refused.WithLabelValues("lost").Inc()
	}
	return err
}

// decided notes what became of one resolution. One that is decided against this worker is no failure: the next
// generation has the inputs.
func (j *Jobs) decided(g *generation, res timegrid.Resolution, done publish.Result, err error) {
	p := g.plan
	log := j.Log.With("shard", p.Shard, "hour", p.Hour, "resolution", res, "generation", p.Generation)
	switch {
	case err != nil:
		j.Metrics.Refused.WithLabelValues(string(refusal(err))).Inc()
		log.Warn("publication refused", "error", err)
	case done.Created:
		j.Metrics.Publish(done.Block)
		log.Info("published", "samples", done.Block.Counts.Samples, "objects", len(done.Block.Objects), "fence", done.Block.Fence)
	default:
		j.Metrics.Refused.WithLabelValues("exists").Inc()
		log.Info("was published by another with the same plan", "worker", done.Block.WorkerID)
	}
}

func refusal(err error) publish.Outcome {
	switch {
	case errors.Is(err, publish.ErrConflict):
		return publish.OutcomeConflict
	case errors.Is(err, publish.ErrAborted):
		return publish.OutcomeAborted
	case errors.Is(err, publish.ErrFenced):
		return publish.OutcomeFenced
	case errors.Is(err, publish.ErrUndecided):
		return publish.OutcomeUndecided
	}
	return publish.OutcomeFailed
}

// failed decides what follows from a generation that could not be built. nil: the generation is
// decided, and the next one is due at once.
func (j *Jobs) failed(ctx context.Context, g *generation, err error) error {
	p := g.plan
	var conservation *rollup.ConservationError
	if errors.As(err, &conservation) {
		j.Metrics.Unconserved.Inc()
		j.Log.Error("records are not conserved; nothing is published", "shard", p.Shard, "hour", p.Hour, "generation", p.Generation, "error", err)
		return err
	}
	var bad *frames.UnreadableError
	if errors.Is(err, rollup.ErrTooLarge) || errors.Is(err, ErrDied) {
		// The survey reads all frames, and may meet one that can't be read.
		if err = j.resizer.resize(ctx, g.shard, p, g.state, g.open, err); !errors.As(err, &bad) {
			return err
		}
	}
	if !errors.As(err, &bad) {
		return err
	}
	if !errors.Is(bad, frames.ErrRemoved) {
		j.Metrics.Unreadable.Inc()
	}
	return j.leaveOut(ctx, g, bad, err)
}

// leaveOut aborts a generation one of whose frames can't be read. Such a batch would hold its
// hour back for ever; instead the next generation is planned without it, and it stays pending.
// It always gives an error, because this generation was not made.
func (j *Jobs) leaveOut(ctx context.Context, g *generation, bad *frames.UnreadableError, err error) error {
	p, s := g.plan, g.shard
	var needing *build.NeedsFrameError
	needs := errors.As(err, &needing) && !slices.ContainsFunc(needing.Fresh, g.state.Holds)
	// What a block holds must not be left out: the next generation would lose records. What can't be added without
	// its frame is left out in its place, or else the hour waits until the frame is back.
	if g.state.MayBeCommitted(p.Generation, g.open) || g.state.Holds(bad.Entry) && !needs {
		return err
	}
	if s.Requests.Pending(p.Hour) {
		newest := g.state.Newest()
		if newest == nil {
			return err // it may be that only the request's plan knows the inputs
		}
		if _, perr := j.Records.Plan(ctx, p.Hour, p.Shard, newest.Name.Generation); perr != nil {
			return errors.Join(err, perr)
		}
	}
	if needs {
		j.Log.Error("batches are left out until the frame of a published one is back", "batches", len(needing.Fresh), "first", needing.Fresh[0].Identity,
			"published", bad.Entry.Identity, "shard", p.Shard, "hour", p.Hour, "error", bad.Err)
		if aerr := abort(ctx, j.Publisher, p, g.open, "frame of a published batch can not be read"); aerr != nil {
			return errors.Join(err, aerr)
		}
		for _, e := range needing.Fresh {
			s.Unreadable.AddNeeding(e.Identity, bad.Entry, j.Now())
		}
		return fmt.Errorf("generation %d is aborted: %w", p.Generation, err)
	}
	// All of them are found at once: an hour with hundreds costs one generation that is aborted,
	// and not one for each.
	all, ferr := j.Frames.FindUnreadable(ctx, slices.DeleteFunc(slices.Clone(p.Inputs), func(e accepted.Batch) bool { return g.state.Holds(e) || !e.In(p.Hour) }))
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	j.Metrics.Unreadable.Add(float64(max(len(all)-1, 0)))
	j.Log.Error("batches are left out until their frames are back", "batches", len(all), "first", bad.Entry.Identity, "shard", p.Shard, "hour", p.Hour, "error", bad.Err)
	if aerr := abort(ctx, j.Publisher, p, g.open, "frame can not be read"); aerr != nil {
		return errors.Join(err, aerr)
	}
	for _, one := range all {
		s.Unreadable.Add(one.Entry.Identity, j.Now())
	}
	return fmt.Errorf("generation %d is aborted: %w", p.Generation, err)
}
