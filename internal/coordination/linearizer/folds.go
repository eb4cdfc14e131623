package linearizer

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Folds says which identities are folded. It is safe for concurrent use.
type Folds interface {
	// Guess is what was looked at of a boot before, in which the identity was not found; false is nothing. The claim finds out whether
	// that is enough.
	Guess(identity.Batch) (claims.Looked, bool)
	// Decide answers a claim that may be folded, by what the store said of the boot's folds. An answer without an outcome is none: the
	// identity is free in what was looked at.
	Decide(context.Context, claims.Op, claims.Folds) (claims.Answer, claims.Looked, error)
	// Spans lists what is folded of a range, up to a bound of its own.
	Spans(context.Context, identity.Batch, claims.Folds) ([]claims.Span, error)
}

const (
	// lookTries bounds how often a claim looks again because others fold its boot meanwhile.
	lookTries = 4
	// maxLooks bounds the claims that look at folds at once.
	maxLooks = 64
)

// Do does operations and gives their results in the same order; they may be done in any order but for those of one boot.
// When ctx ends, what was not sent is not done, and of the rest the outcome is unknown.
func (l *Linearizer) Do(ctx context.Context, ops []claims.Op) []Result {
	ops = slices.Clone(ops)
	for i, op := range ops {
		if op.Kind == claims.DoClaim {
			// A claim of a boot that was looked at before needs no transaction more than one of a boot without folds.
			ops[i].Looked, _ = l.folds.Guess(op.Identity)
		}
	}
	out := l.do(ctx, ops)
	for try := 0; ; try++ {
		var again []int
		for i, r := range out {
			if r.Err == nil && r.Answer.Outcome == claims.Folded {
				again = append(again, i)
			}
		}
		if len(again) == 0 {
			break
		}
		if try == lookTries {
			for _, i := range again {
				out[i] = failed(ops[i], claims.ErrBusy)
			}
			break
		}
		l.claimFolded(ctx, ops, out, again)
	}
	for i, r := range out {
		if r.Err == nil && r.Answer.Outcome == claims.Found && ops[i].Kind == claims.DoLookup {
			var err error
			if out[i].Answer.Spans, err = l.folds.Spans(ctx, ops[i].Identity, r.Answer.Folds); err != nil {
				out[i] = failed(ops[i], fmt.Errorf("%w: %w", claims.ErrUnavailable, err))
			}
		}
	}
	return out
}

func failed(op claims.Op, err error) Result {
	return Result{Err: &claims.Error{Op: op.Kind, Key: op.Identity, Err: err}}
}

// claimFolded looks some claims up in folds, and claims again what is free there.
func (l *Linearizer) claimFolded(ctx context.Context, ops []claims.Op, out []Result, at []int) {
	free := make([]bool, len(at))
	var looks sync.WaitGroup
	for k, i := range at {
		select {
		case l.looks <- struct{}{}:
		case <-ctx.Done():
			out[i] = failed(ops[i], fmt.Errorf("%w: %w", claims.ErrCanceled, ctx.Err()))
			continue
		}
		looks.Go(func() {
			defer func() { <-l.looks }()
			a, looked, err := l.folds.Decide(ctx, ops[i], out[i].Answer.Folds)
			switch {
			case err != nil:
				// Nothing was claimed.
				out[i] = failed(ops[i], fmt.Errorf("%w: %w", claims.ErrUnavailable, err))
			case a.Outcome != 0:
				a.Epoch = out[i].Answer.Epoch
				out[i] = Result{Answer: a}
			default:
				ops[i].Looked, free[k] = looked, true
			}
		})
	}
	looks.Wait()
	var again []claims.Op
	var to []int
	for k, i := range at {
		if free[k] {
			again, to = append(again, ops[i]), append(to, i)
		}
	}
	for k, r := range l.do(ctx, again) {
		out[to[k]] = r
	}
}
