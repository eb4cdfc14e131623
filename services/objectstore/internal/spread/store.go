package spread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

// Located is a fragment, and the place that has it.
type Located struct {
	Place string // its name
	erasure.Fragment
}

// Hooks tell what happens, and know where things are. Each may be nil. They must not block, and must
// not call the store.
type Hooks struct {
	// Staged: a body is durable as copies on the named places.
	Staged func(id string, size int64, places []string)
	// Removed: a body was removed from the local places that are there. The others may still have files of it. Without
	// this hook it is removed from those in buckets, too.
	Removed func(id string)
	// Degraded: a fragment was found missing or damaged, perhaps again. Without this hook the store mends it by
	// itself, while Run runs.
	Degraded func(l Located, err error)
	// Locate says where the fragments of a body are; false where it does not know. What it says is only
	// a hint: when it does not suffice, all places are listed.
	Locate func(id string) ([]Located, bool)
	// Standing says how a place stands. Without this hook all are equal, and a place is full when it says so.
	Standing func(place string) Standing
	// Offered opens a body that no place has yet, where the log has its bytes; nil: it has none. They are used only when nothing
	// else is found.
	Offered func(id string) Bytes
}

// Standing is what decides whether a place gets a new body.
type Standing struct {
	// Weight is its room, bytes; 0: it is not known.
	Weight int64
	Full   bool
}

// Bytes are those of a body that somebody else has.
type Bytes interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Options configure a store.
type Options struct {
	// FS has the list of the places: the store's directory.
	FS vfs.FS
	// Slots are the places, in the order of the settings.
	Slots []Slot
	// AckCopies is on how many local places a body is durable before it counts as written; at least 1.
	AckCopies int
	// Old has bodies of the time before places; it may be nil. Nothing is written to it.
	Old *body.Files
	Log *slog.Logger
	// DecodeMemory bounds the memory of readers that have to decode, bytes. 0: 128 MiB.
	DecodeMemory int64
	Hooks        Hooks
	// ReadOnly changes nothing: no place is claimed, nothing is removed or mended.
	ReadOnly bool
}

// Store is a body.Store over places.
type Store struct {
	opt    Options
	log    *slog.Logger
	slots  []*slot
	budget *erasure.Budget
	repair chan Located
	counts counters

	joining sync.Mutex // held while places are opened
	table   sync.Mutex // held with joining while one of them changes members, or the identities that are taken
	members Members    // needs joining
	coded   atomic.Bool

	mu     sync.Mutex
	open   map[string]int  // readers of each body
	hidden map[string]bool // removed, and kept for their readers
}

type counters struct{ decoded, repaired, degraded atomic.Int64 }

// Stats are figures since the start.
type Stats struct {
	// DecodedBytes were computed from other shards for readers.
	DecodedBytes int64
	// Degraded fragments were found missing or damaged by readers.
	Degraded int64
	// Repaired fragments were written again.
	Repaired int64
	Places   []PlaceStats
}

// PlaceStats describe a place.
type PlaceStats struct {
	Name  string
	Local bool
	ID    string // of its identity; empty when it was never reached
	State State
	Err   error // why it takes no writes
	Free  int64 // bytes; -1 unknown
	// Capacity is how much it may take by the settings, bytes; 0: no bound.
	Capacity int64
}

const (
	defaultDecodeMemory = 128 << 20
	repairQueue         = 256
)

// Open opens the places that can be opened. One that cannot is out: that is logged, bodies are read
// from the others, and Retry tries again.
func Open(ctx context.Context, opt Options) (*Store, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.DecodeMemory <= 0 {
		opt.DecodeMemory = defaultDecodeMemory
	}
	local := 0
	for _, s := range opt.Slots {
		if s.Local {
			local++
		}
	}
	if opt.AckCopies < 1 || opt.AckCopies > local {
		return nil, fmt.Errorf("%d copies on %d local places are not possible", opt.AckCopies, local)
	}
	s := &Store{opt: opt, log: opt.Log, budget: erasure.NewBudget(opt.DecodeMemory), repair: make(chan Located, repairQueue),
		open: map[string]int{}, hidden: map[string]bool{}}
	for _, o := range opt.Slots {
		s.slots = append(s.slots, &slot{Slot: o})
	}
	var err error
	if s.members, err = loadMembers(opt.FS); err != nil {
		return nil, err
	}
	s.coded.Store(s.members.Coded)
	if err := s.noneMissing(); err != nil {
		return nil, err
	}
	for _, sl := range s.slots {
		if m := s.members.named(sl.Name); m != nil {
			sl.become(m.State)
		}
	}
	return s, nil
}

// Recover implements body.Store: it opens the places.
func (s *Store) Recover() error {
	if s.opt.Old != nil && !s.opt.ReadOnly {
		if err := s.opt.Old.Recover(); err != nil {
			return err
		}
	}
	s.joining.Lock()
	// The list is written before the first place is claimed, so that the store's id is not lost.
	err := s.save()
	s.joining.Unlock()
	if err != nil {
		return err
	}
	s.Retry(context.Background())
	return nil
}

func (s *Store) save() error {
	if s.opt.ReadOnly {
		return nil
	}
	return s.members.save(s.opt.FS)
}

