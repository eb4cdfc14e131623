// Package redundancy keeps the bodies of the store on as many places as the policy wants. Next says what a body needs,
// given what there is; a Keeper carries that out, and looks for bodies that need something: by listing places, by reading files
// back, and by going over the ledger.
//
// The ledger only remembers. What may be deleted is asked of the log (whether a body is named) and of the places (whether the
// files are there that a body is kept by from then on).
package redundancy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// Options of a Keeper. The zero value of a field means its default.
type Options struct {
	Policy Policy // its version is found by the Keeper
	// Names says whether the log names a body. An error ends the attempt, and nothing is deleted.
	Names func(body string) (Naming, error)
	// Bodies gives up to limit bodies that the log names, behind an id; nil: those without any file are not looked for.
	Bodies func(after string, limit int) ([]string, error)
	// Segments says how much of the log is kept as bodies; it may be nil.
	Segments func() SegmentStatus
	// Now is the clock; default: time.Now.
	Now func() time.Time
	Log *slog.Logger
	// Workers at the same time; default 2.
	Workers int
	// HealAfter is how long a place may be away before its files are made again elsewhere; default 15 min.
	HealAfter time.Duration
	// Rebalance moves files to where they would be written today.
	Rebalance bool
	// ScrubPeriod is the time in which every file is read back; 0: never. ScrubRate bounds it, bytes/s; 0: no bound.
	ScrubPeriod time.Duration
	ScrubRate   int64
	// ListPeriod is the time between two comparisons of the ledger with the files; default 24 h.
	ListPeriod time.Duration
	// LookInterval is the time between two looks at the places; default 10 s.
	LookInterval time.Duration
	// AckCopies is on how many local places a body is written; default 1.
	AckCopies int
	// Objects gives the objects that name any of some bodies, up to a limit; nil: nobody knows.
	Objects func(ctx context.Context, bodies map[string]bool, limit int) ([]ObjectName, error)
	// Reserve is the room that a place must have to take more files, bytes.
	Reserve int64
	// Lease is how long a worker has for a body; default 2 h.
	Lease   time.Duration
	Backoff ledger.Backoff // default ledger.DefaultBackoff

	// Step is called at named moments of the work, for tests that end it there; nil is none.
	Step func(name string)
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	def(&o.HealAfter, 15*time.Minute)
	def(&o.ListPeriod, 24*time.Hour)
	def(&o.LookInterval, 10*time.Second)
	def(&o.Lease, 2*time.Hour)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Workers == 0 {
		o.Workers = 2
	}
	if o.AckCopies == 0 {
		o.AckCopies = 1
	}
	if o.Backoff == (ledger.Backoff{}) {
		o.Backoff = ledger.DefaultBackoff
	}
	if o.Step == nil {
		o.Step = func(string) {}
	}
	return o
}

// Keeper keeps bodies redundant while Run runs.
type Keeper struct {
	opt     Options
	ledger  *ledger.Ledger
	files   Files
	tracker *tracker
	policy  Policy
	count   counters
	scrubs  *rate.Limiter

	wake   chan struct{}              // something may be due
	passes map[passName]chan struct{} // that a pass is wanted now

	leaving   sync.Mutex // held while it is decided whether a place may leave
	orders    sync.Mutex // guards ordered, and the moment in which a place gets another state
	ordered   uint64     // how many orders of operators changed what is to become of a place
	saving    sync.Mutex // held while progress is saved, before mu
	mu        sync.Mutex
	scrub     progress
	sweep     progress
	inventory map[string]Pass // by identity of the place
	asked     int             // counts how often all listings were to begin anew
	heal      Heal
	moving    map[string]bool // bodies of which a file is being moved
}

