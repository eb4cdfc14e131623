package follow

import (
	"log/slog"
	"math"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/sharedid"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
)

// book counts what was accepted of each boot. Its memory grows with boots and gaps, not with batches.
type book struct {
	log    *slog.Logger
	now    func() time.Time
	shared *sharedid.Detector

	mu    sync.Mutex
	set   *ledgers.Set
	from  journal.Positions // through which a checkpoint had counted
	ready bool              // the checkpoint was looked for
	first int64             // time of the oldest sample of all, Unix nanoseconds
	// list is of the time listed, unless an id was found since.
	list   []sharedid.Shared
	listed time.Time
	stale  bool
}

func newBook(log *slog.Logger, now func() time.Time) *book {
	return &book{log: log, now: now, shared: sharedid.New(), set: ledgers.NewSet(), first: math.MaxInt64}
}

func (k *book) loaded() (journal.Positions, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.from, k.ready
}

// load begins with a checkpoint.
func (k *book) load(l ledgers.Loaded) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.set, k.from, k.ready = l.Set, l.Positions, true
	l.Set.Each(func(l *ledger.Ledger) {
		if at, ok := l.FirstTime(); ok {
			k.first = min(k.first, at)
		}
	})
}

// apply counts entries. They may come again.
func (k *book) apply(entries []journal.Entry) {
	k.mu.Lock()
	set := k.set
	k.mu.Unlock()
	first, found := int64(math.MaxInt64), false
	set.Apply(entries, func(c ledgers.Change) {
		e := c.Entry
		first = min(first, e.MinTime)
		s := sharedid.Batch{Boot: e.ID.BootOf(), AcceptedAt: e.At, MinTime: e.MinTime, MaxTime: e.MaxTime}
		if boots := k.shared.Add(k.now(), s); boots != nil {
			found = true
			k.log.Warn("several machines send as one agent", "agent", e.ID.Agent, "boots", boots)
		}
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.first = min(k.first, first)
	k.stale = k.stale || found
}

func (k *book) sums() (boots int, first int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set.Boots(), k.first
}

func (k *book) ledgers() *ledgers.Set {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set
}

// sharedFor is how long the list of shared agent ids is good for: every answer has it, and it costs as much as there are
// agents that have restarted lately.
const sharedFor = time.Second

// SharedIDs returns the agent ids that several machines use now, sorted. An id that has just been found is there at once.
func (f *Follower) SharedIDs() []sharedid.Shared { return f.book.sharedIDs(f.d.Now()) }

func (k *book) sharedIDs(now time.Time) []sharedid.Shared {
	k.mu.Lock()
	defer k.mu.Unlock()
	if age := now.Sub(k.listed); k.stale || age < 0 || age >= sharedFor {
		k.list, k.listed, k.stale = k.shared.All(now), now, false
	}
	return k.list
}
