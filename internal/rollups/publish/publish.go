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

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

// Decisions for callers to branch on.
var (
	// ErrAborted: this generation can never be committed. Plan the next one.
	ErrAborted = errors.New("generation is aborted")
	// ErrConflict: this generation was committed by another plan, or by one whose block is removed.
	ErrConflict = errors.New("generation is committed by another transaction")
	// ErrFenced: an earlier generation was published under a higher fence, so the caller no longer owns the shard.
	ErrFenced = errors.New("fenced by a later owner")
	// ErrGap: the generation before this one is not decided yet, or Supersedes is not the
	// highest committed one.
	ErrGap = errors.New("generations are published in order")
	// ErrNoPlan: the plan is not in the store, or has other bytes.
	ErrNoPlan = errors.New("the plan is not in the store")
	// ErrUndecided: the outcome of the commit is not known. Publish again; never assume either.
	ErrUndecided = errors.New("outcome of the commit is unknown")
	// ErrInvalid: the publication does not agree with itself.
	ErrInvalid = errors.New("invalid publication")
)

// Store is what publication and collection need of an object store. Every request is made once: deadlines and
// further attempts are the business of objstore.WithPolicy.
type Store interface {
	objstore.Reader
	objstore.Creator
	objstore.Replacer
	objstore.Deleter
}

// Clock stamps records and waits between attempts. No decision depends on it.
type Clock = retry.Clock

// Config of a Publisher and of a Collector. All but Policy, Events and Each are required.
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
	// Each calls fn for 0 to n-1, possibly several at once, and returns the first error, after which it need not call it
	// again. nil is one after the other.
	Each func(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error
}

func (c *Config) each(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	if c.Each != nil {
		return c.Each(ctx, n, fn)
	}
	for i := range n {
		if err := fn(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// Policy has every age and bound. Ages select what to do next and prove nothing: any value is safe.
type Policy struct {
	// Refs bounds the attempts at one request to the metadata store.
	Refs retry.Policy
	// Generations of one object that are tried when earlier ones are condemned or corrupt, up to MaxGenerations.
	Generations int
	// Condemned is how many records of condemned objects there may be before the next era begins, so that they can be
	// forgotten; see Collector.Forget.
	Condemned int
	// Delay before the objects of a failed publication are checked.
	Delay time.Duration
	// Grace before a superseded block is removed, so that running queries that use it can finish.
	Grace time.Duration
	// AbortAfter is how long keys are on the queue before an undecided transaction that
	// refers to them is aborted.
	AbortAfter time.Duration
}

// DefaultPolicy for production.
func DefaultPolicy() Policy {
	return Policy{
		Refs: retry.Policy{Attempts: 4, Base: 50 * time.Millisecond, Cap: time.Second}, Generations: 8, Condemned: 10_000,
		Delay: 5 * time.Minute, Grace: 15 * time.Minute, AbortAfter: time.Hour,
	}
}

// Validate refuses values that could not work.
func (p Policy) Validate() error {
	if p.Generations < 1 || p.Generations > MaxGenerations || p.Delay < 0 || p.Grace < 0 || p.AbortAfter < 0 {
		return fmt.Errorf("publish: policy %+v", p)
	}
	if err := p.Refs.Validate(); err != nil {
		return fmt.Errorf("publish: reference sets: %w", err)
	}
	return nil
}

// core is what Publisher and Collector share.
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
	c.Refs = retryingRefs{c.Refs, retry.Retrier{Policy: c.Policy.Refs, Clock: c.Clock}}
	return core{c}, c.Policy.Validate()
}

var jsonContent = objstore.PutOptions{ContentType: "application/json"}

// record reads what decides a generation; nil when nothing has decided it yet.
func (c *core) record(ctx context.Context, key string) (*catalog.Record, objstore.Info, error) {
	r, info, err := c.read(ctx, key)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil, info, nil
	case err != nil:
		return nil, info, err
	}
	return &r, info, nil
}

func (c *core) read(ctx context.Context, key string) (catalog.Record, objstore.Info, error) {
	return catalog.Read(ctx, c.cfg.Store, c.cfg.AuthorityID, key)
}

func (c *core) createRecord(ctx context.Context, key string, r catalog.Record) error {
	_, err := c.cfg.Store.Create(ctx, key, r.Marshal(), jsonContent)
	return err
}

// push puts keys on the queue, in as many items as they need. Keys that can't be pushed are found by a sweep.
func (c *core) push(ctx context.Context, reason string, keys []string, since int64, wait time.Duration) error {
	now := max(c.cfg.Clock.Now().UnixMilli(), 0)
	if since == 0 {
		since = now
	}
	for len(keys) > 0 {
		n := min(len(keys), MaxItemKeys)
		i := Item{Keys: keys[:n], Reason: reason, Since: since, Due: now + wait.Milliseconds()}
		keys = keys[n:]
		if err := c.cfg.Queue.Push(ctx, i); err != nil {
			return err
		}
	}
	return nil
}
