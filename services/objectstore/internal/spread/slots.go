package spread

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/placement"
)

// Slot is a place of the settings.
type Slot struct {
	Name string
	// Local: the place is a directory of this machine.
	Local bool
	// Capacity is how much it may take, bytes; 0: no bound.
	Capacity int64
	// Open reaches the place. It is called again while the place is out.
	Open func(ctx context.Context) (place.Place, error)
}

// slot is a place that is there or not.
type slot struct {
	Slot
	gate gate

	mu    sync.RWMutex
	state State
	place place.Place // nil: it was never reached
	id    string      // of its identity
	ready bool        // it was recovered
	out   error       // why it is not used
}

// use gives the place; nil while it is out.
func (s *slot) use() place.Place {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.out != nil || !s.ready {
		return nil
	}
	return s.place
}

// err says why the place takes no writes.
func (s *slot) err() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.out != nil && !errors.Is(s.out, place.ErrOut):
		return fmt.Errorf("%w: %w", place.ErrOut, s.out)
	case s.out != nil:
		return s.out
	case !s.ready:
		return fmt.Errorf("%w: place %s was not opened", place.ErrOut, s.Name)
	}
	return s.place.Err()
}

func (s *slot) set(p place.Place, id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place, s.id, s.out = p, id, err
}

// join finds out who the place of a slot is, claims it when it is new, and takes it. It needs the
// store's joining.
func (s *slot) join(ctx context.Context, st *Store, taken map[string]string) error {
	p, err := s.Open(ctx)
	if err != nil {
		return err
	}
	was, err := identityOf(ctx, p)
	st.table.Lock()
	id, err := s.identity(ctx, p, st, was, err)
	if err == nil && taken[id] != "" {
		err = fmt.Errorf("%w: place %s has the identity of place %s: one is a copy of the other", place.ErrOut, s.Name, taken[id])
	}
	if err == nil {
		taken[id] = s.Name
	}
	st.table.Unlock()
	if err == nil && !st.opt.ReadOnly {
		err = p.Recover(ctx)
	}
	if err != nil {
		return errors.Join(err, p.Close())
	}
	s.set(gated{p, &s.gate}, id, nil)
	s.mu.Lock()
	s.ready = true
	s.mu.Unlock()
	return nil
}

// identity gives the identity of a place, given what it says of itself, and claims one that nobody has. It needs the table.
func (s *slot) identity(ctx context.Context, p place.Place, st *Store, was place.Identity, err error) (string, error) {
	m, save := &st.members, st.save
	if err == nil {
		return s.known(was, m, save)
	}
	if !errors.Is(err, place.ErrBlank) || st.opt.ReadOnly {
		return "", err
	}
	member := m.named(s.Name)
	if member != nil && member.Claimed {
		return "", fmt.Errorf("%w: place %s is blank, and had files: its drive is not mounted, or was replaced (then say so: lmctl store replace)", place.ErrOut, s.Name)
	}
	// The table first: a place with an identity that the table does not know would look like another
	// store's.
	if member == nil {
		m.Places = append(m.Places, Member{Name: s.Name, ID: place.NewID()})
		if err := save(); err != nil {
			return "", err
		}
		member = m.named(s.Name)
	}
	if err := p.Claim(ctx, place.Identity{Store: m.Store, Place: member.ID, Name: s.Name}); err != nil {
		return "", err
	}
	member.Claimed = true
	return member.ID, save()
}

// known checks the identity that a place has. Places may change their names and directories: a file
// is looked for on all of them, and what a drive has counts, not where it is mounted.
func (s *slot) known(was place.Identity, m *Members, save func() error) (string, error) {
	member := m.withID(was.Place)
	switch {
	case was.Store != m.Store:
		return "", fmt.Errorf("%w: place %s: %w: its store is %s, and this one is %s", place.ErrOut, s.Name, place.ErrForeign, was.Store, m.Store)
	case member == nil:
		return "", fmt.Errorf("%w: place %s is %s, which was replaced or has left: it must be emptied before it is used again", place.ErrOut, s.Name, was.Place)
	case member.Name != s.Name && (member.State != InUse || s.is() != InUse):
		return "", fmt.Errorf("%w: place %s has the drive of place %s, and one of them is not in use any more: mount the drives where they belong", place.ErrOut, s.Name, member.Name)
	case !member.Claimed:
		member.Claimed = true // the process ended between the claim and this
		return member.ID, save()
	}
	return member.ID, nil
}

// order gives slots in the order in which a body is kept on them: the same for a body whenever
// the same places are there, and another for each body, so that all places get their share.
func (s *Store) order(body string, slots []*slot) []*slot {
	candidates := make([]placement.Candidate, len(slots))
	for i, sl := range slots {
		candidates[i] = placement.Candidate{Name: sl.Name, Weight: s.standing(sl).Weight}
	}
	sorted := make([]*slot, len(slots))
	for i, at := range placement.Order(body, candidates) {
		sorted[i] = slots[at]
	}
	return sorted
}

func (s *Store) standing(sl *slot) Standing {
	if h := s.opt.Hooks.Standing; h != nil {
		return h(sl.Name)
	}
	return Standing{}
}

// takes says why no new body goes to a place; nil when one may.
func (s *Store) takes(sl *slot) error {
	if st := sl.is(); st == Draining || st == Drained {
		return fmt.Errorf("place %s: %w", sl.Name, ErrLeaving)
	}
	if s.standing(sl).Full {
		return fmt.Errorf("place %s is full: %w", sl.Name, syscall.ENOSPC)
	}
	return sl.err()
}
