package coordinator

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// foldEvery is how often settled claims are looked for that may be folded.
const foldEvery = 30 * time.Second

// foldMost bounds the folds of one boot in a row; each takes up to 32 claims.
const foldMost = 32

// decideFolded decides about an identity whose sequence numbers are folded, by the manifests of their home.
func (v *identities) decideFolded(ctx context.Context, op claims.Op, a claims.Answer) linearizer.Result {
	a, err := regions.Folded(ctx, v.buckets, op, a)
	if err != nil {
		return linearizer.Result{Err: &claims.Error{Op: op.Kind, Key: op.Identity, Err: err}}
	}
	return linearizer.Result{Answer: a}
}

// fold folds settled claims while this coordinator leads. Two that fold at once, while the leader changes, do no harm.
func (v *identities) fold(ctx context.Context) error {
	tick := time.NewTicker(foldEvery)
	defer tick.Stop()
	for {
		if o := v.open.Load(); o != nil && v.leading() {
			n, err := v.foldOld(ctx, o)
			switch {
			case err != nil && ctx.Err() == nil:
				v.log.Warn("claims could not be folded; the next round tries again", "error", err)
			case n > 0:
				v.log.Debug("claims were folded", "claims", n)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// foldOld folds what was settled before the horizon.
func (v *identities) foldOld(ctx context.Context, o *opened) (int, error) {
	before, total := v.now().Add(-v.horizon), 0
	for i, home := range o.Epoch.Regions {
		s := claims.Scan{Home: home, Retired: i == 0, States: []claims.State{claims.Settled}, Before: max(before.UnixNano(), 0), Limit: claims.MaxScan}
		for {
			p, err := o.l.Scan(ctx, s)
			if err != nil {
				return total, err
			}
			var last identity.Boot
			for _, c := range p.Claims {
				if b := c.Identity.BootOf(); b != last {
					last = b
					n, err := v.foldBoot(ctx, o.l, b, before)
					if total += n; err != nil {
						return total, err
					}
				}
			}
			if s.After = p.Next; s.After == "" {
				break
			}
		}
	}
	return total, nil
}

// foldBoot folds the settled claims of a boot that became durable before a time.
func (v *identities) foldBoot(ctx context.Context, l *linearizer.Linearizer, b identity.Boot, before time.Time) (int, error) {
	total := 0
	for range foldMost {
		op := claims.Op{Kind: claims.DoFold, Identity: identity.Batch{Agent: b.Agent, Boot: b.Boot, SeqStart: 1, SeqEnd: 1}, At: before.UnixNano()}
		r := l.Do(ctx, []claims.Op{op})[0]
		if r.Err != nil {
			return total, r.Err
		}
		total += r.Answer.Count
		v.m.folded.Add(float64(r.Answer.Count))
		if r.Answer.Count == 0 {
			break
		}
	}
	return total, nil
}
