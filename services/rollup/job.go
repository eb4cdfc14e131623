package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// outcome of a job, for its metric.
type outcome string

const (
	completed outcome = "completed" // every resolution of the generation is decided
	failed    outcome = "failed"    // it is tried again later
	canceled  outcome = "canceled"  // the grant is over, or the service stops
)

// do makes one generation of an hour, when there is room for a job. No row of pending work
// stands for it: the grant keeps others away most of the time, and where two workers make
// the same generation its plan and its manifests, which are created conditionally, decide.
func (s *Service) do(ctx context.Context, o *owner, h timegrid.Hour, gen uint64) error {
	if err := s.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.slots.Release(1)
	start := s.now()
	err := job{o, h, gen}.run(ctx)
	what := completed
	switch {
	case err == nil:
	case ctx.Err() != nil || o.grant.lost() != nil:
		what = canceled
	default:
		what = failed
	}
	s.m.jobs.WithLabelValues(string(what)).Inc()
	s.m.jobTime.Observe(s.now().Sub(start).Seconds())
	return err
}

// job makes one generation of an hour of an owned shard.
type job struct {
	o   *owner
	h   timegrid.Hour
	gen uint64
}

// run makes the generation and publishes it resolution by resolution. What a former job has
// decided of it stays: the manifests say what is left to do.
func (h job) run(ctx context.Context) error {
	s, id, gen := h.o.s, h.o.grant.Shard, h.gen
	ord, err := h.o.orderOf(ctx, h.h)
	if err != nil {
		return err
	}
	pub, err := s.publishedBut(ctx, h.h, id, ord.damaged())
	if err != nil {
		return err
	}
	var open []timegrid.Resolution
	for _, res := range timegrid.Resolutions() {
		if pub.top[res] < gen {
			open = append(open, res)
		}
	}
	if len(open) == 0 {
		return nil // decided by whoever had the job before
	}
	in, _, err := h.o.readable(ctx, h.h)
	if err != nil {
		return err
	}
	if err := s.ordered(ctx, ord, pub, gen); err != nil {
		return err
	}
	p, err := s.plan(ctx, h.h, id, gen, pub, in, h.o.perRecord)
	if err != nil {
		if record.Unreadable(err) {
			s.m.damage(err)
		}
		return err
	}
	if ord == nil && p.found {
		// An order stands before its plan does: this may be the plan of one that came since.
		if ord, err = h.o.orderOf(ctx, h.h); err != nil {
			return err
		}
	}
	failpoint.Hit("rollup.job.planned.after")
	died, err := h.begin(ctx, p)
	if err != nil {
		return err
	}
	defer h.end(ctx)
	if died {
		return h.failed(ctx, p, pub, open, errDied)
	}
	m, err := s.makeOrdered(ctx, ord, p, pub.sets[timegrid.Raw], open, h.o.grant.lost)
	if err != nil {
		return h.failed(ctx, p, pub, open, err)
	}
	defer func() {
		if err := m.close(); err != nil {
			s.log.Warn("chunks of an hour in parts", "error", err)
		}
	}()
	if m.cost > 0 {
		h.o.perRecord = float64(m.cost) / float64(max(p.Records(), 1))
	}
	inputs, err := p.InputSet()
	if err != nil {
		return err
	}
	for _, res := range open {
		if err := h.publish(ctx, p, pub, m, inputs, res); err != nil {
			return err
		}
		failpoint.Hit("rollup.job.published.after")
	}
	return nil
}

