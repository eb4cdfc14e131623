package rollup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// A plan says in how many parts its hour is built, before anybody knows how many series
// there are. Where a part passes jobs.memory, or killed its worker, the generation is given
// up and the next has the same inputs in more parts. Where more than jobs.max_parts were
// needed, large agents are set aside.

// errDied: the last worker that made this generation did not live to say how it ended.
var errDied = errors.New("the worker that made it was killed")

const (
	// spare is how much more a resized hour gets than the survey says, in quarters: estimates
	// are off by some percent, and so are the sizes of parts.
	spareQuarters = 5
	// Parts of a generation that did not fit are at least so many times as many, and of one
	// that killed its worker.
	moreParts  = 2
	manyParts  = 4
	maxNamed   = 256 // agents that a survey tells apart: those with the longest frames
	diedReason = "its worker was killed"
)

// resize gives the generation up and fixes the plan of the next one. An error says that it
// could not, and the job is tried again.
func (h job) resize(ctx context.Context, p *planned, pub *published, open []timegrid.Resolution, cause error) error {
	s, o := h.o.s, h.o
	sizes, err := s.survey(ctx, p)
	if err != nil {
		return errors.Join(cause, err)
	}
	s.m.resized.Inc()
	total := int64(0)
	for _, z := range sizes {
		total += z.Bytes
	}
	o.perRecord = float64(total) / float64(max(p.Records(), 1))
	least := p.Parts * moreParts
	if errors.Is(cause, errDied) {
		least = p.Parts * manyParts
	}
	parts := max(s.partsOf(total), least)
	inputs := p.Inputs
	if parts > s.cfg.Jobs.MaxParts {
		var out []rollup.Size
		if o.orders[h.h] == nil { // an order's plan is all that knows what damaged sets had
			out, total = s.choose(sizes, total, p, pub, errors.Is(cause, errDied))
		}
		for _, z := range out {
			a := catalog.Aside{AuthorityID: s.cfg.AuthorityID, Shard: p.Shard, Hour: p.Hour, Agent: z.Agent, Series: z.Series, Records: z.Records, Bytes: z.Bytes,
				Limit: s.limitOfHour(), Reason: "too large", By: s.cfg.ID, At: s.now().UnixNano()}
			if errors.Is(cause, errDied) {
				a.Reason = diedReason
			}
			if err := o.setAside(ctx, a); err != nil {
				return errors.Join(cause, err)
			}
		}
		if len(out) > 0 {
			parts = max(s.partsOf(total), 1)
			inputs = slices.DeleteFunc(slices.Clone(inputs), func(e accepted.Batch) bool {
				return o.isAside(p.Hour, e.Agent) && !isCovered(pub, e)
			})
		}
		parts = min(parts, rollup.MaxParts)
		if len(out) == 0 && parts == p.Parts {
			return cause // no plan has more parts
		}
	}
	s.log.Warn("an hour does not fit into memory; its next generation has more parts", "shard", p.Shard, "hour", p.Hour, "generation", p.Generation,
		"parts", p.Parts, "next", parts, "bytes", total, "inputs", len(inputs), "error", cause)
	if len(inputs) > 0 {
		if err := s.planNext(ctx, p, inputs, parts); err != nil {
			return errors.Join(cause, err)
		}
	}
	for _, res := range slices.Backward(open) {
		n := catalog.Name{Hour: p.Hour, Shard: p.Shard, Resolution: res, Generation: p.Generation}
		if _, err := s.publisher.Abort(ctx, n, "does not fit into memory"); err != nil {
			return errors.Join(cause, err)
		}
	}
	return nil
}

// partsOf is how many parts a cost needs.
func (s *Service) partsOf(cost int64) uint32 {
	n := (cost/4*spareQuarters + int64(s.cfg.Jobs.Memory) - 1) / int64(s.cfg.Jobs.Memory)
	return uint32(min(max(n, 1), rollup.MaxParts))
}

// largeShare of what an hour may take makes an agent large. Hours that do not fit for many
// small ones are built in more parts than jobs.max_parts: nobody is to blame.
const largeShare = 8

// choose gives the agents to set aside, the largest first, until the others fit. What a
// block has of them can't be: the next generation would lose it. Where the worker was
// killed, estimates are of no help, and the largest one goes.
func (s *Service) choose(sizes []rollup.Size, total int64, p *planned, pub *published, died bool) ([]rollup.Size, int64) {
	all, open := map[string]uint64{}, map[string]uint64{}
	for _, e := range p.Inputs {
		all[e.Agent] += e.FrameBytes
		if !isCovered(pub, e) {
			open[e.Agent] += e.FrameBytes
		}
	}
	var out []rollup.Size
	for _, z := range sizes {
		if z.Agent == "" || open[z.Agent] == 0 {
			continue
		}
		fits := s.partsOf(total) <= s.cfg.Jobs.MaxParts
		mine := int64(float64(z.Bytes) * float64(open[z.Agent]) / float64(all[z.Agent]))
		if len(out) == 0 && died || !fits && mine >= s.limitOfHour()/largeShare {
			out = append(out, z)
			total -= mine
		}
	}
	return out, total
}

