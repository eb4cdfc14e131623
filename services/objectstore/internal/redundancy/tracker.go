package redundancy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/placement"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// tracker knows the places: who is there, and since when one is away. Who was there last is kept in the ledger, so that a
// place that is away at a start is not taken for one that was replaced.
type tracker struct {
	ledger  *ledger.Ledger
	files   Files
	reserve int64 // free bytes below which a place is full

	looking sync.Mutex // a look that began earlier must not end later

	mu    sync.Mutex
	known map[string]*known // by name
	// stand is what writers ask, who must not wait for a look.
	stand atomic.Pointer[map[string]spread.Standing] // by name
}

type known struct {
	ID string `json:"id"`
	// Seen is when the place last answered, Unix nanoseconds.
	Seen int64 `json:"seen_unix_ns"`
	// Weight is the room that the place was found to have, as it was adopted; 0: it is not known.
	Weight int64 `json:"weight_bytes,omitempty"`
	// State is what was to become of it at the last look.
	State spread.State `json:"state,omitempty"`
	// Listed is the identity with which the place was last compared with the ledger: of others the ledger may know nothing.
	Listed string `json:"listed_id,omitempty"`

	status PlaceState
	up     bool
	full   bool
	use    ledger.Use
	at     ledger.Use // the use when the place was looked at
	free   int64      // of what it may take; -1: not known
	room   int64      // free, and what its files take; 0: not known
}

// measure finds out how much room a place has. One that is away keeps what was known of it.
func (k *known) measure(use ledger.Use, reserve int64) (changed bool) {
	s := k.status
	if k.use = use; k.up && s.Local && s.Free < 0 {
		// A drive that did not say this time: what was known of it stays. Nothing else tells the size of one, not even a capacity.
		if k.room == 0 {
			k.free = -1
		}
		return false
	}
	if k.at = use; !k.up {
		return false
	}
	k.free = min(s.Free, mostRoom)
	if left := max(0, s.Capacity-use.Bytes); s.Capacity > 0 && (k.free < 0 || left < k.free) {
		k.free = left
	}
	weight, full := k.Weight, k.full
	if k.room = 0; k.free < 0 {
		k.Weight, k.full = 0, false
	} else {
		// The sum stays the same when the store fills the place, so that this moves nothing.
		if k.room = k.free + use.Bytes; s.Capacity > 0 {
			k.room = min(k.room, s.Capacity)
		}
		k.Weight = placement.Adopt(k.Weight, k.room)
		k.full = placement.Full(k.full, k.free, k.room, reserve)
	}
	return weight != k.Weight || full != k.full
}

// grow notes files that came since the place was looked at. They may fill it, and change nothing else.
func (k *known) grow(use ledger.Use, reserve int64) (full bool) {
	if k.free < 0 || k.full || !k.up {
		return false
	}
	k.use = use
	k.full = placement.Full(false, max(0, k.free-(use.Bytes-k.at.Bytes)), k.room, reserve)
	return k.full
}

// mostRoom is more than any place has, bytes.
const mostRoom = 1 << 60

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
	t.looking.Lock()
	defer t.looking.Unlock()
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
		if s.State != k.State || s.State == spread.Lost && k.ID != "" {
			k.State = s.State
			n.changed, dirty = true, true
		}
		if s.State == spread.Lost {
			k.ID = "" // it is nobody: what it had is gone
		}
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
		if k.measure(t.ledger.Use(k.ID), t.reserve) {
			n.changed, dirty = true, true
		}
		next[s.Name] = k
	}
	n.changed = n.changed || len(next) != len(t.known)
	t.known = next
	t.publish()
	if !dirty && !n.changed {
		return n, nil
	}
	return n, t.save()
}

// grew is told of places that got a file.
func (t *tracker) grew(ids ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	filled := false
	for _, k := range t.known {
		if slices.Contains(ids, k.ID) && k.grow(t.ledger.Use(k.ID), t.reserve) {
			filled = true
		}
	}
	if filled {
		t.publish()
	}
}

