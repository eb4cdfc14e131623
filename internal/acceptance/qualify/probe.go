package qualify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// probe is one run. Its keys are below layout.ProbePrefix and the run id, except those of
// the policy checks.
type probe struct {
	back   objstore.Store // the back end itself
	store  objstore.Store // writes go to back, reads to the caller's store with its policy
	opts   Options
	mu     sync.Mutex
	keys   []string // written, or perhaps written, by this run
	detail string   // of the running check
}

func newProbe(store objstore.Store, o Options) *probe {
	back := objstore.Unwrap(store)
	return &probe{opts: o, back: back, store: struct {
		objstore.Reader
		objstore.Writer
	}{store, back}}
}

// skipped is the reason of a check that could not run.
type skipped string

func (s skipped) Error() string { return string(s) }

func (p *probe) key(name string) string { return p.own(layout.ProbePrefix + p.opts.RunID + "/" + name) }

func (p *probe) own(key string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.keys, key) {
		p.keys = append(p.keys, key)
	}
	return key
}

func (p *probe) body(name string) []byte {
	return []byte("lightmetrics store probe " + p.opts.RunID + " " + name)
}

// createTries bounds the attempts of one create whose outcome is unknown or conflicting.
const createTries = 5

// create creates an object and does not fail for a transient fault: an unknown outcome is tried
// again, and an object that then exists with these bytes is its own. So a probe distinguishes a
// store without the needed semantics from one that is slow for a moment.
func (p *probe) create(ctx context.Context, key string, body []byte) error {
	open := false
	for try := 1; ; try++ {
		_, err := p.store.Create(ctx, key, body, objstore.PutOptions{})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, objstore.ErrExists) && open:
			return p.holds(ctx, key, body)
		case errors.Is(err, objstore.ErrUnknown):
			open = true
		case !errors.Is(err, objstore.ErrConflict):
			return err
		}
		if try == createTries || ctx.Err() != nil {
			return err
		}
	}
}

// holds checks that the object has exactly these bytes.
func (p *probe) holds(ctx context.Context, key string, body []byte) error {
	got, _, err := p.store.Get(ctx, key, objstore.GetOptions{})
	if err == nil && !bytes.Equal(got, body) {
		err = fmt.Errorf("%q holds %d other bytes", key, len(got))
	}
	return err
}

// refused returns nil when err is one of the refusals, else an error that says what was wanted of the request what.
func refused(what string, err error, refusals ...error) error {
	for _, r := range refusals {
		if errors.Is(err, r) {
			return nil
		}
	}
	if err == nil {
		return fmt.Errorf("%s succeeded, want %q", what, refusals[0])
	}
	return fmt.Errorf("%s: want %q: %w", what, refusals[0], err)
}

func conditionalCreate(ctx context.Context, p *probe) error {
	key, first := p.key("create"), p.body("first")
	if err := p.create(ctx, key, first); err != nil {
		return err
	}
	for _, body := range [][]byte{first, p.body("second")} {
		_, err := p.store.Create(ctx, key, body, objstore.PutOptions{})
		if err := refused("a second create", err, objstore.ErrExists, objstore.ErrConflict); err != nil {
			return err
		}
	}
	return p.holds(ctx, key, first)
}

func racingCreates(ctx context.Context, p *probe) error {
	lost, conflicts := 0, 0
	for round := range p.opts.Rounds {
		name := "race-" + strconv.Itoa(round)
		key := p.key(name)
		errs := make([]error, p.opts.Racers)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range errs {
			// All racers wait for one signal: goroutines that start one by one would rarely overlap.
			wg.Go(func() {
				<-start
				_, errs[i] = p.store.Create(ctx, key, p.body(name+" "+strconv.Itoa(i)), objstore.PutOptions{})
			})
		}
		close(start)
		wg.Wait()
		winner, winners := -1, 0
		var open error
		for i, err := range errs {
			switch {
			case err == nil:
				winner = i
				winners++
			case errors.Is(err, objstore.ErrExists):
				lost++
			case errors.Is(err, objstore.ErrConflict):
				conflicts++
			case open == nil:
				open = fmt.Errorf("racer %d of %d: %w", i, len(errs), err)
			}
		}
		// Two winners fail the store even if a third racer had no answer; with fewer, a missing answer could hide the winner.
		if winners <= 1 && open != nil {
			return open
		}
		if winners != 1 {
			return fmt.Errorf("round %d: %d of %d concurrent creates succeeded, want 1", round, winners, len(errs))
		}
		if err := p.holds(ctx, key, p.body(name+" "+strconv.Itoa(winner))); err != nil {
			return fmt.Errorf("the winner's object: %w", err)
		}
	}
	p.detail = fmt.Sprintf("%d rounds of %d: %d exists, %d conflicts", p.opts.Rounds, p.opts.Racers, lost, conflicts)
	return nil
}
