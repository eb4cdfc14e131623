// Package linearizer runs a claims.Group: it has the goroutines, the clock and the store that the core does without.
package linearizer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
)

// Options of a Linearizer.
type Options struct {
	Config claims.Config
	Keys   claims.Keys
	Epoch  claims.Epoch
	// Folds of the epoch's regions.
	Folds Folds
	// Revision that the store has told of.
	Revision int64
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Observe is called after every transaction, with the number of its operations, how long it took, and its error. nil is nobody.
	Observe func(ops int, took time.Duration, err error)
}

// Linearizer does operations on claims in one epoch. It is safe for concurrent use.
type Linearizer struct {
	kv      claims.KV
	now     func() time.Time
	observe func(int, time.Duration, error)
	folds   Folds
	looks   chan struct{} // a place for each that looks at folds

	flying sync.WaitGroup
	// ctx is that of transactions, which outlive the callers whose operations they have.
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	group  *claims.Group
	calls  map[claims.Ticket]slot
	timer  *time.Timer // until the group is due; nil while it is not
	scans  int         // that are under way
	closed bool
}

// call is a batch of operations of one caller.
type call struct {
	results []Result
	left    int
	done    chan struct{}
}

// slot is where the end of an operation goes.
type slot struct {
	*call
	at int
}

// Result of an operation: an answer, or an error of package claims.
type Result struct {
	Answer claims.Answer
	Err    error
}

// New makes a Linearizer. Close it.
func New(kv claims.KV, o Options) (*Linearizer, error) {
	if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	if err := o.Epoch.Validate(); err != nil {
		return nil, err
	}
	if o.Folds == nil {
		return nil, fmt.Errorf("%w: a linearizer without folds", claims.ErrInvalid)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Observe == nil {
		o.Observe = func(int, time.Duration, error) {}
	}
	l := &Linearizer{kv: kv, now: o.Now, observe: o.Observe, folds: o.Folds, looks: make(chan struct{}, maxLooks), group: claims.NewGroup(o.Config, o.Keys, o.Epoch, o.Revision), calls: map[claims.Ticket]slot{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// do does operations as they are.
func (l *Linearizer) do(ctx context.Context, ops []claims.Op) []Result {
	c := &call{results: make([]Result, len(ops)), done: make(chan struct{})}
	tickets := make([]claims.Ticket, len(ops))
	l.mu.Lock()
	now := l.now()
	for i, op := range ops {
		t, err := l.group.Submit(now, op)
		if err != nil {
			c.results[i].Err = err
			continue
		}
		tickets[i] = t
		l.calls[t] = slot{c, i}
		c.left++
	}
	if c.left == 0 {
		l.mu.Unlock()
		return c.results
	}
	l.pump(now)
	l.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		l.leave(ctx, c, ops, tickets)
	}
	return c.results
}

// leave ends what is not answered: a change that was not sent is canceled, and of the others the outcome is unknown.
func (l *Linearizer) leave(ctx context.Context, c *call, ops []claims.Op, tickets []claims.Ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, t := range tickets {
		if s, waits := l.calls[t]; !waits || s.call != c {
			continue
		}
		delete(l.calls, t)
		err := fmt.Errorf("%w: %w", claims.ErrUnknown, ctx.Err())
		if l.group.Cancel(t) {
			err = fmt.Errorf("%w: %w", claims.ErrCanceled, ctx.Err())
		}
		c.results[i].Err = &claims.Error{Op: ops[i].Kind, Key: ops[i].Identity, Err: err}
	}
}

// pump sends what is due; the caller holds the lock.
func (l *Linearizer) pump(now time.Time) {
	for f := l.group.Next(now); f != nil; f = l.group.Next(now) {
		l.flying.Add(1)
		go l.fly(f)
	}
	due, ok := l.group.Due()
	if !ok || l.timer != nil {
		return
	}
	l.timer = time.AfterFunc(max(due.Sub(now), 0), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.timer = nil; !l.closed {
			l.pump(l.now())
		}
	})
}

func (l *Linearizer) fly(f *claims.Flight) {
	defer l.flying.Done()
	began := time.Now()
	r, err := l.kv.Commit(l.ctx, f.Txn)
	l.observe(f.Ops(), time.Since(began), err)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.deliver(l.group.Land(now, f, r, err))
	l.pump(now)
}

// deliver gives callers the ends of their operations; the caller holds the lock.
func (l *Linearizer) deliver(ends []claims.Done) {
	for _, d := range ends {
		s, waits := l.calls[d.Ticket]
		if !waits {
			continue
		}
		delete(l.calls, d.Ticket)
		s.results[s.at] = Result{d.Answer, d.Err}
		if s.left--; s.left == 0 {
			close(s.done)
		}
	}
}

// maxScans bounds the scans under way.
const maxScans = 4

// Scan reads a page of claims. Errors wrap claims.ErrInvalid, ErrEpoch, ErrFull where too many scans are under way, or
// ErrUnavailable.
func (l *Linearizer) Scan(ctx context.Context, s claims.Scan) (claims.Page, error) {
	v, err := l.begin(s, (*claims.Group).BeginScan)
	if err != nil {
		return claims.Page{}, err
	}
	defer l.flying.Done()
	res, err := l.kv.Commit(ctx, v.Txn)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scans--
	page, ends, err := l.group.EndScan(v, res, err)
	l.deliver(ends)
	return page, err
}

// Boots reads a page of the boots of which etcd knows heads of folds, with etcd's revision; next is where the next page begins. Errors
// are those of Scan.
func (l *Linearizer) Boots(ctx context.Context, after string) (boots []claims.Known, next string, revision int64, _ error) {
	v, err := l.begin(claims.Scan{After: after, Limit: claims.MaxScan}, (*claims.Group).BeginBoots)
	if err != nil {
		return nil, "", 0, err
	}
	defer l.flying.Done()
	res, err := l.kv.Commit(ctx, v.Txn)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scans--
	boots, next, revision, ends, err := l.group.EndBoots(v, res, err)
	l.deliver(ends)
	return boots, next, revision, err
}

func (l *Linearizer) begin(s claims.Scan, begin func(*claims.Group, claims.Scan) (*claims.Survey, error)) (*claims.Survey, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.scans >= maxScans {
		return nil, fmt.Errorf("scan claims: %w: %d scans are under way", claims.ErrFull, l.scans)
	}
	v, err := begin(l.group, s)
	if err == nil {
		l.scans++
		l.flying.Add(1)
	}
	return v, err
}

// Stopped says why nothing is done any more; nil while it is. Another epoch, and another Linearizer, follows.
func (l *Linearizer) Stopped() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.group.Stopped()
}

// Waiting is how many operations are not answered.
func (l *Linearizer) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.group.Waiting()
}

// Close refuses what waits and comes, and waits for transactions under way.
func (l *Linearizer) Close() {
	l.mu.Lock()
	if l.closed = true; l.timer != nil {
		l.timer.Stop()
	}
	l.deliver(l.group.Stop(fmt.Errorf("%w: the linearizer shuts down", claims.ErrUnavailable)))
	l.mu.Unlock()
	l.flying.Wait()
	l.cancel()
}