// isCovered reports whether the highest published generation has the batch as an input.
func isCovered(pub *published, e accepted.Batch) bool {
	block := pub.newest()
	return block != nil && block.Inputs.Covers(e.Identity)
}

// planNext fixes the plan of the generation after p. One that is there counts.
func (s *Service) planNext(ctx context.Context, p *planned, inputs []accepted.Batch, parts uint32) error {
	next := &rollup.Plan{AuthorityID: p.AuthorityID, Shard: p.Shard, Shards: p.Shards, Hour: p.Hour, Generation: p.Generation + 1, Parts: parts, Inputs: inputs}
	body, err := next.Marshal()
	if err != nil {
		return err
	}
	if _, err := s.store.Create(ctx, next.Key(), body, objstore.PutOptions{ContentType: "application/json"}); err != nil && !errors.Is(err, objstore.ErrExists) {
		return fmt.Errorf("create plan: %w", err)
	}
	return nil
}

// survey reads the frames of a plan, and keeps nothing of them but sizes.
func (s *Service) survey(ctx context.Context, p *planned) ([]rollup.Size, error) {
	bytes := map[string]uint64{}
	for _, e := range p.Inputs {
		bytes[e.Agent] += e.FrameBytes
	}
	agents := make([]string, 0, len(bytes))
	for a := range bytes {
		agents = append(agents, a)
	}
	slices.SortFunc(agents, func(a, b string) int { return cmp.Or(cmp.Compare(bytes[b], bytes[a]), cmp.Compare(a, b)) })
	sv := rollup.NewSurvey(p.Hour, agents[:min(len(agents), maxNamed)])
	dec := s.decoder()
	err := s.frames.each(ctx, p.Inputs, func(i int, raw []byte) error {
		s.m.frameBytes.Add(float64(len(raw)))
		f, err := dec.decode(raw)
		if err != nil {
			return &UnreadableError{p.Inputs[i], err}
		}
		sv.Add(f)
		return nil
	})
	return sv.Sizes(), err
}

// attemptBytes of frames, and more, are worth a note of who makes an hour of them.
const attemptBytes = 1 << 20

// begin notes that this process makes the generation. died: another one began it and did
// not live to say how that ended.
func (h job) begin(ctx context.Context, p *planned) (died bool, err error) {
	s := h.o.s
	var n uint64
	for i := range p.Inputs {
		n += p.Inputs[i].FrameBytes
	}
	if n < attemptBytes {
		return false, nil
	}
	key := layout.RollupAttempt(p.Hour, p.Shard)
	b, _, err := s.store.Get(ctx, key, objstore.GetOptions{Limit: int64(catalog.AttemptKind.MaxBytes)})
	if err == nil {
		var was catalog.Attempt
		was, err = catalog.ParseAttempt(key, b)
		died = err == nil && was.AuthorityID == p.AuthorityID && was.Generation == p.Generation && was.By != s.run
	}
	if err != nil && !errors.Is(err, objstore.ErrNotFound) && !record.Unreadable(err) {
		return false, fmt.Errorf("read %q: %w", key, err)
	}
	if died {
		s.m.died.Inc()
	}
	a := catalog.Attempt{AuthorityID: p.AuthorityID, Shard: p.Shard, Hour: p.Hour, Generation: p.Generation, By: s.run, At: s.now().UnixNano()}
	if _, err := s.store.Put(ctx, key, a.Marshal(), objstore.PutOptions{ContentType: "application/json"}); err != nil {
		return false, fmt.Errorf("put %q: %w", key, err)
	}
	h.o.attempts[key] = struct{}{}
	return died, nil
}

// end takes the note back, also when the job was stopped. Where that fails, the next try of
// this process does; another process takes it for a death, which costs parts and no more.
func (h job) end(ctx context.Context) {
	key := layout.RollupAttempt(h.h, h.o.grant.Shard)
	if _, ok := h.o.attempts[key]; !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := h.o.s.store.Delete(ctx, key); err != nil {
		h.o.s.log.Warn("the note of a job that ended can't be deleted", "key", key, "error", err)
		return
	}
	delete(h.o.attempts, key)
}