// publish commits one resolution, or finds it decided.
func (h job) publish(ctx context.Context, p *planned, pub *published, m *made, inputs catalog.Inputs, res timegrid.Resolution) error {
	s := h.o.s
	if err := h.o.grant.lost(); err != nil {
		s.m.refused.WithLabelValues("lost").Inc()
		return err // the manifest's key would refuse it as well
	}
	c := m.counts
	done, err := s.publisher.Publish(ctx, publish.Publication{
		Name:   catalog.Name{Hour: p.Hour, Shard: p.Shard, Resolution: res, Generation: p.Generation},
		Shards: p.Shards, Fence: h.o.grant.Fence, PlanSHA256: p.sha, Inputs: inputs,
		Counts:  catalog.Counts{Records: c.Inputs, Published: c.Published, OtherHours: c.OtherHours, Overlapped: c.Overlapped, Duplicates: c.Duplicates},
		Outputs: m.outputs[res], Supersedes: pub.before(res, p.Generation),
		Verify: h.o.orders[h.h] != nil, Damaged: pub.damaged,
	})
	log := s.log.With("shard", p.Shard, "hour", p.Hour, "resolution", res, "generation", p.Generation)
	switch {
	case err == nil && done.Created:
		s.m.generation(res, p.Generation, done.Block)
		log.Info("published", "samples", done.Block.Counts.Samples, "objects", len(done.Block.Objects), "fence", done.Block.Fence)
	case err == nil:
		s.m.refused.WithLabelValues("exists").Inc()
		log.Info("was published by another with the same plan", "worker", done.Block.WorkerID)
	case errors.Is(err, publish.ErrAborted), errors.Is(err, publish.ErrConflict):
		// Decided against this worker: the next generation has the inputs.
		s.m.refused.WithLabelValues(string(refusal(err))).Inc()
		log.Warn("publication refused", "error", err)
	default:
		s.m.refused.WithLabelValues(string(refusal(err))).Inc()
		return err
	}
	return nil
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

// failed looks at why a plan could not be made. An input whose frame can't be read would
// hold its hour back for ever: the generation is aborted, and the next is planned without
// the batch, which stays pending. Not so when a block has the batch: then the
// next generation would lose records, and the hour waits until the frame is back.
func (h job) failed(ctx context.Context, p *planned, pub *published, open []timegrid.Resolution, err error) error {
	s := h.o.s
	var conservation *rollup.ConservationError
	if errors.As(err, &conservation) {
		s.m.conservation.Inc()
		s.log.Error("records are not conserved; nothing is published", "shard", p.Shard, "hour", p.Hour, "generation", p.Generation, "error", err)
		return err
	}
	var bad *UnreadableError
	if errors.Is(err, rollup.ErrTooLarge) || errors.Is(err, errDied) {
		rerr := h.resize(ctx, p, pub, open, err)
		if !errors.As(rerr, &bad) {
			return rerr // nil: the generation is decided, and the next is due at once
		}
		err = rerr // the survey met a frame that can't be read
	}
	if !errors.As(err, &bad) {
		return err
	}
	s.m.unreadable.Inc()
	block := pub.newest()
	covered := func(e accepted.Batch) bool { return block != nil && block.Inputs.Covers(e.Identity) }
	if pub.committed(p.Generation, open) || covered(bad.Entry) {
		return err
	}
	if h.o.orders[h.h] != nil {
		if block == nil {
			return err // only the order's plan may know the inputs
		}
		if _, perr := s.readPlan(ctx, p.Hour, p.Shard, block.Name.Generation); perr != nil {
			return errors.Join(err, perr)
		}
	}
	all, derr := s.damaged(ctx, slices.DeleteFunc(slices.Clone(p.Inputs), covered))
	if derr != nil {
		return errors.Join(err, derr)
	}
	s.m.unreadable.Add(float64(max(len(all)-1, 0)))
	s.log.Error("batches are left out until their frames are back", "batches", len(all), "first", bad.Entry.Identity, "shard", p.Shard, "hour", p.Hour, "error", bad.Err)
	for _, res := range slices.Backward(open) {
		n := catalog.Name{Hour: p.Hour, Shard: p.Shard, Resolution: res, Generation: p.Generation}
		if _, aerr := s.publisher.Abort(ctx, n, "frame can not be read"); aerr != nil {
			return errors.Join(err, aerr)
		}
	}
	for _, one := range all {
		h.o.leaveOut(one.Entry.Identity)
	}
	return fmt.Errorf("generation %d is aborted: %w", p.Generation, err)
}