// publish makes known how places stand. It needs the lock.
func (t *tracker) publish() {
	m := make(map[string]spread.Standing, len(t.known))
	for name, k := range t.known {
		m[name] = spread.Standing{Weight: k.Weight, Full: k.full}
	}
	t.stand.Store(&m)
}

// standing is how a place stands, as of the last look.
func (t *tracker) standing(name string) spread.Standing {
	if m := t.stand.Load(); m != nil {
		return (*m)[name]
	}
	return spread.Standing{}
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
		list = append(list, Place{ID: k.ID, Name: name, Up: k.up, Since: time.Unix(0, k.Seen), Full: k.full, Weight: k.Weight, Leaving: k.State != spread.InUse, Old: k.status.Old})
	}
	slices.SortFunc(list, func(a, b Place) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// stranger: a place of the settings never said who it is, as far as the ledger knows. It may have files all the same: of a lost ledger,
// or of a time before it.
func (t *tracker) stranger() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.known {
		if k.ID == "" && k.State != spread.Lost {
			return true
		}
	}
	return false
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

// listed gives who was at a place last, and whether the ledger knows what it had; false when the settings have none of that name.
func (t *tracker) listed(name string) (id string, listed, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.known[name]
	if k == nil || k.status.Old {
		return "", false, false
	}
	return k.ID, k.ID != "" && k.Listed == k.ID, true
}

// compared notes that the ledger knows what a place has.
func (t *tracker) compared(id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	dirty := false
	for _, k := range t.known {
		if k.ID == id && k.Listed != id {
			k.Listed, dirty = id, true
		}
	}
	if !dirty {
		return nil
	}
	return t.save()
}

// save keeps what is known of the places. It needs the lock.
func (t *tracker) save() error {
	b, err := json.Marshal(t.known)
	if err != nil {
		return err
	}
	return t.ledger.SetValue(valueOfPlaces, b)
}

// PlaceStatus is a place as an operator sees it.
type PlaceStatus struct {
	Name  string `json:"name"`
	ID    string `json:"id"`
	Local bool   `json:"local"`
	Up    bool   `json:"up"`
	// State is what is to become of the place: empty, draining, drained or lost.
	State string    `json:"state,omitempty"`
	Error string    `json:"error,omitempty"`
	Seen  time.Time `json:"seen_at"`
	// Free is what the place may still take, bytes; -1: not known.
	Free int64 `json:"free_bytes"`
	Full bool  `json:"full"`
	// Files and Used are what the store has on the place, as far as the ledger knows.
	Files int64 `json:"files"`
	Used  int64 `json:"used_bytes"`
	// Room is Free and Used together; 0: not known. Capacity is the setting; 0: none.
	Room     int64 `json:"room_bytes"`
	Capacity int64 `json:"capacity_bytes"`
	// Weight is what the place counts when places are chosen, bytes; 0: as much as the largest.
	Weight int64 `json:"weight_bytes"`
}

// Is says in a word how the place is: up, away, full, draining, drained or lost.
func (p PlaceStatus) Is() string {
	switch {
	case p.State == string(spread.Lost):
		return p.State
	case !p.Up:
		return "away"
	case p.State != "":
		return p.State
	case p.Full:
		return "full"
	}
	return "up"
}

func (t *tracker) statuses() []PlaceStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]PlaceStatus, 0, len(t.known))
	for name, k := range t.known {
		s := PlaceStatus{Name: name, ID: k.ID, State: string(k.State), Local: k.status.Local, Up: k.up, Seen: time.Unix(0, k.Seen).UTC(), Free: -1, Full: k.full,
			Files: k.use.Files, Used: k.use.Bytes, Room: k.room, Capacity: k.status.Capacity, Weight: k.Weight}
		if k.up {
			s.Free = k.free
		}
		if k.status.Err != nil {
			s.Error = k.status.Err.Error()
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b PlaceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
