package folds

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Due says when the settled claims of a boot are folded. Times are Unix nanoseconds by the clock that claims have theirs from.
type Due struct {
	// Before: only claims that became durable before this time are.
	Before int64
	// Least is how many of them there have to be: a fold takes two requests of each region, whatever it folds.
	Least int
	// Old: fewer are folded, too, once the oldest one became durable before this time.
	Old int64
}

// Is reports whether a boot is due that has these settled claims from before Before.
func (d Due) Is(settled []claims.Claim) bool {
	if len(settled) == 0 {
		return false
	}
	oldest := settled[0].DurableAt
	for _, c := range settled {
		oldest = min(oldest, c.DurableAt)
	}
	return len(settled) >= d.Least || oldest < d.Old
}

// Boot folds settled claims of a boot, if it is due, and has them deleted by operations. It gives how many were, and whether there may be
// more.
func (f Folder) Boot(ctx context.Context, boot identity.Boot, due Due, do func(claims.Op) (claims.Answer, error)) (n int, more bool, m Moved, err error) {
	op := claims.Op{Kind: claims.DoFoldable, Identity: identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 1, SeqEnd: 1}, At: due.Before}
	a, err := do(op)
	if err != nil || !due.Is(a.Claims) {
		return 0, false, Moved{}, err
	}
	add := make([]Entry, len(a.Claims))
	for i, c := range a.Claims {
		if add[i], err = EntryOf(c); err != nil {
			return 0, false, Moved{}, fmt.Errorf("fold boot %s: %w", boot, err)
		}
	}
	if m, err = f.Fold(ctx, boot, a.Folds, add); err != nil {
		return 0, false, Moved{}, err
	}
	// The head has everything that was folded before; and so has what etcd says of what is above it.
	op.Kind, op.Base, op.Heads, op.Above = claims.DoFold, a.Folds.Modified, m.Heads, m.Head.Above()
	for left := a.Claims; len(left) > 0; {
		op.Claims = left[:min(len(left), claims.MaxFold)]
		left = left[len(op.Claims):]
		// Moved: others fold the boot; what is folded twice says the same.
		if b, err := do(op); err != nil || b.Outcome != claims.Applied {
			return n, false, m, err
		}
		n += len(op.Claims)
	}
	return n, len(a.Claims) == claims.MaxFoldable, m, nil
}
