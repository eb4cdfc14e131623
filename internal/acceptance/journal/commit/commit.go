// Package commit is group commit over the journal: many callers give entries, and one goroutine
// writes them into the segments of one run. While a segment is being written the entries of the next
// one gather, so a busy service writes full segments, and an idle one adds one request to an answer.
package commit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Errors of Add and Wait. The caller answers RETRY: its batch may be accepted, and nothing of that was answered.
var (
	// ErrFull: as many entries as allowed wait for the store.
	ErrFull = errors.New("too many entries wait for the journal")
	// ErrClosed: Run has ended.
	ErrClosed = errors.New("the journal's writer is closed")
)

// Config of a Committer. Store and Opening are required.
type Config struct {
	// Store has deadlines and further attempts of its own; see objstore.WithPolicy.
	Store   journal.WriterStore
	Opening journal.Opening
	// Rand is crypto/rand when nil; Now is time.Now when nil.
	Rand io.Reader
	Now  func() time.Time
	// Linger is how long the first entry of a segment waits for others, where they are to be expected and the store is
	// so slow that it is worth it; see pace. 0 writes at once: then only those share a segment that came
	// while the one before was written.
	Linger time.Duration
	// Idle is after which time without entries the run is closed; 0 is never. Followers ask for
	// the next segment of every open run, so an idle cluster should have none.
	Idle time.Duration
	// Entries that may wait in memory; 0 means DefaultEntries.
	Entries int
	// KeepOpen is asked when Run ends: true leaves the run open, because there are batches that a later
	// process will put into the journal. Nil closes it.
	KeepOpen func() bool
	// CloseTimeout bounds the requests at the end of Run; 0 means five seconds.
	CloseTimeout time.Duration
	// Epochs: runs name epochs of condemned names, see journal.WriterConfig. Wake is called when there is a new one.
	Epochs journal.Epochs
	Events Events

	pace pace // that the committer begins with; only tests give one
}

// DefaultEntries bounds the entries in memory, of about 300 bytes each.
const DefaultEntries = 50_000

// Events are callbacks for metrics, logs and hints; nil fields are skipped. They are called on
// Run's goroutine, so they must be quick.
type Events struct {
	// Writing: a segment is about to be sent.
	Writing func()
	// Durable: a segment with these entries is durable, and nobody was answered from it yet. oldest is how long the first
	// of its entries has waited.
	Durable func(at journal.Position, entries []*journal.Entry, oldest time.Duration)
	// Failed: a request failed; it is repeated. Its outcome is unknown.
	Failed func(error)
	// Fenced: somebody else ended the run at this position. What was not answered goes into a new run.
	Fenced func(journal.Position)
	// Opened: a run was drawn; nothing of it is sent yet.
	Opened func(journal.RunID)
	// Closed: the run was ended in order.
	Closed func()
}

// Committer is safe for concurrent use.
type Committer struct {
	cfg    Config
	writer *journal.Writer // of Run's goroutine
	added  []*ticket       // in writer, in the order of their numbers; of Run's goroutine
	pace   pace            // of Run's goroutine

	// current are the names that the next segment will name, for Spares.
	current atomic.Pointer[journal.Condemned]

	wake chan struct{} // something is in queue, or begin is asked
	full chan struct{} // queue has a whole segment

	mu      sync.Mutex
	queue   []*ticket // that the writer does not have yet
	waiting int       // entries without a durable segment: those of queue and of added
	begins  []*ticket // calls of Begin
	failing error     // of the last request; nil after one that succeeded
	since   time.Time // of failing
	closed  bool
}

// ticket is an entry on its way.
type ticket struct {
	c     *Committer
	entry journal.Entry
	at    time.Time // when it was added
	no    uint64    // by the writer's count

	done   chan struct{} // closed when the three below are set
	pos    journal.Position
	err    error
	spared bool
}

// New makes a committer; it makes no request. Entries wait until Run is called.
func New(cfg Config) (*Committer, error) {
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Entries == 0 {
		cfg.Entries = DefaultEntries
	}
	if cfg.CloseTimeout == 0 {
		cfg.CloseTimeout = 5 * time.Second
	}
	if cfg.CloseTimeout < 0 || cfg.Linger < 0 || cfg.Idle < 0 || cfg.Entries < 0 {
		return nil, errors.New("journal commit: a setting is negative")
	}
	w, err := journal.NewWriter(journal.WriterConfig{
		Store: cfg.Store, Rand: cfg.Rand, Opening: cfg.Opening,
		Clock:  func() int64 { return cfg.Now().UnixNano() },
		Epochs: cfg.Epochs,
		Events: journal.WriterEvents{Fenced: cfg.Events.Fenced, Opened: cfg.Events.Opened},
	})
	if err != nil {
		return nil, err
	}
	return &Committer{cfg: cfg, pace: cfg.pace, writer: w, wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}, nil
}

// Add gives an entry, which will be written whatever becomes of the caller. It never waits. Errors are ErrFull,
// ErrClosed, and that of an entry that no segment can hold.
func (c *Committer) Add(e journal.Entry) (journal.Ticket, error) {
	if err := e.Validate(); err != nil {
		return nil, fmt.Errorf("journal entry: %w", err)
	}
	t := &ticket{c: c, entry: e, at: c.cfg.Now(), done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, ErrClosed
	case c.waiting >= c.cfg.Entries:
		return nil, fmt.Errorf("%w: %d, the last error was: %v", ErrFull, c.waiting, c.failing)
	}
	c.queue = append(c.queue, t)
	c.waiting++
	signal(c.wake)
	if len(c.queue) >= journal.MaxSegmentEntries {
		signal(c.full)
	}
	return t, nil
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Wait implements journal.Ticket.
func (t *ticket) Wait(ctx context.Context) (journal.Position, error) {
	select {
	case <-t.done:
		return t.pos, t.err
	default:
	}
	select {
	case <-t.done:
		return t.pos, t.err
	case <-ctx.Done():
		_, err := t.c.Failing()
		return journal.Position{}, fmt.Errorf("wait for the journal: %w (its last error: %v)", ctx.Err(), err)
	}
}

// Spared implements journal.Ticket.
func (t *ticket) Spared() bool { return t.spared }

// Spares reports whether an answer about the frame will probably need no marker read. Only its ticket says whether it does.
func (c *Committer) Spares(d identity.Digest) bool {
	names := c.current.Load()
	return names != nil && !(*names).Has(d)
}

// Wake has Run look at the epochs again.
func (c *Committer) Wake() { signal(c.wake) }

// Commit gives an entry and waits until it is durable.
func (c *Committer) Commit(ctx context.Context, e journal.Entry) (journal.Position, error) {
	t, err := c.Add(e)
	if err != nil {
		return journal.Position{}, err
	}
	return t.Wait(ctx)
}

// Begin waits until a run is open, and opens one without entries if there is none: for a spooler, which
// must not accept anything before.
func (c *Committer) Begin(ctx context.Context) (journal.Position, error) {
	t := &ticket{c: c, done: make(chan struct{})}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return journal.Position{}, ErrClosed
	}
	c.begins = append(c.begins, t)
	c.mu.Unlock()
	signal(c.wake)
	return t.Wait(ctx)
}

// Failing returns since when requests have failed, and the error of the last one; a zero time and nil
// after one that succeeded.
func (c *Committer) Failing() (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, c.failing
}

// Waiting is how many entries are in no durable segment.
func (c *Committer) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}
