package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// ErrBreaker says that the plan is suspiciously large, and that nothing was done.
var ErrBreaker = errors.New("the plan is larger than the breaker allows")

// ErrFenced says that another collection, or an operator, has moved the state of garbage collection on: this one must not condemn any more.
var ErrFenced = errors.New("the plan is fenced: another collection has begun")

// ExecuteOptions of one execution.
type ExecuteOptions struct {
	// DryRun searches for references and writes nothing.
	DryRun bool
	// Force executes a plan that tripped the breaker: an operator has checked it.
	Force bool
	// Step is how many candidates are condemned together, then logged, then proved and deleted; 0 means 1. Larger steps cost
	// fewer calls of Fence and Log, and change nothing else.
	Step int
	// Fence is called before the markers of each step; an error ends the execution. May be nil.
	Fence func(context.Context) error
	// Wait is called while runs of the journal have not come to the epoch that names what is condemned, with how many, and how often it was
	// called for this step before; an error ends the execution. Nil ends it at once, with ErrAwaited.
	Wait func(ctx context.Context, left, looks int) error
	// Log is called with the entries of each half of a step; an error ends the execution before the
	// next write. The entries Condemned come before their deletes. May be nil.
	Log func(context.Context, []Entry) error
}

// Action of a log entry. Values are stable.
type Action string

// Actions.
const (
	Condemned     Action = "CONDEMNED"      // the marker is confirmed
	Deleted       Action = "DELETED"        // the generation is gone
	DeleteUnknown Action = "DELETE_UNKNOWN" // it may be gone, now or later; its marker stays
	KeptBlob      Action = "KEPT"
)

// Entry is one line of the append-only log.
type Entry struct {
	At     int64 // Unix nanoseconds, by the collector's clock
	PlanID string
	Key    string
	Action Action
	Reason Reason // of KEPT
	Detail string
	Bytes  int64 // of the blob
}

// Report of an execution: its entries in order, and their counts.
type Report struct {
	Entries                []Entry
	Deleted, Unknown, Kept int
	// Condemned are markers that are confirmed, Bytes those of the blobs that were deleted, and Doubtful the kept blobs that an operator must check.
	Condemned, Doubtful int
	Bytes               int64
}

// Execute condemns, proves and deletes the plan's candidates, step by step.
// A blob that can't be decided is kept and reported; that is no error. Errors:
// ErrBreaker, the context's, and those of the fence and the log, each with the report so far.
func (c *Collector) Execute(ctx context.Context, p Plan, o ExecuteOptions) (Report, error) {
	x := execution{c: c, plan: p.ID, o: o}
	if err := validName("plan id", p.ID); err != nil {
		return x.Report, err
	}
	// So many orphans at once are more likely a wrong listing, a wrong prefix or a restored bucket
	// than garbage.
	if p.Tripped() && !o.Force && !o.DryRun {
		return x.Report, fmt.Errorf("gc plan %s: %w: %d of %d blobs", p.ID, ErrBreaker, len(p.Candidates), p.Listed)
	}
	for part := range slices.Chunk(p.Candidates, max(o.Step, 1)) {
		if err := x.collect(ctx, part); err != nil {
			return x.Report, fmt.Errorf("gc plan %s: %q: %w", p.ID, part[0].Key, err)
		}
		if err := ctx.Err(); err != nil {
			return x.Report, fmt.Errorf("gc plan %s: %w", p.ID, err)
		}
	}
	return x.Report, nil
}

// Search looks for references to the plan's candidates, and keeps those that it finds any of. It is the first search of
// Execute, which leaves it out then: for plans whose candidates nobody has compared with the journal, before the breaker counts them.
// fence is called before each step of blobs, an error of it ends the search; it may be nil.
func (c *Collector) Search(ctx context.Context, p *Plan, step int, fence func(context.Context) error) error {
	var left []Candidate
	for part := range slices.Chunk(p.Candidates, max(step, 1)) {
		if fence != nil {
			if err := fence(ctx); err != nil {
				return planError(p.ID, err)
			}
		}
		for _, k := range part {
			if kept := c.search(ctx, &k); kept != nil {
				p.Kept = append(p.Kept, *kept)
				continue
			}
			left = append(left, k)
		}
	}
	p.Candidates = left
	return ctx.Err()
}

// search reads the identity and looks for references, before there is a marker. It proves nothing.
func (c *Collector) search(ctx context.Context, k *Candidate) *Kept {
	id, kept := c.readIdentity(ctx, k)
	if kept == nil {
		kept = c.prove(ctx, k, id)
	}
	k.id, k.searched = id, kept == nil
	return kept
}

type execution struct {
	Report
	c      *Collector
	plan   string
	o      ExecuteOptions
	logged int // of Entries
}