// New makes a Keeper. It asks every place once, and gives the policy its version.
func New(ctx context.Context, l *ledger.Ledger, f Files, opt Options) (*Keeper, error) {
	opt = opt.withDefaults()
	f = newProbation(f)
	t, err := newTracker(l, f, opt.Reserve)
	if err != nil {
		return nil, err
	}
	k := &Keeper{opt: opt, ledger: l, files: f, tracker: t, wake: make(chan struct{}, 1), passes: map[passName]chan struct{}{}, inventory: map[string]Pass{}, moving: map[string]bool{}, scrubs: rate.NewLimiter(rate.Inf, 0)}
	for _, name := range []passName{passLook, passTidy, passList, passSweep, passScrub} {
		k.passes[name] = make(chan struct{}, 1)
	}
	if opt.ScrubRate > 0 {
		k.scrubs = rate.NewLimiter(rate.Limit(opt.ScrubRate), scrubBurst)
	}
	if err := l.Recover(opt.Now()); err != nil {
		return nil, err
	}
	if err := k.reconsider(); err != nil {
		return nil, err
	}
	if _, err := t.look(ctx, opt.Now()); err != nil {
		return nil, err
	}
	seen := uint32(0)
	if l.Fresh() {
		seen = k.highestPolicy(ctx)
	}
	if k.policy, err = Adopt(l, opt.Policy, seen); err != nil {
		return nil, err
	}
	return k, k.loadPasses()
}

// reconsider forgets files of named bodies that an earlier process was about to remove: a ledger that is older than the files may
// say that of the last ones. The listings at the start find them, and they are dropped again once others are there.
func (k *Keeper) reconsider() error {
	for behind := (ledger.Key{}); ; {
		rows, err := k.ledger.InState(ledger.Removing, behind, listPage)
		if err != nil {
			return err
		}
		for _, r := range rows {
			behind = r.Key
			// What nobody names is not needed, however old the ledger is. Where the log cannot say, the file stays.
			if naming, err := k.opt.Names(r.Body); err == nil && naming == Unnamed {
				continue
			}
			if err := k.ledger.Forget(r); err != nil {
				return err
			}
		}
		if len(rows) < listPage {
			return nil
		}
	}
}

// listPage is how many rows are read at once.
const listPage = 500

func (k *Keeper) now() time.Time { return k.opt.Now() }

// Policy gives the policy in force.
func (k *Keeper) Policy() Policy { return k.policy }

// Written is told of a body that was written, with the places that have copies of it. It only saves a listing:
// a failure is no failure of the write.
func (k *Keeper) Written(body string, size int64, places []string) {
	for _, p := range places {
		if err := k.adopt(Listed{File: File{Key: ledger.Key{Body: body, Kind: ledger.Copy}, K: 1, Place: p}}, size); err != nil {
			k.opt.Log.Warn("the ledger could not note a body; the next listing finds it", "body", body, "error", err)
			return
		}
	}
	k.tracker.grew(places...)
	k.Needed(body, "written")
}

// Needed queues a body: a reader has met a file that is missing or damaged, or it was removed.
func (k *Keeper) Needed(body, reason string) {
	if err := k.ledger.Send(body, reason, k.now()); err != nil {
		k.opt.Log.Warn("a body could not be queued; the next sweep finds it", "body", body, "error", err)
	}
	k.rouse()
}

// Removed is told of a body that the log does not name any more.
func (k *Keeper) Removed(body string) {
	rows, err := k.ledger.Rows(body)
	for _, r := range rows {
		if r.State != ledger.Removing {
			err = errors.Join(err, notRaced(k.apply(r, ledger.Drop, nil, nil)))
		}
	}
	if err != nil {
		k.opt.Log.Warn("the ledger could not note that a body is gone; the next listing finds it", "body", body, "error", err)
	}
	if len(rows) > 0 {
		k.Needed(body, "removed")
	}
}

