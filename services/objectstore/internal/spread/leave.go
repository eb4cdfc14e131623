package spread

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

// State is what is to become of a place. It is kept in the list of the places, which says who they are.
type State string

// States of a place.
const (
	InUse    State = ""
	Draining State = "draining" // it gets nothing more, and what it has is being moved to the others
	Drained  State = "drained"  // it was found empty: the settings may leave it out
	Lost     State = "lost"     // it will not return, with all that it had
)

// ErrLeaving: a place is being emptied, and takes no files.
var ErrLeaving = errors.New("the place is being emptied")

// StateError says that a place cannot get a state.
type StateError struct {
	Place    string
	From, To State
	Known    bool // there is a place of this name
	// Swapped: the drive of another place is mounted there.
	Swapped bool
}

func (e *StateError) Error() string {
	if !e.Known {
		return fmt.Sprintf("place %s: there is none of that name", e.Place)
	}
	if e.Swapped {
		return fmt.Sprintf("place %s has the drive of another place: mount the drives where they belong first", e.Place)
	}
	name := func(s State) string {
		if s == InUse {
			return "in use"
		}
		return string(s)
	}
	return fmt.Sprintf("place %s is %s, and cannot become %s", e.Place, name(e.From), name(e.To))
}

// allowed reports whether a place may go from a state to another. What is lost stays lost: lmctl store replace brings another
// drive of its name.
func (s State) allowed(to State) bool {
	switch to {
	case InUse:
		return s == Draining || s == Drained
	case Draining:
		return s == InUse
	case Drained:
		return s == Draining
	case Lost:
		return s != Lost
	}
	return false
}

// MissingError says that settings leave out places that the store has files on.
type MissingError struct{ Places []string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("the store has files on places that are not in the settings: %s. Put each back, and empty it (lmctl store places drain) or say that it is lost (lmctl store places lost) before it is left out",
		strings.Join(e.Places, ", "))
}

// noneMissing refuses settings that leave out a place with files: their bodies would look lost. A place that was emptied, or is lost
// anyhow, is the store's no more.
func (s *Store) noneMissing() error {
	var missing []string
	var kept []Member
	for _, m := range s.members.Places {
		found := false
		for _, sl := range s.slots {
			found = found || sl.Name == m.Name
		}
		left := m.State == Drained || m.State == Lost || !m.Claimed
		switch {
		case found:
			kept = append(kept, m)
		case !left:
			missing = append(missing, m.Name)
		default:
			s.log.Info("a place has left the store", "place", m.Name, "identity", m.ID, "state", m.State)
		}
	}
	if missing != nil {
		return &MissingError{missing}
	}
	s.members.Places = kept
	return nil
}

// SetState changes what is to become of a place, durably. A place that is being emptied begins no file when SetState has returned.
func (s *Store) SetState(name string, to State) error {
	s.joining.Lock()
	defer s.joining.Unlock()
	m := s.members.named(name)
	if m == nil {
		return &StateError{Place: name, To: to, Known: s.swapped(name, ""), Swapped: s.swapped(name, "")}
	}
	from := m.State
	if !from.allowed(to) {
		return &StateError{Place: name, From: from, To: to, Known: true}
	}
	if s.swapped(name, m.ID) {
		return &StateError{Place: name, From: from, To: to, Known: true, Swapped: true}
	}
	m.State = to
	if err := s.save(); err != nil {
		m.State = from
		return err
	}
	for _, sl := range s.slots {
		if sl.Name == name {
			if p := sl.become(to); p != nil {
				_ = p.Close() // nothing is read or written there any more
			}
		}
	}
	return nil
}

// swapped: the drive of a place is in use under another name, or another drive under its name.
func (s *Store) swapped(name, id string) bool {
	for _, sl := range s.slots {
		if is := sl.identityIs(); is != "" && (sl.Name == name) != (is == id) {
			return true
		}
	}
	return false
}

// Writing is how many files are being written to a place.
func (s *Store) Writing(name string) int {
	for _, sl := range s.slots {
		if sl.Name == name {
			return sl.gate.writing()
		}
	}
	return 0
}

// become gives a slot the state of its place, and gives the place back that is not used any more.
func (s *slot) become(to State) (left place.Place) {
	s.gate.set(to)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = to
	if to == Lost {
		left = s.place
		s.place, s.id, s.ready, s.out = nil, "", false, fmt.Errorf("%w: place %s was declared lost", place.ErrOut, s.Name)
	}
	return left
}

func (s *slot) is() State {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state
}

func (s *slot) identityIs() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.id
}

// gate counts the files that are being written to a place, and begins none where the place is not in use.
type gate struct {
	mu   sync.Mutex
	open int
	is   State
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.is == InUse {
		g.open++
	}
	return g.is == InUse
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}

func (g *gate) set(to State) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.is = to
}

func (g *gate) lost() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.is == Lost
}

func (g *gate) writing() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

// gated is a place behind a gate.
type gated struct {
	place.Place
	gate *gate
}

// Create implements place.Place.
func (p gated) Create(ctx context.Context, name string) (place.Writer, error) {
	if !p.gate.enter() {
		return nil, fmt.Errorf("place %s: create %s: %w", p.Name(), name, ErrLeaving)
	}
	w, err := p.Place.Create(ctx, name)
	if err != nil {
		p.gate.leave()
		return nil, err
	}
	return &gatedWriter{Writer: w, gate: p.gate, place: p.Name()}, nil
}

// gatedWriter is a file that is being written, until it is finished or discarded. A Finish that failed is followed by Discard.
type gatedWriter struct {
	place.Writer
	gate  *gate
	place string
	once  sync.Once
}

// Finish implements place.Writer. A file counts for nothing on a place that was declared lost while it was written: nobody reads it.
func (w *gatedWriter) Finish() error {
	err := w.Writer.Finish()
	if err == nil && w.gate.lost() {
		err = fmt.Errorf("%w: place %s was declared lost", place.ErrOut, w.place)
	}
	if err == nil {
		w.once.Do(w.gate.leave)
	}
	return err
}

// Discard implements place.Writer.
func (w *gatedWriter) Discard() {
	w.Writer.Discard()
	w.once.Do(w.gate.leave)
}
