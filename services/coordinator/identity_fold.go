package coordinator

import (
	"context"
	"errors"
	"math"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	// foldEvery is the least time between two rounds that look for claims which may be folded, or a tenth of the horizon where that
	// is less; rounds take a tenth of the time at most.
	foldEvery = 30 * time.Second
	foldDuty  = 10
	// foldLeast is how many settled claims of a boot are folded at once: a fold takes two requests of each region.
	foldLeast = 64
	// foldMost bounds the folds of one boot in a row; each takes up to claims.MaxFoldable claims.
	foldMost = 4
	// maxMarks bounds the marks of an epoch.
	maxMarks = 64
)

// mark is a revision that etcd had at a time.
type mark struct {
	at       time.Time
	revision int64
}

// fold folds settled claims, and forgets idle boots, while this coordinator leads. Two that fold at once, while the leader changes, do no
// harm.
func (v *identities) fold(ctx context.Context) error {
	for {
		began := time.Now()
		o := v.open.Load()
		if o == nil || !v.leading() {
			// Another coordinator counts them.
			v.census.Store(nil)
		} else {
			n, err := v.foldOld(ctx, o)
			if err == nil {
				err = v.forgetIdle(ctx, o)
			}
			switch {
			case err != nil && ctx.Err() == nil:
				v.log.Warn("claims could not be folded; the next round tries again", "error", err)
			case n > 0:
				v.log.Debug("claims were folded", "claims", n)
			}
		}
		pause := time.NewTimer(max(min(foldEvery, v.horizon/10), foldDuty*time.Since(began)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// foldOld folds what was settled before the horizon. A boot that fails does not keep others from it.
func (v *identities) foldOld(ctx context.Context, o *opened) (int, error) {
	now, total := v.now(), 0
	due := folds.Due{Before: max(now.Add(-v.horizon).UnixNano(), 0), Least: foldLeast, Old: max(now.Add(-v.idle).UnixNano(), 0)}
	// All of them are read in any case, so all are counted.
	s := claims.Scan{States: []claims.State{claims.Claimed, claims.Durable, claims.Settled}, Before: math.MaxInt64, Limit: claims.MaxScan}
	seen := newCensus(now)
	var failed error
	var of identity.Boot
	var settled []claims.Claim // of that boot, as far as they are needed to say whether it is due
	flush := func() {
		if due.Is(settled) {
			n, err := v.foldBoot(ctx, o, of, due)
			if total += n; err != nil {
				failed = err
				seen.failed(settled, v.horizon, v.idle)
			}
		}
		settled = settled[:0]
	}
	for {
		p, err := o.l.Scan(ctx, s)
		if err != nil {
			return total, errors.Join(err, failed)
		}
		seen.unreadable += p.Unreadable
		for _, c := range p.Claims {
			seen.add(c)
			if c.State != claims.Settled || c.DurableAt >= due.Before {
				continue
			}
			if b := c.Identity.BootOf(); b != of {
				flush()
				of = b
			}
			if settled = append(settled, c); ctx.Err() != nil || o.l.Stopped() != nil {
				return total, errors.Join(failed, ctx.Err())
			}
		}
		if s.After = p.Next; s.After == "" {
			flush()
			v.census.Store(seen)
			return total, failed
		}
	}
}

// foldBoot folds the settled claims of a boot that is due.
func (v *identities) foldBoot(ctx context.Context, o *opened, b identity.Boot, due folds.Due) (int, error) {
	total := 0
	do := func(op claims.Op) (claims.Answer, error) {
		r := o.l.Do(ctx, []claims.Op{op})[0]
		return r.Answer, r.Err
	}
	for range foldMost {
		n, more, m, err := o.folder.Boot(ctx, b, due, do)
		total += n
		v.m.folded.Add(float64(n))
		if err != nil {
			v.m.foldsFail.Inc()
			return total, err
		}
		if len(m.Failed) > 0 {
			v.m.foldsAway.Inc()
		}
		if n > 0 {
			o.folded.Moved(m)
		}
		if !more {
			break
		}
	}
	return total, nil
}

// forgetIdle forgets boots whose folds were not touched for long, so that etcd does not keep every boot that ever was.
func (v *identities) forgetIdle(ctx context.Context, o *opened) error {
	now, before := v.now(), int64(0)
	for _, m := range o.marks {
		if now.Sub(m.at) >= v.idle {
			before = m.revision
		}
	}
	for after := ""; ; {
		boots, next, revision, err := o.l.Boots(ctx, after)
		if err != nil {
			return err
		}
		if after == "" && (len(o.marks) == 0 || now.Sub(o.marks[len(o.marks)-1].at) >= v.idle/(maxMarks-4)) {
			// One that is older than the one before it and long ago says nothing more.
			for len(o.marks) > 1 && now.Sub(o.marks[1].at) >= v.idle || len(o.marks) >= maxMarks {
				o.marks = o.marks[1:]
			}
			o.marks = append(o.marks, mark{now, revision})
		}
		var ops []claims.Op
		for _, k := range boots {
			if k.Modified <= before {
				ops = append(ops, claims.Op{Kind: claims.DoForget, Identity: identity.Batch{Agent: k.Boot.Agent, Boot: k.Boot.Boot, SeqStart: 1, SeqEnd: 1}, Base: k.Modified})
			}
		}
		for _, r := range o.l.Do(ctx, ops) {
			if r.Err != nil {
				return r.Err
			}
			if r.Answer.Outcome == claims.Applied {
				v.m.forgotten.Inc()
			}
		}
		if after = next; after == "" {
			return nil
		}
	}
}
