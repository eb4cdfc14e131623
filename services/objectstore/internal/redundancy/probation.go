package redundancy

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrOnProbation: the place has failed before, and another worker is finding out whether it answers again.
var ErrOnProbation = errors.New("another worker is trying the place")

// probation lets one caller at a time try a place that has not answered before, until it has answered one. A place that takes a
// connection and says nothing keeps a caller for minutes: it must not keep all of them, while the other places wait for work.
type probation struct {
	Files

	mu     sync.Mutex
	failed map[string]bool // places that did not answer the last time
	trying map[string]bool // those of them that somebody tries
}

func newProbation(f Files) *probation {
	return &probation{Files: f, failed: map[string]bool{}, trying: map[string]bool{}}
}

// enter asks for a place. first: the caller is the one who tries it.
func (p *probation) enter(place string) (first bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.failed[place] {
		return false, nil
	}
	if p.trying[place] {
		return false, fmt.Errorf("%w: %s", ErrOnProbation, place)
	}
	p.trying[place] = true
	return true, nil
}

// leave says what came of it. Anything but ErrAway is an answer.
func (p *probation) leave(place string, first bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first {
		delete(p.trying, place)
	}
	if errors.Is(err, ErrAway) {
		p.failed[place] = true
	} else {
		delete(p.failed, place)
	}
}

func (p *probation) do(place string, fn func() error) error {
	first, err := p.enter(place)
	if err != nil {
		return err
	}
	err = fn()
	p.leave(place, first, err)
	return err
}

// Make implements Files.
func (p *probation) Make(ctx context.Context, body string, size int64, policy Policy, want []File) []error {
	errs := make([]error, len(want))
	firsts := make([]bool, len(want))
	var at []int
	var allowed []File
	for i, f := range want {
		if firsts[i], errs[i] = p.enter(f.Place); errs[i] == nil {
			at, allowed = append(at, i), append(allowed, f)
		}
	}
	if len(allowed) == 0 {
		return errs
	}
	for j, err := range p.Files.Make(ctx, body, size, policy, allowed) {
		errs[at[j]] = err
		// That the body cannot be read says nothing of the place that it was to be written to.
		if errors.Is(err, ErrUnreadable) {
			err = nil
		}
		p.leave(want[at[j]].Place, firsts[at[j]], err)
	}
	return errs
}

// Verify implements Files.
func (p *probation) Verify(ctx context.Context, f File) (v Verified, err error) {
	err = p.do(f.Place, func() error {
		v, err = p.Files.Verify(ctx, f)
		return err
	})
	return v, err
}

// Stat implements Files.
func (p *probation) Stat(ctx context.Context, f File) error {
	return p.do(f.Place, func() error { return p.Files.Stat(ctx, f) })
}

// Remove implements Files.
func (p *probation) Remove(ctx context.Context, f File) error {
	return p.do(f.Place, func() error { return p.Files.Remove(ctx, f) })
}
