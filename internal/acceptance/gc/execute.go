package gc

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// ErrBreaker says that the plan is suspiciously large, and that nothing was done.
var ErrBreaker = errors.New("the plan is larger than the breaker allows")

// ExecuteOptions of one execution.
type ExecuteOptions struct {
	// DryRun searches for references and writes nothing.
	DryRun bool
	// Force executes a plan that tripped the breaker: an operator has checked it.
	Force bool
	// Log is called with each entry as it is made; an error ends the execution before the
	// next write. The entry Condemned comes before its delete. May be nil.
	Log func(context.Context, Entry) error
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
}

// Report of an execution: its entries in order, and their counts.
type Report struct {
	Entries                []Entry
	Deleted, Unknown, Kept int
}

// Execute condemns, proves and deletes the plan's candidates one after the other.
// A blob that can't be decided is kept and reported; that is no error. Errors:
// ErrBreaker, the context's, and the log's, each with the report so far.
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
	for _, k := range p.Candidates {
		if err := x.collect(ctx, k); err != nil {
			return x.Report, fmt.Errorf("gc plan %s: %q: %w", p.ID, k.Key, err)
		}
		if err := ctx.Err(); err != nil {
			return x.Report, fmt.Errorf("gc plan %s: %w", p.ID, err)
		}
	}
	return x.Report, nil
}

type execution struct {
	Report
	c    *Collector
	plan string
	o    ExecuteOptions
}

func (x *execution) collect(ctx context.Context, k Candidate) error {
	id, kept := x.c.readIdentity(ctx, k)
	if kept == nil {
		// A first search, before the marker, keeps the permanent markers few. It proves nothing.
		kept = x.c.prove(ctx, k, id)
	}
	if kept == nil && x.o.DryRun {
		kept = keep(k, DryRun, "")
	}
	if kept != nil {
		return x.log(ctx, k, KeptBlob, kept.Reason, kept.Detail)
	}
	// Without a marker that is known to be there, an acceptance could rely on the blob after the
	// proof; so it stays.
	if err := x.c.condemn(ctx, k, x.plan); err != nil {
		return x.log(ctx, k, KeptBlob, MarkerUnknown, err.Error())
	}
	if err := x.log(ctx, k, Condemned, "", ""); err != nil {
		return err
	}
	// The proof comes after the marker: an acceptance whose reference this search misses
	// creates it later, reads the marker after that, and so does not rely on this blob.
	if kept := x.c.prove(ctx, k, id); kept != nil {
		return x.log(ctx, k, KeptBlob, kept.Reason, kept.Detail)
	}
	// A delete without an answer may still be applied later. The marker stays, so nobody relies
	// on the blob until then.
	if err := x.c.remove(ctx, k); err != nil {
		return x.log(ctx, k, DeleteUnknown, "", err.Error())
	}
	return x.log(ctx, k, Deleted, "", "")
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
		return nil
	}
	return err
}

func (c *Collector) remove(ctx context.Context, k Candidate) error {
	return c.cfg.Store.Delete(ctx, k.Key)
}

func (x *execution) log(ctx context.Context, k Candidate, a Action, r Reason, detail string) error {
	e := Entry{At: x.c.cfg.Clock.Now().UnixNano(), PlanID: x.plan, Key: k.Key, Action: a, Reason: r, Detail: detail}
	x.Entries = append(x.Entries, e)
	switch a {
	case Deleted:
		x.Deleted++
	case DeleteUnknown:
		x.Unknown++
	case KeptBlob:
		x.Kept++
	}
	if x.o.Log == nil {
		return nil
	}
	if err := x.o.Log(ctx, e); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return nil
}
