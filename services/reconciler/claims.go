package reconciler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/forward"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ClaimsConfig is for the claims of this region that nobody goes on with.
type ClaimsConfig struct {
	Interval time.Duration `koanf:"interval" help:"least time between two scans of the claims of this region; after a scan that took long, nine times as long as that"`
	Age      time.Duration `koanf:"age" help:"how long a claim must have been left alone before this reconciler goes on with it"`
	TakeOver time.Duration `koanf:"take_over" help:"how long another region must have held a claim before an audit here takes it over, for a manifest of this region that nobody has decided"`
	Workers  int           `koanf:"workers" help:"claims that are rolled forward at once"`
}

// LinearizerConfig says where the identity linearizer is.
type LinearizerConfig struct {
	Addresses []string         `koanf:"addresses" help:"gRPC addresses of coordinators, host:port; the next one is tried when one fails" check:"address"`
	Client    rpc.ClientConfig `koanf:"client" needs:"addresses"`
}

// Linearizer is what a reconciler needs of it: a coordinator.Claims.
type Linearizer interface {
	coordinator.Claimer
	Scan(ctx context.Context, s claims.Scan, olderThan time.Duration) (claims.Page, error)
}

var _ Linearizer = (*coordinator.Claims)(nil)

// claimsPage is how many claims one page of a scan reads.
const claimsPage = 500

// claimsDuty is how many times as long as a scan took the next one waits at least: a scan reads all claims that are not
// folded, of every region.
const claimsDuty = 9

// claimKeeper rolls claims of the region forward, and judges manifests for audits. It ends with a life of the journal's keeper.
type claimKeeper struct {
	cfg  Config
	k    *journalKeeper
	from Linearizer
	f    *forward.Forwarder
	run  *journal.Writer
	m    *claimMetrics
}

