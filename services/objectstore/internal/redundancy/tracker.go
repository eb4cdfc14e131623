package redundancy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// tracker knows the places: who is there, and since when one is away. Who was there last is kept in the ledger, so that a
// place that is away at a start is not taken for one that was replaced.
type tracker struct {
	ledger  *ledger.Ledger
	files   Files
	reserve int64 // free bytes below which a place is full

	mu    sync.Mutex
	known map[string]*known // by name
}

type known struct {
	ID string `json:"id"`
	// Seen is when the place last answered, Unix nanoseconds.
	Seen int64 `json:"seen_unix_ns"`

	status PlaceState
	up     bool
}

// valueOfPlaces is the name under which the ledger keeps who was at each place.
const valueOfPlaces = "places"

func newTracker(l *ledger.Ledger, f Files, reserve int64) (*tracker, error) {
	t := &tracker{ledger: l, files: f, reserve: reserve, known: map[string]*known{}}
	b, err := l.Value(valueOfPlaces)
	if err == nil && b != nil {
		err = json.Unmarshal(b, &t.known)
	}
	if err != nil {
		return nil, fmt.Errorf("places of the ledger: %w", err)
	}
	return t, nil
}

// news is what a look at the places has found.
type news struct {
	came    []string // identities of places that answer now and did not before, or were not there
	changed bool     // a place has come, gone, or is another
}

// look asks every place.
func (t *tracker) look(ctx context.Context, now time.Time) (n news, err error) {
	list := t.files.Status(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	next, dirty := map[string]*known{}, false
	for _, s := range list {
		k := t.known[s.Name]
		if k == nil {
			k = &known{Seen: now.UnixNano()}
			n.changed, dirty = true, true
		}
		was := *k
		k.status, k.up = s, s.Err == nil && s.ID != ""
		if s.ID != "" && s.ID != k.ID {
			k.ID = s.ID
			n.changed, dirty = true, true
		}
		if k.up {
			k.Seen = now.UnixNano()
		}
		if k.up && (!was.up || was.ID != k.ID) {
			n.came = append(n.came, k.ID)
			dirty = true
		}
		if was.up && !k.up {
			dirty = true // Seen matters from now on
		}
		next[s.Name] = k
	}
	n.changed = n.changed || len(next) != len(t.known)
	t.known = next
	if !dirty && !n.changed {
		return n, nil
	}
	b, err := json.Marshal(t.known)
	if err != nil {
		return n, err
	}
	return n, t.ledger.SetValue(valueOfPlaces, b)
}

// places gives what plans see.
func (t *tracker) places() []Place {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []Place
	for name, k := range t.known {
		if k.ID == "" {
			continue // it never said who it is, so nothing can be kept for it
		}
		full := k.status.Free >= 0 && k.status.Free < t.reserve
		list = append(list, Place{ID: k.ID, Name: name, Up: k.up, Since: time.Unix(0, k.Seen), Full: full, Old: k.status.Old})
	}
	slices.SortFunc(list, func(a, b Place) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// away notes that a place did not answer a worker, without waiting for the next look.
func (t *tracker) away(id string, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.known {
		if k.ID == id && k.up {
			k.up, k.status.Err = false, cause
		}
	}
}

// name is what the settings call a place; the identity of one that they do not have.
func (t *tracker) name(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, k := range t.known {
		if k.ID == id {
			return name
		}
	}
	return id
}

// ids gives who is at places, as far as it is known.
func (t *tracker) ids(names []string) (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range names {
		if k := t.known[n]; k != nil && k.ID != "" {
			ids = append(ids, k.ID)
		}
	}
	return ids
}

// PlaceStatus is a place as an operator sees it.
type PlaceStatus struct {
	Name  string    `json:"name"`
	ID    string    `json:"id"`
	Local bool      `json:"local"`
	Up    bool      `json:"up"`
	Error string    `json:"error,omitempty"`
	Seen  time.Time `json:"seen_at"`
	Free  int64     `json:"free_bytes"` // -1: not known
	Full  bool      `json:"full"`
}

func (t *tracker) statuses() []PlaceStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]PlaceStatus, 0, len(t.known))
	for name, k := range t.known {
		s := PlaceStatus{Name: name, ID: k.ID, Local: k.status.Local, Up: k.up, Seen: time.Unix(0, k.Seen).UTC(), Free: k.status.Free}
		if k.status.Err != nil {
			s.Error = k.status.Err.Error()
		}
		s.Full = s.Free >= 0 && s.Free < t.reserve
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b PlaceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
