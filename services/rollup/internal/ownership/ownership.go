// Package ownership says which shards are a worker's, and for how long. It makes work go well
// and is not needed for it to be right: what decides is the conditional create of plans and
// manifests, so that losing a shard without noticing costs double work at worst.
package ownership

import (
	"context"
	"errors"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// Grant is one shard that this worker owns for a while.
type Grant struct {
	Shard shard.ID
	// Fence grows with every grant; it goes into what is published.
	Fence uint64
	// Check gives an error when the grant is over as far as this worker can know, which it
	// may before its context has ended; nil asks nobody.
	Check func() error
	// Held gives an error when another worker may have the shard, which none has while this one's work still ends; nil
	// asks nobody.
	Held func() error
}

// Taken gives an error when another worker may have the shard.
func (g Grant) Taken() error {
	if g.Held == nil {
		return nil
	}
	return g.Held()
}

// Lost gives an error when the grant is over.
func (g Grant) Lost() error {
	if g.Check == nil {
		return nil
	}
	return g.Check()
}

// Ownership gives shards to this worker.
type Ownership interface {
	// Own calls work in a goroutine of its own for each grant, until ctx ends. The context
	// of work ends when the grant is lost; the shard is given back when work returns. Own
	// returns after every work has.
	Own(ctx context.Context, shards uint32, work func(context.Context, Grant) error) error
}

// Static owns fixed shards for ever, under one fence: a single worker, or several that were
// configured to share the shards. Two that own the same are harmless.
type Static struct {
	// Shards that are owned; nil is all.
	Shards []shard.ID
	Fence  uint64
}

// Own runs work for every shard.
func (o Static) Own(ctx context.Context, shards uint32, work func(context.Context, Grant) error) error {
	mine := o.Shards
	if mine == nil {
		for id := range shards {
			mine = append(mine, shard.ID(id))
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, len(mine))
	for i, id := range mine {
		if uint32(id) >= shards {
			continue
		}
		wg.Go(func() { errs[i] = work(ctx, Grant{Shard: id, Fence: o.Fence}) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Coordinated owns what a coordinator gives.
type Coordinated struct{ Owner *coordinator.Owner }

// Err says why the worker can own nothing now: it has no lease of a coordinator.
func (c Coordinated) Err() error { return c.Owner.Err() }

// Own holds a session with a coordinator.
func (c Coordinated) Own(ctx context.Context, _ uint32, work func(context.Context, Grant) error) error {
	return c.Owner.Run(ctx, func(ctx context.Context, g coordinator.Grant) error {
		return work(ctx, Grant{Shard: g.Shard, Fence: g.Fence, Check: g.Check, Held: g.Held})
	})
}
