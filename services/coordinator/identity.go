package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/coordination/trace"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// identities is the identity linearizer of this coordinator: it opens epochs, serves one at a time, and answers nothing in
// between. Any number of coordinators serve the same epoch at once; each transaction compares it.
type identities struct {
	keeper *regions.Keeper
	// settings are those of the keeper.
	settings regions.Config
	traced   []trace.Region // all of the settings
	kv       claims.KV
	keys     claims.Keys
	// horizon and idle are those of the settings.
	horizon, idle time.Duration
	leading       func() bool
	// restores counts how often etcd was seen to have forgotten.
	restores func() int64
	now      func() time.Time
	log      *slog.Logger
	m        *identityMetrics
	// opening is held while an epoch is opened or a region is added: whoever opens would take an addition that is under way for a
	// recovery that died, and overtake it.
	opening chan struct{}
	// preparing is held while a region is prepared, which reads much. wake ends a long wait between attempts to open.
	preparing, wake chan struct{}
	// tracing has one for each trace that is read.
	tracing chan struct{}

	open atomic.Pointer[opened]
	why  atomic.Pointer[closure] // why it is not open; set while open is nil
	// census is what the last round of folding counted; nil where another coordinator folds.
	census atomic.Pointer[census]
	// recovering: this coordinator reads the regions, to open an epoch.
	recovering atomic.Bool
	// closedSince is when it was first not opened for the present reason; only run uses it.
	closedSince time.Time
}

// opened is an epoch that is served.
type opened struct {
	regions.Opened
	l *linearizer.Linearizer
	// folded is what is folded, and folder folds.
	folded *regions.Folded
	folder folds.Folder
	// marks are revisions that etcd had; a boot that was noted at an earlier one than that of long ago is idle.
	marks []mark
}

// claimKeys is where the linearizer's keys begin, behind the prefix.
const claimKeys = "/identity/v2/"

const (
	// checkEvery is how often an open epoch is compared with the buckets. A transaction finds out by itself when etcd has another.
	checkEvery = 10 * time.Second
	// openMin and openMax are between attempts to open.
	openMin, openMax = 100 * time.Millisecond, 5 * time.Second
	// moveMin and moveMax are between attempts of which each takes the number of an epoch, because a region's bucket can be read and not
	// written.
	moveMin, moveMax = time.Second, time.Minute
	// openRefused is between attempts that need somebody to do something first: each lists a region, or reads what may be entered.
	openRefused = time.Minute
	// followPatience is how long it is as usual that the coordinator that leads has not opened the linearizer.
	followPatience = time.Minute
	// prepareSlice is about how long one call prepares a region.
	prepareSlice = 10 * time.Second
	// stopEvery is how often it is asked whether a transaction found another epoch.
	stopEvery = 100 * time.Millisecond
)

