// Package collect runs the collection of orphan blobs, whose state machine is in internal/acceptance/gc: when, how fast, and
// what the metrics say. Any number of reconcilers run it; one at a time collects.
package collect

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Values of Collecting.Mode.
const (
	On     = "on"
	DryRun = "dry_run"
	Off    = "off"
)

// Collecting is for the collection of orphan blobs.
type Collecting struct {
	Mode          string        `koanf:"mode" help:"on, dry_run: log what would be deleted and change nothing, or off"`
	Delay         time.Duration `koanf:"delay" help:"age of a collector's report, and of its blobs, before they are checked"`
	MinAge        time.Duration `koanf:"min_age" help:"age below which a sweep leaves a blob alone"`
	SweepInterval time.Duration `koanf:"sweep_interval" help:"time between two sweeps of all blobs; 0 is never, unless an operator asks"`
	PollInterval  time.Duration `koanf:"poll_interval" help:"time between two questions whether there is something to do"`
	Lease         time.Duration `koanf:"lease" help:"time after which another reconciler takes over from one that is gone"`
	Rate          float64       `koanf:"rate" help:"most requests a second"`
	Budget        uint64        `koanf:"requests_per_day" help:"most requests a day, of all reconcilers together, at least 10000; 0 is no bound"`
	Inventory     bool          `koanf:"inventory" help:"sweeps take their keys from the newest inventory of audit.inventory in place of listings; where there is none that can be used they list"`
	InventoryAge  time.Duration `koanf:"inventory_max_age" help:"age above which a sweep does not take an inventory"`
	Epochs        bool          `koanf:"epochs" help:"keep a log of what is condemned, so that collectors may have marker_reads: epochs; it can't be given up again. Reconcilers of earlier releases then collect nothing, and none may have stood still for an hour"`
	MaxNames      int           `koanf:"max_names" help:"most names of blobs in memory while a sweep runs, 8 bytes each; a sweep of more reads the journal again for each such part"`
}

// Default is what a reconciler does unless told otherwise.
func Default() Collecting {
	return Collecting{
		Mode: On, Delay: 5 * time.Minute, MinAge: gc.DefaultMinAge, SweepInterval: 7 * 24 * time.Hour,
		PollInterval: 5 * time.Minute, Lease: 10 * time.Minute, Rate: 50, Budget: 1_000_000, MaxNames: gc.DefaultMaxNames, InventoryAge: gc.DefaultInventoryAge,
	}
}

// Validate checks ranges.
func (c Collecting) Validate() error {
	var errs []error
	if c.Mode != On && c.Mode != DryRun && c.Mode != Off {
		errs = append(errs, fmt.Errorf("gc.mode %q: want %s, %s or %s", c.Mode, On, DryRun, Off))
	}
	if c.Delay < 0 || c.MinAge < 0 || c.SweepInterval < 0 {
		errs = append(errs, errors.New("gc.delay, gc.min_age, gc.sweep_interval: must not be negative"))
	}
	if c.PollInterval <= 0 || c.Lease <= 0 || c.Rate <= 0 || c.MaxNames <= 0 || c.InventoryAge <= 0 {
		errs = append(errs, errors.New("gc.poll_interval, gc.lease, gc.rate, gc.max_names, gc.inventory_max_age: must be greater than 0"))
	}
	// Of a report's 1,000 frames nothing may be left to the next day that this one's requests were for.
	if c.Budget > 0 && c.Budget < leastBudget {
		errs = append(errs, fmt.Errorf("gc.requests_per_day %d: at least %d, or 0 for no bound", c.Budget, leastBudget))
	}
	return errors.Join(errs...)
}

// leastBudget is what one report may cost.
const leastBudget = 10 * gc.MaxReported

// Deps are what a Keeper needs.
type Deps struct {
	// By names the reconciler, in records.
	By    string
	Log   *slog.Logger
	Store gc.RunnerStore
	// Authority waits for the id of the bucket's authority.
	Authority func(context.Context) (string, error)
	Fan       journal.Fan
	// Inventory opens an inventory of the bucket; nil where there are none.
	Inventory func(context.Context, string) (audit.Inventory, error)
	Metrics   *Metrics
	Now       func() time.Time
}

// Keeper collects garbage when something is due.
type Keeper struct {
	cfg Collecting
	d   Deps
	// asked: an operator wants it to look now.
	asked chan struct{}
	known atomic.Pointer[gc.State]
}

