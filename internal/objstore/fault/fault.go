// Package fault is a store decorator that injects faults by rules, deterministically:
// the same operations in the same order meet the same faults.
package fault

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Store decorates a store with faults. It is safe for concurrent use; with concurrent
// callers the order of operations, and so the choice of faults, depends on their schedule.
type Store struct {
	inner objstore.Store

	mu      sync.Mutex
	rng     *rand.Rand
	rules   []*armed
	counts  map[[2]string]int
	zombies []Delay
	nextID  int
}

type armed struct {
	Rule
	seen, used int
}

// Delay is a write that was answered with ErrUnknown and may be applied at any later time.
type Delay struct {
	ID    int // for Release, in order of arrival
	Op    string
	Key   string
	apply func(context.Context) error
}

var _ objstore.Store = (*Store)(nil)

// New decorates inner. The seed feeds Rule.Chance.
func New(inner objstore.Store, seed uint64, rules ...Rule) *Store {
	s := &Store{inner: inner, rng: rand.New(rand.NewPCG(seed, 0)), counts: map[[2]string]int{}}
	s.Add(rules...)
	return s
}

// Place implements objstore.Placed. There is no Unwrap: faults must not be passed by.
func (s *Store) Place() objstore.Place { return objstore.PlaceOf(s.inner) }

// Add appends rules.
func (s *Store) Add(rules ...Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rules {
		s.rules = append(s.rules, &armed{Rule: r})
	}
}

// Clear drops all rules; delayed writes stay.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// Count returns how many operations were requested; an empty op or family counts all.
func (s *Store) Count(op, family string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for k, c := range s.counts {
		if (op == "" || op == k[0]) && (family == "" || family == k[1]) {
			n += c
		}
	}
	return n
}

// Delayed lists the writes that were delayed and not yet released.
func (s *Store) Delayed() []Delay {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Delay(nil), s.zombies...)
}

// Release applies a delayed write, whose condition is checked now, and returns the
// answer that the original caller never got.
func (s *Store) Release(ctx context.Context, id int) error {
	s.mu.Lock()
	var apply func(context.Context) error
	for i, d := range s.zombies {
		if d.ID == id {
			apply = d.apply
			s.zombies = append(s.zombies[:i:i], s.zombies[i+1:]...)
			break
		}
	}
	s.mu.Unlock()
	if apply == nil {
		return fmt.Errorf("fault: no delayed write %d", id)
	}
	return apply(ctx)
}

// decide counts the operation and returns the rule that applies to it.
func (s *Store) decide(op, key string) (Rule, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[[2]string{op, objstore.Family(key)}]++
	for _, r := range s.rules {
		if !r.matches(op, key) || r.Times > 0 && r.used == r.Times {
			continue
		}
		// A rule counts every match, also those that it lets pass, and draws its chance only afterwards:
		// Skip and Nth stay exact under any seed.
		if r.seen++; r.seen <= r.Skip {
			continue
		}
		if r.Chance > 0 && s.rng.Float64() >= r.Chance {
			continue
		}
		r.used++
		return r.Rule, true
	}
	return Rule{}, false
}

func (s *Store) keep(op, key string, apply func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zombies = append(s.zombies, Delay{ID: s.nextID, Op: op, Key: key, apply: apply})
	s.nextID++
}

// do runs one operation under the rules. Only the apply of a delayed write may run after do
// has returned.
func (s *Store) do(ctx context.Context, op, key string, apply func(context.Context) error) error {
	r, ok := s.decide(op, key)
	if !ok {
		return apply(ctx)
	}
	fail := func(err error) error {
		return &objstore.Error{Op: op, Key: key, Err: fmt.Errorf("%w (injected)", err)}
	}
	ended := func() error {
		// The zero rule gives the error that a store without injected faults gives for an ended context.
		kind := Rule{}
		return fail(fmt.Errorf("%w: %w", kind.err(op), ctx.Err()))
	}
	switch r.Kind {
	case After:
		// Its result is dropped: the caller gets the injected error in place of the answer.
		apply(ctx)
	case Zombie:
		if isWrite(op) {
			s.keep(op, key, apply)
		}
	case Hang:
		<-ctx.Done()
		return ended()
	case Hold:
		select {
		case <-r.Gate:
			return apply(ctx)
		case <-ctx.Done():
			return ended()
		}
	}
	return fail(r.err(op))
}

// Get reads an object.
func (s *Store) Get(ctx context.Context, key string, o objstore.GetOptions) (body []byte, info objstore.Info, err error) {
	err = s.do(ctx, "get", key, func(ctx context.Context) (err error) {
		body, info, err = s.inner.Get(ctx, key, o)
		return err
	})
	if err != nil {
		return nil, objstore.Info{}, err
	}
	return body, info, nil
}

// Head describes an object.
func (s *Store) Head(ctx context.Context, key string) (info objstore.Info, err error) {
	err = s.do(ctx, "head", key, func(ctx context.Context) (err error) {
		info, err = s.inner.Head(ctx, key)
		return err
	})
	if err != nil {
		return objstore.Info{}, err
	}
	return info, nil
}

// List reads one page; rules match its prefix.
func (s *Store) List(ctx context.Context, o objstore.ListOptions) (page objstore.Page, err error) {
	err = s.do(ctx, "list", o.Prefix, func(ctx context.Context) (err error) {
		page, err = s.inner.List(ctx, o)
		return err
	})
	if err != nil {
		return objstore.Page{}, err
	}
	return page, nil
}

// Create writes the object if the key is absent.
func (s *Store) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(ctx, "create", key, body, func(ctx context.Context, body []byte) (objstore.Info, error) {
		return s.inner.Create(ctx, key, body, o)
	})
}

// Replace writes the object if its ETag still is etag.
func (s *Store) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(ctx, "replace", key, body, func(ctx context.Context, body []byte) (objstore.Info, error) {
		return s.inner.Replace(ctx, key, body, etag, o)
	})
}

// Put writes the object.
func (s *Store) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(ctx, "put", key, body, func(ctx context.Context, body []byte) (objstore.Info, error) {
		return s.inner.Put(ctx, key, body, o)
	})
}

// Delete removes the object.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.do(ctx, "delete", key, func(ctx context.Context) error { return s.inner.Delete(ctx, key) })
}

func (s *Store) write(ctx context.Context, op, key string, body []byte, put func(context.Context, []byte) (objstore.Info, error)) (objstore.Info, error) {
	body = bytes.Clone(body) // a delayed write outlives the call
	var info objstore.Info
	err := s.do(ctx, op, key, func(ctx context.Context) error {
		i, err := put(ctx, body)
		info = i
		return err
	})
	if err != nil {
		return objstore.Info{}, err
	}
	return info, nil
}
