// Package publish makes a set of objects visible all at once or not at all: two-phase
// publication, and the collection of what a publication leaves behind.
// docs/protocol/publish.md has the order of requests and the argument for it.
//
// The manifest's key decides a generation, for commit and for abort alike: one
// conditional create. No clock takes part in a decision.
//
// The core is a deterministic state machine over a store, a metadata store of reference
// sets, a queue and a clock: no goroutines, no time of its own.
package publish

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/record"
)

// Decisions that callers branch on.
var (
	// ErrAborted: this generation can never be committed. Plan the next one.
	ErrAborted = errors.New("generation is aborted")
	// ErrConflict: this generation is committed by another plan, or was and is removed.
	ErrConflict = errors.New("generation is committed by another transaction")
	// ErrFenced: an earlier generation was published under a higher fence: the caller is
	// not the owner any more.
	ErrFenced = errors.New("fenced by a later owner")
	// ErrGap: the generation before this one is not decided yet, or Supersedes is not the
	// highest committed one.
	ErrGap = errors.New("generations are published in order")
	// ErrNoPlan: the plan is not there, or is another.
	ErrNoPlan = errors.New("the plan is not in the store")
	// ErrUndecided: the outcome of the commit is not known. Publish again; never guess.
	ErrUndecided = errors.New("outcome of the commit is unknown")
	// ErrInvalid: the publication does not agree with itself.
	ErrInvalid = errors.New("invalid publication")
)

// Store is what publication and collection need of an object store.
type Store interface {
	objstore.Reader
	objstore.Creator
	Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error)
	Delete(ctx context.Context, key string) error
}

// Clock stamps records and waits between attempts. Nothing that it says decides.
type Clock interface {
	Now() time.Time
	// Sleep returns early with the context's error.
	Sleep(ctx context.Context, d time.Duration) error
}

// Config of a Publisher and of a Collector. All but Policy and Events are required.
type Config struct {
	Store       Store
	Refs        Refs
	Queue       Queue
	Clock       Clock
	AuthorityID string
	// WorkerID names this process in records.
	WorkerID string
	Policy   Policy
	Events   Events
}

// Policy has every age and bound. Ages select and never prove: any value is safe.
type Policy struct {
	// Attempts at one request before its error is final.
	Attempts int
	// Backoff before the second attempt, doubled per attempt.
	Backoff time.Duration
	// RequestTimeout of one request.
	RequestTimeout time.Duration
	// Generations of one object that are tried when earlier ones are condemned or corrupt.
	Generations int
	// Delay before what a failed publication created is looked at.
	Delay time.Duration
	// Grace before a superseded set is removed, so that queries that began with it can end.
	Grace time.Duration
	// AbortAfter is how long keys are on the queue before an undecided transaction that
	// refers to them is aborted.
	AbortAfter time.Duration
}

// DefaultPolicy for production.
func DefaultPolicy() Policy {
	return Policy{
		Attempts: 4, Backoff: 50 * time.Millisecond, RequestTimeout: 10 * time.Second, Generations: 8,
		Delay: 5 * time.Minute, Grace: 15 * time.Minute, AbortAfter: time.Hour,
	}
}

// Validate refuses what could not work.
func (p Policy) Validate() error {
	if p.Attempts < 1 || p.Generations < 1 || p.Backoff < 0 || p.RequestTimeout <= 0 || p.Delay < 0 || p.Grace < 0 || p.AbortAfter < 0 {
		return fmt.Errorf("publish: policy %+v", p)
	}
	return nil
}

// core is what publisher and collector share.
type core struct{ cfg Config }

func newCore(c Config) (core, error) {
	if c.Store == nil || c.Refs == nil || c.Queue == nil || c.Clock == nil {
		return core{}, errors.New("publish: store, reference sets, queue and clock are needed")
	}
	for _, s := range []string{c.AuthorityID, c.WorkerID} {
		if s == "" || len(s) > catalog.MaxNameBytes || !utf8.ValidString(s) {
			return core{}, fmt.Errorf("publish: authority and worker ids are 1 to %d bytes of UTF-8, not %.128q", catalog.MaxNameBytes, s)
		}
	}
	if c.Policy == (Policy{}) {
		c.Policy = DefaultPolicy()
	}
	return core{c}, c.Policy.Validate()
}

// attempt calls f until it is final: no error, or one that final accepts. The last error
// comes back after the bound, or when a try can't help.
func (c *core) attempt(ctx context.Context, step Step, key string, f func(context.Context) error, final func(error) bool) error {
	wait := c.cfg.Policy.Backoff
	for try := 1; ; try++ {
		err := c.once(ctx, f)
		if err == nil || final(err) {
			return err
		}
		if ctx.Err() != nil || try >= c.cfg.Policy.Attempts || hopeless(err) {
			return fmt.Errorf("%s: %w", step, err)
		}
		c.cfg.Events.again(step, key, err)
		if e := c.cfg.Clock.Sleep(ctx, wait); e != nil {
			return fmt.Errorf("%s: %w (%w)", step, e, err)
		}
		wait *= 2
	}
}

func (c *core) once(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Policy.RequestTimeout)
	defer cancel()
	return f(ctx)
}

// hopeless errors are those that a repeat can't mend.
func hopeless(err error) bool {
	for _, e := range []error{objstore.ErrDenied, objstore.ErrNoBucket, objstore.ErrInvalid, record.ErrCorrupt, record.ErrNewerVersion, ErrRefsInvalid, ErrRefsLost, ErrRefsFull} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func notFound(err error) bool { return errors.Is(err, objstore.ErrNotFound) }

func exists(err error) bool { return errors.Is(err, objstore.ErrExists) }

// record reads what decides a generation; nil when nothing does yet.
func (c *core) record(ctx context.Context, key string) (*catalog.Record, objstore.Info, error) {
	var r catalog.Record
	var info objstore.Info
	err := c.attempt(ctx, StepRecord, key, func(ctx context.Context) (err error) {
		r, info, err = catalog.Read(ctx, c.cfg.Store, c.cfg.AuthorityID, key)
		return
	}, notFound)
	switch {
	case notFound(err):
		return nil, info, nil
	case err != nil:
		return nil, info, err
	}
	return &r, info, nil
}

func (c *core) createRecord(ctx context.Context, key string, r catalog.Record) error {
	body := r.Marshal()
	return c.attempt(ctx, StepRecord, key, func(ctx context.Context) error {
		_, err := c.cfg.Store.Create(ctx, key, body, objstore.PutOptions{ContentType: "application/json"})
		return err
	}, exists)
}

// push puts keys on the queue, in as many items as they need. What can't be pushed is
// found by a sweep.
func (c *core) push(ctx context.Context, reason string, keys []string, since int64, wait time.Duration) error {
	now := max(c.cfg.Clock.Now().UnixMilli(), 0)
	if since == 0 {
		since = now
	}
	for len(keys) > 0 {
		n := min(len(keys), MaxItemKeys)
		i := Item{Keys: keys[:n], Reason: reason, Since: since, Due: now + wait.Milliseconds()}
		keys = keys[n:]
		if err := c.attempt(ctx, StepQueue, i.Key(), func(ctx context.Context) error { return c.cfg.Queue.Push(ctx, i) }, never); err != nil {
			return err
		}
	}
	return nil
}

func never(error) bool { return false }