// Degraded is told of a file that a reader found missing or damaged, each time: the workers are readers too. A body is queued
// for what is new, so that one that cannot be mended waits longer and longer, and ends as a dead letter.
func (k *Keeper) Degraded(f File, cause error) {
	rows, err := k.ledger.Rows(f.Body)
	news := len(rows) == 0
	for _, r := range rows {
		if err == nil && sameFile(r, f) && r.State.Readable() {
			k.count.lost(cause)
			err = notRaced(k.apply(r, ledger.Lost, cause, nil))
			news = true
		}
	}
	if err != nil {
		k.opt.Log.Warn("the ledger could not note a damaged file", "body", f.Body, "error", err)
	}
	if news || err != nil {
		k.Needed(f.Body, "a reader met a file that is missing or damaged")
	}
}

// rouse wakes a worker.
func (k *Keeper) rouse() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// passName names what is done at intervals.
type passName string

const (
	passLook  passName = "look at places"
	passTidy  passName = "janitor"
	passList  passName = "listing"
	passSweep passName = "sweep"
	passScrub passName = "scrub"
)

// begin makes passes begin without waiting for their intervals. One that is under way is followed by another.
func (k *Keeper) begin(names ...passName) {
	for _, n := range names {
		select {
		case k.passes[n] <- struct{}{}:
		default:
		}
	}
}

const (
	idle            = time.Second // between two looks into an empty queue: messages become due
	janitorInterval = time.Minute
	scrubBurst      = 8 << 20
)

// Run works until ctx ends. Failures are logged and tried again.
func (k *Keeper) Run(ctx context.Context) error {
	g := run.NewGroup(ctx)
	for range k.opt.Workers {
		g.Go("worker", k.work)
	}
	every := func(name passName, interval time.Duration, fn func(context.Context) error) {
		g.Go(string(name), func(ctx context.Context) error { return k.every(ctx, name, interval, fn) })
	}
	every(passLook, k.opt.LookInterval, k.look)
	every(passTidy, janitorInterval, k.tidy)
	every(passList, k.opt.LookInterval, k.listDue)
	every(passSweep, k.opt.LookInterval, k.sweepDue)
	if k.opt.ScrubPeriod > 0 {
		every(passScrub, k.opt.LookInterval, k.scrubDue)
	}
	return g.Wait()
}

// every calls fn at once, and then at intervals or when the pass is to begin, until ctx ends.
func (k *Keeper) every(ctx context.Context, name passName, interval time.Duration, fn func(context.Context) error) error {
	next := time.NewTimer(interval)
	defer next.Stop()
	for {
		if err := fn(ctx); err != nil && ctx.Err() == nil {
			k.opt.Log.Warn("redundancy: a pass failed, and is tried again", "pass", name, "error", err)
		}
		next.Reset(interval)
		select {
		case <-ctx.Done():
			return nil
		case <-k.passes[name]:
		case <-next.C:
		}
	}
}

// work takes one message after the other.
func (k *Keeper) work(ctx context.Context) error {
	for ctx.Err() == nil {
		found, err := k.one(ctx)
		if err != nil && ctx.Err() == nil {
			k.opt.Log.Warn("redundancy: the queue failed", "error", err)
		}
		if found && err == nil {
			k.rouse() // there may be work for another worker
			continue
		}
		wait := time.NewTimer(idle)
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-wait.C:
		}
		wait.Stop()
	}
	return nil
}

// counters are figures since the start.
type counters struct {
	filesMade, filesLost, filesMoved, filesRemoved atomic.Int64
	bytesRead, bytesMade                           atomic.Int64
	damaged                                        atomic.Int64
}

func (c *counters) made(size int64, p Policy) {
	c.filesMade.Add(1)
	_, needs := p.Files(size)
	c.bytesMade.Add(max(size, 0) / int64(max(needs, 1)))
}
func (c *counters) read(n int64) { c.bytesRead.Add(n) }
func (c *counters) moved()       { c.filesMoved.Add(1) }
func (c *counters) removed()     { c.filesRemoved.Add(1) }

func (c *counters) lost(cause error) {
	c.filesLost.Add(1)
	if errors.Is(cause, ErrDamaged) {
		c.damaged.Add(1)
	}
}