// denied is the error of a linearizer that refuses this reconciler, or that it acts for its region; nil while it does not.
func (k *journalKeeper) denied() error {
	if err := k.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// changer is the linearizer as the core sees it, with the moments at which a process may be killed.
type changer struct{ l Linearizer }

func (c changer) Change(ctx context.Context, op claims.Op) (claims.Answer, error) {
	switch op.Kind {
	case claims.DoComplete:
		failpoint.Hit("reconciler.claims.complete.before")
	case claims.DoSettle:
		failpoint.Hit("reconciler.claims.settle.before")
	}
	r := c.l.Do(ctx, []claims.Op{op})[0]
	return r.Answer, r.Err
}

// openClaims makes the keeper of a life; nil where there are no regions.
func (k *journalKeeper) openClaims(authority string) (*claimKeeper, error) {
	if k.cfg.Region == "" {
		return nil, nil
	}
	f, err := forward.New(forward.Config{
		Region: k.cfg.Region, Store: k.store, Claims: changer{k.to.linearizer}, Rand: rand.Reader, Removed: k.to.removed, TakeOver: k.cfg.Claims.TakeOver,
		Accept: accept.Config{AuthorityID: authority, CollectorID: k.id, Clock: run.WallClock{}, Rand: rand.Reader, Policy: accept.DefaultPolicy()},
	})
	if err != nil {
		return nil, err
	}
	w, err := journal.NewWriter(journal.WriterConfig{
		Store: k.store, Rand: rand.Reader, Clock: func() int64 { return time.Now().UnixNano() },
		Opening: journal.Opening{Writer: k.id, Role: journal.RoleReconciler, Authority: authority},
	})
	return &claimKeeper{cfg: k.cfg, k: k, from: k.to.linearizer, f: f, run: w, m: k.m.claims}, err
}

// loop scans again and again, until ctx ends. A scan that fails begins again with the next one.
func (c *claimKeeper) loop(ctx context.Context, fits func(context.Context) error) error {
	for {
		began := time.Now()
		err := c.pass(ctx, fits)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if unfit(err) {
			return err
		}
		if err != nil {
			c.m.scans.WithLabelValues("failed").Inc()
			c.k.log.Warn("claims of this region were not all rolled forward; tried again", "error", err)
		} else {
			c.m.scans.WithLabelValues("ok").Inc()
		}
		if err := run.Sleep(ctx, max(c.cfg.Claims.Interval, claimsDuty*time.Since(began))); err != nil {
			return err
		}
	}
}

// pass goes through all claims of the region that were left alone, as long as the bucket fits.
func (c *claimKeeper) pass(ctx context.Context, fits func(context.Context) error) error {
	left := newLeft(time.Now())
	s := claims.Scan{Home: c.cfg.Region, States: []claims.State{claims.Claimed, claims.Durable}, Limit: claimsPage}
	var errs []error
	for {
		page, err := c.from.Scan(ctx, s, c.cfg.Claims.Age)
		if errors.Is(err, claims.ErrDenied) {
			// Not ready, so that an alarm is raised: the claims of a region that nobody goes on with hold others up.
			c.k.refused.Store(&err)
		} else if err == nil {
			c.k.refused.Store(nil)
		}
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if len(page.Claims) > 0 {
			if err := fits(ctx); err != nil {
				return err
			}
		}
		left.unreadable += page.Unreadable
		errs = append(errs, c.page(ctx, page.Claims, left))
		if s.After = page.Next; s.After == "" {
			break
		}
	}
	c.m.note(left)
	return errors.Join(errs...)
}

// page rolls the claims of a page forward, enters what became durable, and settles it.
func (c *claimKeeper) page(ctx context.Context, list []claims.Claim, left *leftClaims) error {
	results, failed := make([]forward.Result, len(list)), make([]error, len(list))
	var g errgroup.Group
	g.SetLimit(c.cfg.Claims.Workers)
	roll := func(i int) {
		ictx, cancel := context.WithTimeout(ctx, c.cfg.ItemTimeout)
		defer cancel()
		results[i], failed[i] = c.f.Roll(ictx, list[i])
	}
	for i := range list {
		if c.cfg.Claims.Workers == 1 {
			roll(i)
			continue
		}
		g.Go(func() error { roll(i); return nil })
	}
	_ = g.Wait() // the functions return none
	if err := ctx.Err(); err != nil {
		return err
	}
	bad := 0
	var last error
	for i, r := range results {
		if failed[i] != nil {
			bad, last = bad+1, failed[i]
			left.add("failed", list[i])
			continue
		}
		c.count(r, list[i], left)
	}
	failpoint.Hit("reconciler.claims.journal.before")
	settled, err := c.f.Finish(ctx, c.run, results)
	c.m.settled.Add(float64(settled))
	if bad > 0 {
		// One of them is named: the cause is the same for nearly all.
		err = errors.Join(err, fmt.Errorf("%d of %d claims: %w", bad, len(list), last))
	}
	return err
}

func (c *claimKeeper) count(r forward.Result, of claims.Claim, left *leftClaims) {
	c.m.rolled.WithLabelValues(string(r.Action)).Inc()
	if r.Replaced {
		c.m.replaced.Inc()
	}
	if r.Affirmed {
		c.m.affirmed.Inc()
	}
	if r.Action == forward.Stuck {
		left.add(string(r.Action), of)
		c.k.log.Error("a claim can't be rolled forward", "identity", of.Identity.String(), "state", of.State.String(), "why", r.Why)
		c.k.to.unusable(manifestKeyOf(of.Identity))
	}
}

func manifestKeyOf(id identity.Batch) string {
	return manifestKey(&journal.Entry{ID: id, Outcome: journal.AuditedAccepted})
}

// judge says what becomes of a manifest that stands in no run of the journal.
func (c *claimKeeper) judge(ctx context.Context, m accept.Manifest) (audit.Judgement, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ItemTimeout)
	defer cancel()
	a, err := c.f.Ask(ctx, m)
	if err != nil {
		return audit.Judgement{}, err
	}
	c.m.judged.WithLabelValues(string(a.Verdict)).Inc()
	switch a.Verdict {
	case forward.Ours:
		return audit.Judgement{Finding: audit.Counted, Entry: a.Entry, Settle: func(ctx context.Context) error { return c.f.Settle(ctx, a.Claim) }}, nil
	case forward.Secondary:
		return audit.Judgement{Finding: audit.Copy}, nil
	case forward.Loser:
		return audit.Judgement{Finding: audit.Quarantined, Entry: a.Entry}, nil
	case forward.Frameless:
		c.k.to.unusable(manifestKeyOf(m.Identity))
	}
	return audit.Judgement{Finding: audit.Undecided}, nil
}

// auditJudge is judge for audits, which go on: what is undecided is looked at again soon, without waiting for the next audit.
func (c *claimKeeper) auditJudge(ctx context.Context, m accept.Manifest) (audit.Judgement, error) {
	j, err := c.judge(ctx, m)
	if err == nil && j.Finding == audit.Undecided {
		c.k.checkLater(m.Identity)
	}
	return j, err
}
