package reconciler

import (
	"context"
	"fmt"
	"sync"
)

// round is the work that one scan found. It ends when all of its manifests have ended.
type round struct {
	mu      sync.Mutex
	pending int
	failed  int
	found   int
	sealed  bool
	ended   bool
	over    chan struct{}
}

func newRound() *round { return &round{over: make(chan struct{})} }

func (r *round) join() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending++
	r.found++
}

func (r *round) leave(ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending--
	if !ok {
		r.failed++
	}
	r.end()
}

// seal says that no more work joins. Until then the round can't end, although all of it may have ended.
func (r *round) seal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = true
	r.end()
}

func (r *round) end() {
	if r.sealed && r.pending == 0 && !r.ended {
		r.ended = true
		close(r.over)
	}
}

// done reports whether the round, which is sealed, has ended with everything reconciled.
func (r *round) done() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended && r.failed == 0
}

// wait seals the round and waits for its end; nil means that all of it is reconciled.
func (r *round) wait(ctx context.Context) error {
	r.seal()
	select {
	case <-r.over:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed > 0 {
		return fmt.Errorf("%d of %d manifests were not reconciled", r.failed, r.found)
	}
	return nil
}