// New makes a Keeper; it makes no request.
func New(cfg Collecting, d Deps) *Keeper {
	if d.Now == nil {
		d.Now = time.Now
	}
	return &Keeper{cfg: cfg, d: d, asked: make(chan struct{}, 1)}
}

// Found is the state of a dry run, as far as it is: it stands nowhere but here. Nil for who collects, whose state is in the bucket.
func (k *Keeper) Found() *gc.State {
	if k.cfg.Mode != DryRun {
		return nil
	}
	return k.known.Load()
}

// Wake has the keeper look at once.
func (k *Keeper) Wake() {
	select {
	case k.asked <- struct{}{}:
	default:
	}
}

// releaseTimeout bounds the last move of a process that ends.
const releaseTimeout = 5 * time.Second

// Run collects until ctx ends. It waits for one interval first, so that a process that starts again and again asks for little.
func (k *Keeper) Run(ctx context.Context) error {
	if k.cfg.Mode == Off {
		return nil
	}
	if err := k.sleep(ctx); err != nil {
		return err
	}
	for {
		err := k.live(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.d.Metrics.errors.Inc()
		k.d.Log.Warn("garbage is not collected", "error", err)
		if err := k.sleep(ctx); err != nil {
			return err
		}
	}
}

func (k *Keeper) sleep(ctx context.Context) error {
	t := time.NewTimer(k.cfg.PollInterval)
	defer t.Stop()
	select {
	case <-t.C:
	case <-k.asked:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (k *Keeper) live(ctx context.Context) error {
	authority, err := k.d.Authority(ctx)
	if err != nil {
		return err
	}
	r, err := gc.NewRunner(gc.RunnerConfig{
		Store: paced{k.d.Store, rate.NewLimiter(rate.Limit(k.cfg.Rate), 1), k.d.Metrics}, AuthorityID: authority,
		// A claim names one process: with the reconciler's id alone, two that share it would share a plan.
		By: k.d.By, Claim: rand.Text(), Clock: wall(k.d.Now), Fan: k.d.Fan,
		Limits: gc.Limits{
			MinAge: k.cfg.MinAge, Delay: k.cfg.Delay, Interval: k.cfg.SweepInterval, Lease: k.cfg.Lease,
			Budget: k.cfg.Budget, MaxNames: k.cfg.MaxNames, DryRun: k.cfg.Mode == DryRun, Epochs: k.cfg.Epochs,
		},
		Inventory: k.inventories(),
		Wait:      k.wait,
		Executed:  k.executed,
	})
	if err != nil {
		return err
	}
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if err := r.Release(rctx); err != nil {
			k.d.Log.Warn("the collection of garbage was not given back; another reconciler waits for its lease", "error", err)
		}
	}()
	// Both loops end with the context, or with the first that fails.
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return k.steps(gctx, r) })
	g.Go(func() error {
		for {
			if err := run.Sleep(gctx, k.cfg.Lease/4); err != nil {
				return err
			}
			// A step whose lease was lost finds that out before it condemns anything.
			if err := r.Renew(gctx); err != nil && gctx.Err() == nil {
				k.d.Log.Warn("the lease of the collection of garbage was not renewed", "error", err)
			}
		}
	})
	return g.Wait()
}

