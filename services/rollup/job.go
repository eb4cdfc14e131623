package rollup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/intake"
	"lightmetrics.dev/lightmetrics/pkg/publish"
	"lightmetrics.dev/lightmetrics/pkg/rollup"
	"lightmetrics.dev/lightmetrics/pkg/window"
	"lightmetrics.dev/lightmetrics/pkg/work"
)

// do does one generation of an hour, when there is room for a job.
func (s *Service) do(ctx context.Context, o *owner, h window.Hour, gen uint64) (work.Outcome, error) {
	if err := s.slots.Acquire(ctx, 1); err != nil {
		return work.HandedOver, err
	}
	defer s.slots.Release(1)
	w, err := work.NewWorker(s.queue, s.table, handler{o, h}, work.Config{
		Topic: rollup.Topic(o.grant.Shard), Owner: fmt.Sprintf("%s.%d", s.run, s.jobs.Add(1)), Hold: s.cfg.Jobs.Hold,
		MaxAttempts: math.MaxUint32, // the loop has its own waits, and what is due stays due
	}, s.now)
	if err != nil {
		return work.Failed, err
	}
	start := s.now()
	k := work.Key{Log: rollup.Log(o.grant.Shard, h), Number: gen}
	outcome, err := w.Do(ctx, k, o.grant.Fence, []byte(k.String()))
	s.m.jobs.WithLabelValues(string(outcome)).Inc()
	s.m.jobTime.Observe(s.now().Sub(start).Seconds())
	return outcome, err
}

// jobState is the checkpoint: what is decided. It is for people; a worker that resumes
// looks at the manifests.
type jobState struct {
	Parts   uint32   `json:"parts_read"`
	Windows []string `json:"windows"`
}

// handler does the jobs of one owned shard. Jobs are not brought by messages: the shard's
// loop finds them.
type handler struct {
	o *owner
	h window.Hour // of the job in work
}

// Job is not asked: messages are hints to the loop.
func (handler) Job(context.Context, work.Message) (work.Key, uint64, error) {
	return work.Key{}, 0, work.ErrSkip
}

// Run makes the generation and publishes it window by window.
func (h handler) Run(ctx context.Context, j *work.Job) error {
	s, id, gen := h.o.s, h.o.grant.Shard, j.Key().Number
	ord, err := h.o.orderOf(ctx, h.h)
	if err != nil {
		return err
	}
	pub, err := s.publishedBut(ctx, h.h, id, ord.damaged())
	if err != nil {
		return err
	}
	var open []window.Window
	state := jobState{Windows: []string{}}
	for _, w := range window.All() {
		if pub.top[w] < gen {
			open = append(open, w)
		} else {
			state.Windows = append(state.Windows, w.String())
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
		if unreadablePlan(err) {
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
	checkpoint := func() error {
		b, err := json.Marshal(state)
		if err != nil {
			return err
		}
		return j.Checkpoint(ctx, b)
	}
	step := func() error { state.Parts++; return checkpoint() }
	died, err := h.begin(ctx, p)
	if err != nil {
		return err
	}
	defer h.end(ctx)
	if died {
		return h.failed(ctx, p, pub, open, errDied)
	}
	m, err := s.makeOrdered(ctx, ord, p, pub.sets[window.Raw], open, step)
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
	for _, w := range open {
		if err := h.publish(ctx, j, p, pub, m, inputs, w); err != nil {
			return err
		}
		failpoint.Hit("rollup.job.published.after")
		state.Windows = append(state.Windows, w.String())
		if err := checkpoint(); err != nil {
			return err
		}
	}
	return nil
}

// publish commits one window, or finds it decided.
func (h handler) publish(ctx context.Context, j *work.Job, p *planned, pub *published, m *made, inputs catalog.Inputs, w window.Window) error {
	s := h.o.s
	if err := h.o.grant.lost(); err != nil {
		s.m.refused.WithLabelValues("lost").Inc()
		return err // the manifest's key would refuse it as well
	}
	c := m.counts
	res, err := s.publisher.Publish(ctx, publish.Publication{
		Name:   catalog.Name{Hour: p.Hour, Shard: p.Shard, Window: w, Generation: p.Generation},
		Shards: p.Shards, Fence: j.Fence(), PlanSHA256: p.sha, Inputs: inputs,
		Counts:  catalog.Counts{Records: c.Inputs, Published: c.Published, OtherHours: c.OtherHours, Overlapped: c.Overlapped, Duplicates: c.Duplicates},
		Outputs: m.outputs[w], Supersedes: pub.before(w, p.Generation),
		Verify: h.o.orders[h.h] != nil, Damaged: pub.damaged,
	})
	log := s.log.With("shard", p.Shard, "hour", p.Hour, "window", w, "generation", p.Generation)
	switch {
	case err == nil && res.Created:
		s.m.generation(w, p.Generation, res.Set)
		log.Info("published", "samples", res.Set.Counts.Samples, "objects", len(res.Set.Objects), "fence", res.Set.Fence)
	case err == nil:
		s.m.refused.WithLabelValues("exists").Inc()
		log.Info("was published by another with the same plan", "worker", res.Set.WorkerID)
	case errors.Is(err, publish.ErrAborted), errors.Is(err, publish.ErrConflict):
		// Decided against this worker: the next generation has the inputs.
		s.m.refused.WithLabelValues(string(refusal(err))).Inc()
		log.Warn("publication refused", "err", err)
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
// the batch, which stays pending. Not so when a published set has the batch: then the
// next generation would lose records, and the hour waits until the frame is back.
func (h handler) failed(ctx context.Context, p *planned, pub *published, open []window.Window, err error) error {
	s := h.o.s
	var conservation *rollup.ConservationError
	if errors.As(err, &conservation) {
		s.m.conservation.Inc()
		s.log.Error("records are not conserved; nothing is published", "shard", p.Shard, "hour", p.Hour, "generation", p.Generation, "err", err)
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
	set := pub.newest()
	covered := func(e intake.Entry) bool { return set != nil && set.Inputs.Covers(e.Identity()) }
	if pub.committed(p.Generation, open) || covered(bad.Entry) {
		return err
	}
	if h.o.orders[h.h] != nil {
		if set == nil {
			return err // only the order's plan may know the inputs
		}
		if _, perr := s.readPlan(ctx, p.Hour, p.Shard, set.Name.Generation); perr != nil {
			return errors.Join(err, perr)
		}
	}
	all, derr := s.damaged(ctx, slices.DeleteFunc(slices.Clone(p.Inputs), covered))
	if derr != nil {
		return errors.Join(err, derr)
	}
	s.m.unreadable.Add(float64(max(len(all)-1, 0)))
	s.log.Error("batches are left out until their frames are back", "batches", len(all), "first", bad.Entry.Identity(), "shard", p.Shard, "hour", p.Hour, "err", bad.Err)
	for _, w := range slices.Backward(open) {
		n := catalog.Name{Hour: p.Hour, Shard: p.Shard, Window: w, Generation: p.Generation}
		if _, aerr := s.publisher.Abort(ctx, n, "frame can not be read"); aerr != nil {
			return errors.Join(err, aerr)
		}
	}
	for _, one := range all {
		h.o.leaveOut(one.Entry.Identity())
	}
	return fmt.Errorf("generation %d is aborted: %w", p.Generation, err)
}