func newIdentities(c IdentityConfig, buckets map[claims.Region]regions.Store, kv claims.KV, prefix string, leading func() bool, restores func() int64, now func() time.Time, log *slog.Logger, m *identityMetrics) (*identities, error) {
	v := &identities{kv: kv, keys: claims.Keys(prefix + claimKeys), horizon: c.SettleHorizon, idle: c.Idle, leading: leading, restores: restores, now: now, log: log, m: m, opening: make(chan struct{}, 1), preparing: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	cfg := regions.Config{KV: kv, Keys: v.keys, Rand: rand.Reader, Now: func() int64 { return now().UnixNano() }, Parallel: parallel,
		MaxUnprepared: c.MaxUnprepared, MaxClaims: c.MaxClaims}
	v.tracing = make(chan struct{}, maxTraces)
	cfg.Progress = func(p regions.Progress) {
		v.recovering.Store(true)
		m.progress(p)
	}
	for _, r := range c.Regions {
		name := claims.Region(r.Name)
		cfg.Regions = append(cfg.Regions, regions.Region{Name: name, Store: buckets[name]})
		v.traced = append(v.traced, trace.Region{Name: name, Store: buckets[name]})
	}
	v.settings = cfg
	var err error
	if v.keeper, err = regions.New(cfg); err != nil {
		return nil, err
	}
	v.closed(errNotOpened)
	return v, nil
}

// recoveryRequests is how many requests of a recovery are under way at once: it reads an object for each batch that is not folded.
const recoveryRequests = 64

// parallel is regions.Config.Parallel.
func parallel(n int, fn func(int) bool) { atOnce(recoveryRequests, n, fn) }

// atOnce calls fn for 0 to n-1, most at a time, and leaves out the rest when it has given false.
func atOnce(most, n int, fn func(int) bool) {
	var g errgroup.Group
	g.SetLimit(most)
	var stop atomic.Bool
	for i := range n {
		if stop.Load() {
			break
		}
		g.Go(func() error {
			if !fn(i) {
				stop.Store(true)
			}
			return nil
		})
	}
	_ = g.Wait() // none gives an error
}

// run opens and serves epochs until ctx ends.
func (v *identities) run(ctx context.Context) error {
	backoff, unwritable := run.NewBackoff(openMin, openMax), run.NewBackoff(moveMin, moveMax)
	var forgot *regions.Opened // an epoch whose etcd has forgotten, until it is out of etcd
	for {
		if forgot != nil {
			if err := v.keeper.Distrust(ctx, *forgot); err != nil {
				v.closed(err)
				v.log.Warn("etcd has forgotten what it had, and could not be told so; trying again", "error", err)
				if err := backoff.Sleep(ctx); err != nil {
					return err
				}
				continue
			}
			forgot = nil
		}
		o, err := v.alone(ctx, func() (regions.Opened, error) {
			// Whoever leads recovers. That another one may lead by the time it is done is harmless: each step compares the epoch.
			return v.keeper.Open(ctx, v.leading())
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			asks, wait := v.notOpened(err), openRefused
			switch moved := movedInPart(err); {
			case moved:
				asks, wait = true, unwritable.Next()
			case !asks:
				unwritable.Reset()
			}
			if asks {
				if err := v.sleepUntilAsked(ctx, wait); err != nil {
					return err
				}
				continue
			}
		default:
			backoff.Reset()
			unwritable.Reset()
			v.m.opens.WithLabelValues("ok").Inc()
			err = v.serve(ctx, o)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, claims.ErrForgot) {
				forgot = &o
			}
			v.log.Warn("the identity linearizer is closed; it is opened again", "epoch", o.Epoch.Number, "error", err)
		}
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
}

// notOpened notes why the linearizer could not be opened, and reports whether an operator has to change something first.
func (v *identities) notOpened(err error) (asks bool) {
	was := v.why.Load()
	v.closed(err)
	v.m.opens.WithLabelValues("failed").Inc()
	now := v.why.Load()
	if was.reason != now.reason {
		v.closedSince = v.now()
	}
	switch {
	case now.reason == closedDissolved:
		if was.reason != closedDissolved {
			v.log.Info("the identity linearizer was dissolved, and is opened when a region is added", "error", err)
		}
	// As at each first start, and in each recovery, where another coordinator does the work.
	case now.reason == closedNotLeading && v.now().Sub(v.closedSince) < followPatience:
		if was.reason != closedNotLeading {
			v.log.Info("waiting for the coordinator that leads to open the identity linearizer", "error", err)
		}
	default:
		v.log.Warn("the identity linearizer could not be opened; trying again", "error", err)
	}
	return errors.Is(err, regions.ErrUnprepared) || errors.Is(err, regions.ErrNotAdded) || errors.Is(err, regions.ErrTooManyClaims)
}

// opMove is the operation of a *regions.RegionError whose record was not written.
const opMove = "move the epoch"

// movedInPart reports that a region's bucket was read, and the record of the next epoch could not be written there: others may have it.
func movedInPart(err error) bool {
	var of *regions.RegionError
	return errors.As(err, &of) && of.Op == opMove
}

// sleepUntilAsked waits, or until somebody has changed something here.
func (v *identities) sleepUntilAsked(ctx context.Context, most time.Duration) error {
	wait := time.NewTimer(most)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-v.wake:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// awaken ends such a wait, or the next one.
func (v *identities) awaken() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// alone calls fn while nothing else here opens an epoch.
func (v *identities) alone(ctx context.Context, fn func() (regions.Opened, error)) (regions.Opened, error) {
	select {
	case v.opening <- struct{}{}:
		defer func() {
			v.recovering.Store(false)
			<-v.opening
		}()
		return fn()
	case <-ctx.Done():
		return regions.Opened{}, ctx.Err()
	}
}

// serve answers in one epoch until that is over, and says why it is.
func (v *identities) serve(ctx context.Context, o regions.Opened) error {
	c := claims.DefaultConfig()
	c.Cluster = o.Cluster
	folder := v.keeper.Folder(o.Epoch, o.Retired)
	for i, r := range folder.Regions {
		folder.Regions[i].Store = &foldStore{Store: r.Store, now: v.now}
	}
	folded := v.keeper.Folded(folder)
	l, err := linearizer.New(v.kv, linearizer.Options{Config: c, Keys: v.keys, Epoch: o.Epoch, Folds: folded, Revision: o.Revision, Now: v.now, Observe: v.m.transaction})
	if err != nil {
		return err
	}
	failpoint.Hit("coordinator.identity.open.before")
	v.open.Store(&opened{Opened: o, l: l, folded: folded, folder: folder})
	v.log.Info("the identity linearizer is open", "epoch", o.Epoch.Number, "regions", o.Epoch.Regions, "cluster", fmt.Sprintf("%x", o.Cluster),
		"recovered_claims", o.Recovered.Claims, "recovered_boots", o.Recovered.Boots)
	defer l.Close()
	err = v.watch(ctx, o, l)
	// Closed to callers first, so that they are told why.
	v.closed(err)
	return err
}

// watch returns when the epoch is over.
func (v *identities) watch(ctx context.Context, o regions.Opened, l *linearizer.Linearizer) error {
	look, check := time.NewTicker(stopEvery), time.NewTicker(checkEvery)
	restores := v.restores()
	defer look.Stop()
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if err := l.Stopped(); err != nil {
				return err
			}
			// Another request of this coordinator may be the one that saw it.
			if n := v.restores(); n != restores {
				return fmt.Errorf("%w: it was restored", claims.ErrForgot)
			}
		case <-check.C:
			err := v.keeper.Check(ctx, o)
			if errors.Is(err, regions.ErrMustRecover) || errors.Is(err, regions.ErrOvertaken) || errors.Is(err, regions.ErrRegionSettings) || errors.Is(err, claims.ErrForgot) ||
				errors.Is(err, regions.ErrDissolved) || errors.Is(err, regions.ErrDissolving) {
				return err
			}
			if err != nil && ctx.Err() == nil {
				// Nobody has said that the epoch is over, and every transaction compares it.
				v.log.Warn("the epoch of the identity linearizer could not be checked", "error", err)
			}
		}
	}
}

// Do implements coordinator.Claimer.
func (v *identities) Do(ctx context.Context, ops []claims.Op) []linearizer.Result {
	o := v.open.Load()
	if o == nil {
		out := make([]linearizer.Result, len(ops))
		for i, op := range ops {
			out[i].Err = &claims.Error{Op: op.Kind, Key: op.Identity, Err: v.refusal()}
			v.m.operation(op, out[i])
		}
		return out
	}
	out := o.l.Do(ctx, ops)
	v.makeRoom(ctx, o, ops, out)
	for i, op := range ops {
		v.m.operation(op, out[i])
	}
	return out
}

// makeRoom folds claims of boots that have too many, and tries what they refused once more: a sender that catches up must not
// wait for the horizon.
func (v *identities) makeRoom(ctx context.Context, o *opened, ops []claims.Op, out []linearizer.Result) {
	boots := map[identity.Boot]bool{}
	var again []claims.Op
	var at []int
	for i, op := range ops {
		if !errors.Is(out[i].Err, claims.ErrTooMany) {
			continue
		}
		boots[op.Identity.BootOf()] = true
		again, at = append(again, op), append(at, i)
	}
	if len(again) == 0 {
		return
	}
	for b := range boots {
		_, _ = v.foldBoot(ctx, o, b, folds.Due{Before: v.now().UnixNano(), Least: 1}) // what is not folded is refused again
	}
	for i, r := range o.l.Do(ctx, again) {
		out[at[i]] = r
	}
}

// Scan implements coordinator.Scanner.
func (v *identities) Scan(ctx context.Context, s claims.Scan) (claims.Page, error) {
	o := v.open.Load()
	if o == nil {
		return claims.Page{}, fmt.Errorf("scan claims: %w", v.refusal())
	}
	return o.l.Scan(ctx, s)
}

// Regions implements coordinator.Regional.
func (v *identities) Regions(ctx context.Context) (regions.Status, []claims.Region, error, error) {
	c := v.settings
	c.Regions = slices.Clone(c.Regions)
	for i, r := range c.Regions {
		c.Regions[i].Store = statusStore{r.Store, &tracedStore{Store: r.Store, patience: statusPatience}}
	}
	k, err := regions.New(c)
	if err != nil {
		return regions.Status{}, nil, nil, err
	}
	s, err := k.Status(ctx)
	return s, k.Names(), v.notOpen(), err
}

// AddRegion implements coordinator.Regional. The epoch that is served now ends with it, on every coordinator.
func (v *identities) AddRegion(ctx context.Context, r claims.Region) (regions.Opened, error) {
	o, err := v.alone(ctx, func() (regions.Opened, error) { return v.keeper.Add(ctx, r) })
	if errors.Is(err, regions.ErrOvertaken) {
		// Another coordinator, which leads, found an epoch that was not filled and fills the next one. The region takes part in that
		// too, since its record was in all buckets before anything could be overtaken.
		v.log.Info("the addition of a region was overtaken by a recovery; waiting for that", "region", r, "error", err)
		o, err = v.await(ctx, func(o regions.Opened) bool { return slices.Contains(o.Epoch.Regions, r) }, err)
	}
	v.report(err, "a region takes part", "a region was not added", "region", r, "epoch", o.Epoch.Number)
	v.awaken()
	return o, err
}

// PrepareRegion implements coordinator.Regional: it goes on for a while.
func (v *identities) PrepareRegion(ctx context.Context, r claims.Region) (p regions.Preparation, all bool, _ error) {
	select {
	case v.preparing <- struct{}{}:
		defer func() { <-v.preparing }()
	case <-ctx.Done():
		return p, false, ctx.Err()
	}
	began := time.Now()
	p, all, err := v.keeper.Prepare(ctx, r, func(regions.Preparation) bool { return time.Since(began) < prepareSlice })
	v.report(err, "a region is prepared", "a region could not be prepared", "region", r, "batches", p.Batches, "folded", p.FoldedBatches, "done", all, "took", time.Since(began))
	if err == nil && all {
		v.awaken()
	}
	return p, all, err
}

// RetireRegion implements coordinator.Regional.
func (v *identities) RetireRegion(ctx context.Context, r claims.Region, forget bool) (regions.Opened, error) {
	o, err := v.alone(ctx, func() (regions.Opened, error) { return v.keeper.Retire(ctx, r, forget) })
	if errors.Is(err, regions.ErrOvertaken) {
		v.log.Info("the retirement of a region was overtaken by a recovery; waiting for that", "region", r, "error", err)
		was := err
		if o, err = v.await(ctx, func(o regions.Opened) bool { return o.Epoch.Retired(r) }, was); err == nil && !slices.Contains(o.Retired, r) {
			// By another retirement: of the region that alone had its record, whose addition had died.
			o, err = regions.Opened{}, fmt.Errorf("%w; epoch %d is open, in which it takes no part, and is not retired", was, o.Epoch.Number)
		}
	}
	v.report(err, "a region is retired", "a region was not retired", "region", r, "forget", forget, "epoch", o.Epoch.Number)
	v.awaken()
	return o, err
}

// Dissolve implements coordinator.Regional. The epoch that is served now ends with it, on every coordinator.
func (v *identities) Dissolve(ctx context.Context, r claims.Region) (rec regions.Record, err error) {
	_, err = v.alone(ctx, func() (regions.Opened, error) {
		rec, err = v.keeper.Dissolve(ctx, r)
		return regions.Opened{}, err
	})
	if err == nil {
		// Callers hear why at once, and not when the next check finds out.
		v.closed(fmt.Errorf("%w in epoch %d; its last region was %s", regions.ErrDissolved, rec.Number, r))
	}
	v.report(err, "the identity linearizer is dissolved", "the identity linearizer was not dissolved", "region", r, "epoch", rec.Number)
	return rec, err
}

// report logs what became of an operator's change.
func (v *identities) report(err error, done, failed string, args ...any) {
	if err != nil {
		v.log.Warn(failed, append(args, "error", err)...)
		return
	}
	v.log.Info(done, args...)
}

// await waits until an epoch that is right is served here; why is the error if ctx ends before.
func (v *identities) await(ctx context.Context, right func(regions.Opened) bool, why error) (regions.Opened, error) {
	look := time.NewTicker(stopEvery)
	defer look.Stop()
	for {
		if o := v.open.Load(); o != nil && right(o.Opened) {
			return o.Opened, nil
		}
		select {
		case <-ctx.Done():
			return regions.Opened{}, fmt.Errorf("%w; no such epoch was open before the call ended: %w", why, ctx.Err())
		case <-look.C:
		}
	}
}