// steps takes one step after the other, and waits where there is nothing to do.
func (k *Keeper) steps(ctx context.Context, r *gc.Runner) error {
	for {
		p, err := r.Step(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.d.Metrics.waiting(&p)
		if err != nil {
			k.d.Metrics.errors.Inc()
			k.d.Log.Warn("the collection of garbage was interrupted; it goes on where it was", "error", err)
		} else {
			k.note(&p)
		}
		if err == nil && p.Worked {
			continue
		}
		if err := k.sleep(ctx); err != nil {
			return err
		}
	}
}

// note tells what the state says.
func (k *Keeper) note(p *gc.Progress) {
	before := k.known.Swap(&p.State)
	k.d.Metrics.note(p, k.due(&p.State))
	if b := p.State.Breaker; p.State.Holds() && (before == nil || !before.Holds()) {
		k.d.Log.Error("the breaker of garbage collection has tripped: nothing is deleted until an operator has checked it, lmctl gc breaker",
			"cause", b.Cause, "candidates", b.Candidates, "listed", b.Listed, "manifest", b.Key)
	}
	if s := p.State.Last; before != nil && before.Last.EndedAt != s.EndedAt && s.EndedAt > 0 {
		k.d.Log.Info("a sweep of all blobs has ended", "listed", s.Listed, "candidates", s.Candidates, "deleted", s.Deleted, "bytes", s.Bytes, "kept", s.Kept, "doubtful", s.Doubtful, "foreign", s.Foreign)
	}
}

// due is when the sweep that has not ended began, or when the next one is due; zero if there is to be none.
func (k *Keeper) due(s *gc.State) time.Time {
	switch {
	case s.Sweep.BeganAt > 0:
		return time.Unix(s.Sweep.BeganAt, 0)
	case k.cfg.SweepInterval <= 0 || s.CreatedAt == 0:
		return time.Time{}
	case s.Last.BeganAt == 0:
		return time.Unix(s.CreatedAt, 0).Add(k.cfg.MinAge)
	}
	return time.Unix(s.Last.BeganAt, 0).Add(k.cfg.SweepInterval)
}

func (k *Keeper) inventories() gc.InventoryOptions {
	if !k.cfg.Inventory || k.d.Inventory == nil {
		return gc.InventoryOptions{}
	}
	return gc.InventoryOptions{
		MaxAge: k.cfg.InventoryAge,
		Open: func(ctx context.Context, key string) (gc.Inventory, error) {
			inv, err := k.d.Inventory(ctx, key)
			return gc.Inventory(inv), err
		},
		Refused: func(err error) {
			k.d.Log.Warn("there is no inventory that a sweep can use; it lists the bucket", "error", err)
		},
	}
}

// Between two looks at runs that have not come to an epoch, unless the keeper looks for work more often, and how many looks there are in a
// step. Collectors look for new epochs every
// 30 seconds; the run of one that is gone is fenced after a quarter of an hour, which a later step finds.
const (
	awaitInterval = 5 * time.Second
	awaitLooks    = 24
)

// wait waits for runs of the journal, for a bounded time.
func (k *Keeper) wait(ctx context.Context, left, looks int) error {
	k.d.Metrics.awaited.Set(float64(left))
	if looks >= awaitLooks {
		return fmt.Errorf("%w: %d runs", gc.ErrAwaited, left)
	}
	return run.Sleep(ctx, min(awaitInterval, k.cfg.PollInterval))
}

func (k *Keeper) executed(source gc.Source, r gc.Report) {
	k.d.Metrics.executed(source, &r)
	for _, e := range r.Entries {
		if e.Reason.Doubtful() {
			k.d.Log.Warn("a blob that may be an orphan is kept, because nothing shows whose it is", "key", e.Key, "reason", e.Reason, "detail", e.Detail)
		}
	}
}

// wall is a clock.
type wall func() time.Time

func (w wall) Now() time.Time { return w() }

// paced waits before each request.
type paced struct {
	s     gc.RunnerStore
	limit *rate.Limiter
	m     *Metrics
}

func (p paced) wait(ctx context.Context) error {
	p.m.requests.Inc()
	return p.limit.Wait(ctx)
}

func (p paced) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if err := p.wait(ctx); err != nil {
		return nil, objstore.Info{}, err
	}
	return p.s.Get(ctx, key, o)
}

func (p paced) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := p.wait(ctx); err != nil {
		return objstore.Info{}, err
	}
	return p.s.Head(ctx, key)
}

func (p paced) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := p.wait(ctx); err != nil {
		return objstore.Page{}, err
	}
	return p.s.List(ctx, o)
}

func (p paced) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if err := p.wait(ctx); err != nil {
		return objstore.Info{}, err
	}
	return p.s.Create(ctx, key, b, o)
}

func (p paced) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	if err := p.wait(ctx); err != nil {
		return objstore.Info{}, err
	}
	return p.s.Replace(ctx, key, b, etag, o)
}

// DeleteVersion implements objstore.VersionDeleter as far as the store does.
func (p paced) DeleteVersion(ctx context.Context, key, version string) error {
	if err := p.wait(ctx); err != nil {
		return err
	}
	return objstore.DeleteVersion(ctx, p.s, key, version)
}

func (p paced) Delete(ctx context.Context, key string) error {
	if err := p.wait(ctx); err != nil {
		return err
	}
	return p.s.Delete(ctx, key)
}