// AllThere gives an error that names the places that are out; nil when there is none.
func (s *Store) AllThere() error { return s.outs() }

// Retry tries to open the places that are out, and asks the others whether they are still who they
// were. A place that was poisoned stays out until the store is opened again. Call it now and then.
func (s *Store) Retry(ctx context.Context) {
	s.joining.Lock()
	defer s.joining.Unlock()
	taken := map[string]string{}
	// At once: each may take askTime.
	var wg sync.WaitGroup
	for _, sl := range s.slots {
		wg.Go(func() { s.ask(ctx, sl) })
	}
	wg.Wait()
	for _, sl := range s.slots {
		if id := sl.identityIs(); id != "" {
			taken[id] = sl.Name
		}
	}
	// Drives one after the other, so that of two copies of a drive the first one is used; and the buckets at the same time: the store
	// starts behind them, and one that hangs keeps it, and the others, no longer than joinTime.
	for _, sl := range s.slots {
		if sl.Local {
			s.rejoin(ctx, sl, taken)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	for _, sl := range s.slots {
		if !sl.Local {
			wg.Go(func() { s.rejoin(ctx, sl, taken) })
		}
	}
	wg.Wait()
}

// joinTime is how long a bucket that is out may take to be opened.
const joinTime = 30 * time.Second

// rejoin tries to open a place that is out.
func (s *Store) rejoin(ctx context.Context, sl *slot, taken map[string]string) {
	sl.mu.RLock()
	again := sl.place == nil && sl.state != Lost
	sl.mu.RUnlock()
	if !again {
		return
	}
	if err := sl.join(ctx, s, taken); err != nil {
		s.away(sl, err)
		return
	}
	s.log.Info("a place is in use", "place", sl.Name)
}

// ask compares the identity of a place that was reached before.
func (s *Store) ask(ctx context.Context, sl *slot) {
	sl.mu.RLock()
	p, id := sl.place, sl.id
	sl.mu.RUnlock()
	if p == nil {
		return
	}
	now, err := identityOf(ctx, p)
	switch {
	case err != nil:
	case now.Place != id:
		err = fmt.Errorf("%w: place %s is now %s", place.ErrOut, sl.Name, now.Place)
	}
	sl.mu.Lock()
	was := sl.out
	sl.out = err
	sl.mu.Unlock()
	if err == nil && was != nil {
		s.log.Info("a place is back", "place", sl.Name)
	}
	if err != nil && was == nil {
		s.log.Error("a place is out", "place", sl.Name, "error", err)
	}
}

// askTime is how long a place may take to say who it is.
const askTime = 10 * time.Second

// identityOf bounds the question: a bucket behind a network that swallows packets must not keep the
// start, or the other places, waiting.
func identityOf(ctx context.Context, p place.Place) (place.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return p.Identity(ctx)
}

// away notes why a place cannot be opened.
func (s *Store) away(sl *slot, err error) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.out == nil || sl.out.Error() != err.Error() {
		s.log.Error("a place is out", "place", sl.Name, "error", err)
	}
	sl.out = err
}

// Close gives the places back.
func (s *Store) Close() error {
	var errs []error
	for _, sl := range s.slots {
		sl.mu.Lock()
		if sl.place != nil {
			errs = append(errs, sl.place.Close())
		}
		sl.place, sl.ready = nil, false
		sl.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Stats gives figures, and asks local places for their free space.
func (s *Store) Stats(ctx context.Context) Stats {
	out := Stats{DecodedBytes: s.counts.decoded.Load(), Degraded: s.counts.degraded.Load(), Repaired: s.counts.repaired.Load()}
	for _, sl := range s.slots {
		sl.mu.RLock()
		ps := PlaceStats{Name: sl.Name, Local: sl.Local, ID: sl.id, State: sl.state, Free: -1, Capacity: sl.Capacity}
		sl.mu.RUnlock()
		ps.Err = sl.err()
		if p := sl.use(); p != nil && p.Local() {
			if n, err := p.Free(ctx); err == nil {
				ps.Free = n
			}
		}
		out.Places = append(out.Places, ps)
	}
	return out
}

// NameOf gives the name of the place with an identity; false when there is none.
func (s *Store) NameOf(id string) (string, bool) {
	for _, sl := range s.slots {
		sl.mu.RLock()
		is := sl.id == id
		sl.mu.RUnlock()
		if is && id != "" {
			return sl.Name, true
		}
	}
	return "", false
}

// outs gives the places that are out, as an error that wraps body.ErrUnavailable; nil when all are
// there. It wraps nothing else: a directory that does not exist must not look like a body that does
// not.
func (s *Store) outs() error {
	var errs []error
	for _, sl := range s.slots {
		if sl.use() == nil && sl.is() != Lost {
			errs = append(errs, sl.err())
		}
	}
	if errs == nil {
		return nil
	}
	return fmt.Errorf("%w: %v", body.ErrUnavailable, errors.Join(errs...))
}

func (s *Store) slot(name string) (place.Place, error) {
	for _, sl := range s.slots {
		if sl.Name != name {
			continue
		}
		if p := sl.use(); p != nil {
			return p, nil
		}
		return nil, sl.err()
	}
	return nil, fmt.Errorf("place %s: %w", name, fs.ErrNotExist)
}