// collect does one step.
func (x *execution) collect(ctx context.Context, part []Candidate) error {
	var orphans []Candidate
	for _, k := range part {
		// A first search, before the marker, keeps the permanent markers few. It proves nothing.
		var kept *Kept
		if !k.searched {
			kept = x.c.search(ctx, &k)
		}
		if kept == nil && x.o.DryRun {
			kept = keep(k, DryRun, "")
		}
		if kept != nil {
			x.note(k, KeptBlob, kept.Reason, kept.Detail)
			continue
		}
		orphans = append(orphans, k)
	}
	// The fence saves work and keeps the log in order. It is no part of the proof: two executions at once are harmless.
	if len(orphans) > 0 && x.o.Fence != nil {
		if err := x.o.Fence(ctx); err != nil {
			return err
		}
	}
	condemned := orphans[:0]
	for _, k := range orphans {
		// Without a marker that is known to be there, an acceptance could rely on the blob after the
		// proof; so it stays.
		if err := x.c.condemn(ctx, k, x.plan); err != nil {
			x.note(k, KeptBlob, MarkerUnknown, err.Error())
			continue
		}
		x.note(k, Condemned, "", "")
		condemned = append(condemned, k)
	}
	if err := x.flush(ctx); err != nil {
		return err
	}
	if err := x.announce(ctx, condemned); err != nil {
		return err
	}
	for _, k := range condemned {
		x.settle(ctx, k)
	}
	return x.flush(ctx)
}

// announce has collectors that read no markers come to know what is condemned. After an error nothing of the step is deleted.
func (x *execution) announce(ctx context.Context, condemned []Candidate) error {
	if len(condemned) == 0 {
		return nil
	}
	err := x.c.announce(ctx, condemned, x.o.Wait)
	if err == nil {
		return nil
	}
	for _, k := range condemned {
		x.note(k, KeptBlob, EpochAwaited, err.Error())
	}
	if lerr := x.flush(ctx); lerr != nil {
		return lerr
	}
	return err
}

// settle proves and deletes a generation that is condemned.
func (x *execution) settle(ctx context.Context, k Candidate) {
	// The proof comes after the marker: an acceptance whose reference this search misses
	// creates it later, reads the marker after that, and so does not rely on this blob.
	if kept := x.c.prove(ctx, &k, k.id); kept != nil {
		x.note(k, KeptBlob, kept.Reason, kept.Detail)
		return
	}
	// A delete without an answer may still be applied later. The marker stays, so nobody relies
	// on the blob until then.
	if err := x.c.remove(ctx, k); err != nil {
		x.note(k, DeleteUnknown, "", err.Error())
		return
	}
	x.note(k, Deleted, "", "")
}

// condemn returns nil once the generation's permanent marker is in place.
func (c *Collector) condemn(ctx context.Context, k Candidate, plan string) error {
	m := accept.CondemnedMarker{
		FrameSHA256: k.SHA256, Generation: k.Generation,
		CondemnedAt: max(c.cfg.Clock.Now().UnixNano(), 0), PlanID: plan,
	}
	body := m.Marshal()
	_, err := c.cfg.Store.Create(ctx, m.Key(), body, objstore.PutOptions{ContentType: "application/json"})
	if errors.Is(err, objstore.ErrExists) { // created by us, with a lost answer, or by another collector: either condemns
		return c.confirm(ctx, m.Key())
	}
	return err
}

// confirm reads a marker that a store said exists. It is for stores that answer so without one, as where another create was under
// way and came to nothing, or a proxy answers again what it was answered before. The marker's content does not count.
func (c *Collector) confirm(ctx context.Context, key string) error {
	if _, err := c.read(ctx, key); err != nil && !objstore.Unreadable(err) {
		return fmt.Errorf("the store said that the marker exists: %w", err)
	}
	return nil
}

// remove deletes the generation, on a versioned bucket the very version whose header was read: its bytes are gone then, and a
// delete that is applied late can reach nothing else.
func (c *Collector) remove(ctx context.Context, k Candidate) error {
	return objstore.DeleteVersion(ctx, c.cfg.Store, k.Key, k.version)
}

// note makes an entry of the log, which flush writes.
func (x *execution) note(k Candidate, a Action, r Reason, detail string) {
	x.Entries = append(x.Entries, Entry{At: x.c.cfg.Clock.Now().UnixNano(), PlanID: x.plan, Key: k.Key, Action: a, Reason: r, Detail: detail, Bytes: k.Size})
	switch a {
	case Condemned:
		x.Condemned++
	case Deleted:
		x.Deleted, x.Bytes = x.Deleted+1, x.Bytes+k.Size
	case DeleteUnknown:
		x.Unknown++
	case KeptBlob:
		x.Kept++
		if r.Doubtful() {
			x.Doubtful++
		}
	}
}

// flush gives the log what it does not have yet.
func (x *execution) flush(ctx context.Context) error {
	entries := x.Entries[x.logged:]
	x.logged = len(x.Entries)
	if x.o.Log == nil || len(entries) == 0 {
		return nil
	}
	if err := x.o.Log(ctx, entries); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return nil
}
