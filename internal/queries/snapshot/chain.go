package snapshot

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Defaults and bounds of a Chain.
const (
	DefaultWindow     = 2 * time.Hour
	DefaultHold       = time.Minute
	DefaultMaxPending = 100_000
	// maxNewPacks of one job; the rest waits for the next job.
	maxNewPacks = 64
	// keep is how many snapshots are kept, the newest included.
	keep = 3
	// future is how long after its acceptance a batch with samples in the future stays in the snapshots.
	future = 15 * time.Minute
)

// Config of a Chain. Store, Table, Queue, Frames, Now, AuthorityID and Owner are required.
type Config struct {
	Store       objstore.Store
	Table       work.Table
	Queue       work.Queue
	AuthorityID string
	Shard       shard.ID
	Shards      uint32
	// Fence of the grant under which the chain works.
	Fence uint64
	// Owner is different for every start of every process.
	Owner string
	// Window is how far before now the samples of a snapshot reach; 0 means two hours.
	Window time.Duration
	// Interval is the least time between two snapshots, unless more batches wait than one snapshot could take; 0
	// is none.
	Interval time.Duration
	// Hold is the longest time for one pack; 0 means a minute.
	Hold time.Duration
	// TimeLimit is how long a job may take before it is handed over, to this chain or the next owner's; 0 is no
	// limit.
	TimeLimit time.Duration
	// MaxPending bounds the batches that wait for the next snapshot; 0 means 100,000.
	MaxPending int
	// PackBatches is the most batches of a pack; 0 means MaxPackBatches, which is also the maximum.
	PackBatches int
	// Frames reads the frames of the entries, some in parallel; nil stands for one that can't be read.
	Frames func(ctx context.Context, entries []accepted.Batch) ([][]byte, error)
	// Refill offers new batches, before it is decided whether a snapshot is due; nil does nothing.
	Refill func(ctx context.Context) error
	Now    func() time.Time
	Events Events
}

// Events are called when a chain does something; each may be nil.
type Events struct {
	// Committed: a snapshot was created by this chain.
	Committed func(*Snapshot)
	// Packed: a pack was written; merged says that it was made of packs.
	Packed func(r Ref, merged bool)
	// Skipped: a batch is left out because its frame can't be read or is too long for a pack.
	Skipped func(accepted.Batch)
	// Collected: old objects were deleted; err ended it early.
	Collected func(snapshots, packs int, err error)
	// Lost: a snapshot or pack that should exist can't be read; the chain continues without it.
	Lost func(err error)
}

// Chain makes the snapshots of one shard under one grant. Offer may be called at any time, Step by one caller at a
// time.
type Chain struct {
	cfg    Config
	log    string
	worker *work.Worker

	mu      sync.Mutex
	newest  *Snapshot            // nil before one was read, or when there is none
	scanned time.Time            // when the snapshots were listed last
	recent  map[uint64]*Snapshot // the last keep that were read or made
	pending map[identity.Batch]accepted.Batch
	refused bool // Offer had no room for a batch since the last job
	backlog bool // the last job could not take all that waited

	// checked is when Step last made sure that a message of the next job waits.
	checked time.Time
}

// Log is the name of a shard's chain in the table of pending work.
func Log(s shard.ID) string { return "snapshot/" + s.String() }

// Topic of the chain's messages.
func Topic(s shard.ID) string { return "snapshot-" + s.String() }

// NewChain checks the settings; it makes no request.
func NewChain(c Config) (*Chain, error) {
	if c.Store == nil || c.Table == nil || c.Queue == nil || c.Frames == nil || c.Now == nil || c.AuthorityID == "" || c.Owner == "" {
		return nil, errors.New("snapshot: a dependency is missing")
	}
	if err := shard.CheckCount(c.Shards); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	if uint32(c.Shard) >= c.Shards || c.Window < 0 || c.MaxPending < 0 || c.Interval < 0 {
		return nil, fmt.Errorf("snapshot: shard %s of %d, window %v, %d pending", c.Shard, c.Shards, c.Window, c.MaxPending)
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.Hold == 0 {
		c.Hold = DefaultHold
	}
	if c.PackBatches <= 0 || c.PackBatches > MaxPackBatches {
		c.PackBatches = MaxPackBatches
	}
	if c.MaxPending == 0 {
		c.MaxPending = DefaultMaxPending
	}
	ch := &Chain{cfg: c, log: Log(c.Shard), recent: map[uint64]*Snapshot{}, pending: map[identity.Batch]accepted.Batch{}}
	w, err := work.NewWorker(c.Queue, c.Table, handler{ch}, work.Config{
		Topic: Topic(c.Shard), Owner: c.Owner, Hold: c.Hold, TimeLimit: c.TimeLimit,
		// No operator looks after a chain, so it is tried without end.
		MaxAttempts: math.MaxUint32,
	}, c.Now)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	ch.worker = w
	return ch, nil
}

// Offer hands in accepted batches. It drops those whose samples are outside of the window, and those that the
// newest snapshot has. It reports whether there is room for more.
func (c *Chain) Offer(entries []accepted.Batch) (room bool) {
	horizon := c.horizon()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		if lasts(e) < horizon || c.newest != nil && c.newest.Covers(e.Identity) {
			continue
		}
		if len(c.pending) >= c.cfg.MaxPending {
			// The job that runs now can't know of it, so the next one must not wait for the interval.
			c.refused = true
			continue
		}
		c.pending[e.Identity] = e
	}
	return len(c.pending) < c.cfg.MaxPending
}

// Room reports whether Offer would take more.
func (c *Chain) Room() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	room := len(c.pending) < c.cfg.MaxPending
	// Whoever asks and finds no room keeps its batches back, so more of them wait than the chain knows of.
	c.refused = c.refused || !room
	return room
}

// Pending counts the batches that wait for a snapshot.
func (c *Chain) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}

// Newest is the newest snapshot that was read or made; nil when there is none.
func (c *Chain) Newest() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// Load is Newest, but reads it where nothing was read before: who begins to read frames right after a start need not wait for
// the first step.
func (c *Chain) Load(ctx context.Context) (*Snapshot, error) {
	c.mu.Lock()
	newest, known := c.newest, c.newest != nil || !c.scanned.IsZero()
	c.mu.Unlock()
	if known {
		return newest, nil
	}
	_, base, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A step may have made the next one meanwhile.
	if c.newest == nil && c.scanned.IsZero() {
		c.newest = base
	}
	return c.newest, nil
}

// messageCheck is the time between two checks that a message of the next job waits.
const messageCheck = time.Minute

// Step receives one message of the shard's topic and does its job if that is due. The chain keeps itself going:
// each job sends the message of the next one before it is done.
func (c *Chain) Step(ctx context.Context) (work.Outcome, error) {
	// A clock that was set back would otherwise put the check off until it has caught up.
	if now := c.cfg.Now(); c.checked.IsZero() || now.Before(c.checked) || now.Sub(c.checked) >= messageCheck {
		if err := c.ensureMessage(ctx, c.checked.IsZero()); err != nil {
			return work.Failed, err
		}
		c.checked = now
	}
	return c.worker.Step(ctx)
}

// ensureMessage makes sure that a message of the lowest pending job waits: a chain begins with one, and a queue
// may lose one. A new owner sends one in any case, as its predecessor may have died with a message that stays
// hidden for long; a second one is deleted when the job is done.
func (c *Chain) ensureMessage(ctx context.Context, first bool) error {
	rows, _, err := c.cfg.Table.Rows(ctx, c.log, "", 1)
	if err != nil {
		return fmt.Errorf("snapshot: rows of %s: %w", c.log, err)
	}
	if len(rows) == 0 {
		number, err := c.next(ctx)
		if err != nil {
			return err
		}
		return c.submit(ctx, number, 0)
	}
	if !first {
		depth, err := c.cfg.Queue.Depth(ctx, Topic(c.cfg.Shard))
		// A message of the topic exists, visible or not, so the chain is alive.
		if err != nil || depth.Ready+depth.Hidden > 0 {
			return err
		}
	}
	return c.submit(ctx, rows[0].Number, 0)
}

// next is the number after all that table and store know: either may have lost some.
func (c *Chain) next(ctx context.Context) (uint64, error) {
	numbers, err := Numbers(ctx, c.cfg.Store, c.cfg.Shard)
	if err != nil {
		return 0, err
	}
	log, err := c.cfg.Table.Log(ctx, c.log)
	if err != nil {
		return 0, fmt.Errorf("snapshot: log %s: %w", c.log, err)
	}
	number := log.Last
	if n := len(numbers); n > 0 {
		// A table that was restored from a backup may be behind the store, and a number must not be used twice.
		number = max(number, numbers[n-1])
	}
	return number + 1, nil
}

// submit makes a job pending, unless it is, and sends its message.
func (c *Chain) submit(ctx context.Context, number uint64, delay time.Duration) error {
	row := work.Row{Key: work.Key{Log: c.log, Number: number}, Topic: Topic(c.cfg.Shard), Body: Message(c.cfg.Shard, number)}
	if err := work.Submit(ctx, c.cfg.Queue, c.cfg.Table, row, delay); err != nil {
		return fmt.Errorf("snapshot: submit %s: %w", row.Key, err)
	}
	return nil
}

// minWait is the least time for which a message is put back when its job is not due.
const minWait = time.Second

// wait is how long it takes until the next snapshot is due; 0 when it is. A snapshot that would equal the newest
// is not made.
func (c *Chain) wait() time.Duration {
	due := c.due()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !due {
		return max(c.cfg.Interval, minWait)
	}
	// The first snapshot, and one that takes what did not fit into the last, need no interval.
	if c.newest == nil || c.backlog {
		return 0
	}
	// A snapshot that was made by a clock ahead of this one says nothing about when the next is due.
	since := c.cfg.Now().Sub(time.Unix(0, c.newest.CreatedAt))
	// A message that comes slightly early, because of other clocks and whole seconds, is not put back for that.
	if rest := c.cfg.Interval - since; since >= 0 && rest > c.cfg.Interval/10 {
		return max(rest, minWait)
	}
	return 0
}

// due reports that the next snapshot would differ from the newest.
func (c *Chain) due() bool {
	horizon := c.horizon()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.pending {
		// Batches leave here and not only in a job: without new batches no job would run, and they would stay for
		// ever.
		if lasts(e) < horizon || c.newest != nil && c.newest.Covers(id) {
			delete(c.pending, id)
		}
	}
	if len(c.pending) > 0 {
		return true
	}
	if c.newest != nil {
		for i := range c.newest.Packs {
			// A pack has left the window. A snapshot without it lets the old objects be collected.
			if c.newest.Packs[i].MaxTime < horizon {
				return true
			}
		}
	}
	return false
}

// find lists the snapshots and reads the newest one that can be read, unless it is cached.
func (c *Chain) find(ctx context.Context) (numbers []uint64, newest *Snapshot, err error) {
	if numbers, err = Numbers(ctx, c.cfg.Store, c.cfg.Shard); err == nil {
		newest, err = c.base(ctx, numbers, math.MaxUint64)
	}
	return numbers, newest, err
}

// scan finds the newest snapshot, and keeps it.
func (c *Chain) scan(ctx context.Context) ([]uint64, error) {
	numbers, base, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	// Also when it is nil: the newest may have been deleted, and what is cached must not hide that.
	c.newest, c.scanned = base, c.cfg.Now()
	c.mu.Unlock()
	return numbers, nil
}

// scanEvery is the longest time between two listings of the snapshots of a shard for which nothing comes.
const scanEvery = 15 * time.Minute

// rests reports that nothing is to be done for job number, by what was listed last.
func (c *Chain) rests(number uint64) bool {
	if c.due() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.newest != nil && c.newest.Number >= number {
		return false // its row is to be completed
	}
	now := c.cfg.Now()
	return !c.scanned.IsZero() && !now.Before(c.scanned) && now.Sub(c.scanned) < scanEvery
}

// base is the newest snapshot with a number below the given one that can be read; nil when there is none.
func (c *Chain) base(ctx context.Context, numbers []uint64, below uint64) (*Snapshot, error) {
	tries := 0
	for i := len(numbers) - 1; i >= 0 && tries < keep; i-- {
		if numbers[i] >= below {
			continue
		}
		tries++
		s, err := c.read(ctx, numbers[i])
		if err == nil {
			return s, nil
		}
		// The store did not answer. To continue with an older snapshot would lose the packs of this one.
		if !absent(err) {
			return nil, err
		}
		c.lost(err)
	}
	return nil, nil
}

// read reads a snapshot of this chain, or takes it from the cache.
func (c *Chain) read(ctx context.Context, number uint64) (*Snapshot, error) {
	c.mu.Lock()
	s := c.recent[number]
	c.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s, err := Read(ctx, c.cfg.Store, c.cfg.Shard, number)
	if err != nil {
		return nil, err
	}
	// A snapshot of another authority names batches that this one never accepted.
	if s.AuthorityID != c.cfg.AuthorityID || s.Shards != c.cfg.Shards {
		return nil, Kind.Corrupt(s.Key(), "it is of authority %q and %d shards", s.AuthorityID, s.Shards)
	}
	c.remember(s)
	return s, nil
}

func (c *Chain) remember(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recent[s.Number] = s
	// The oldest go first, as in the store.
	for len(c.recent) > keep {
		least := uint64(math.MaxUint64)
		for n := range c.recent {
			least = min(least, n)
		}
		delete(c.recent, least)
	}
}

func (c *Chain) horizon() int64 { return c.cfg.Now().Add(-c.cfg.Window).UnixNano() }

func (c *Chain) lost(err error) {
	if f := c.cfg.Events.Lost; f != nil {
		f(err)
	}
}

// lasts is the time of the batch's newest sample, limited by how long a batch stays for samples in the future.
func lasts(e accepted.Batch) int64 { return min(e.MaxTime, e.AcceptedAt+int64(future)) }

// message is the body of a job's message.
type message struct {
	Shard  shard.ID `json:"shard"`
	Number uint64   `json:"number"`
}

// Message is the body of the message for job number of the shard.
func Message(s shard.ID, number uint64) []byte {
	return JobKind.Marshal(message{s, number})
}

// handler is the chain as a worker's handler.
type handler struct{ c *Chain }

// Job reads a message, and says whether its job is due.
func (h handler) Job(ctx context.Context, m work.Message) (work.Key, uint64, error) {
	var b message
	err := JobKind.Unmarshal(m.Body, &b)
	if errors.Is(err, record.ErrNewerVersion) {
		return work.Key{}, 0, fmt.Errorf("%w: %w", work.ErrElsewhere, err)
	}
	if err != nil || b.Shard != h.c.cfg.Shard || b.Number == 0 {
		return work.Key{}, 0, fmt.Errorf("%w: message %q", work.ErrPoison, m.Body)
	}
	k := work.Key{Log: h.c.log, Number: b.Number}
	// Before it is decided whether the job is due, because that depends on the batches that wait.
	if refill := h.c.cfg.Refill; refill != nil {
		if err := refill(ctx); err != nil {
			return k, 0, err
		}
	}
	if h.c.rests(b.Number) {
		return k, 0, &work.NotDueError{Wait: max(h.c.cfg.Interval, minWait)}
	}
	numbers, err := h.c.scan(ctx)
	if err != nil {
		return k, 0, err
	}
	if n := len(numbers); n > 0 && numbers[n-1] >= b.Number {
		return k, h.c.cfg.Fence, nil // committed already; only the row has to be completed
	}
	if wait := h.c.wait(); wait > 0 {
		return k, 0, &work.NotDueError{Wait: wait}
	}
	return k, h.c.cfg.Fence, nil
}

// Run makes one snapshot and then submits the next job. The row of this job stays until the next has its own, so
// that the chain never stops.
func (h handler) Run(ctx context.Context, j *work.Job) error {
	err := h.c.make(ctx, j)
	if err == nil {
		err = h.c.submitNext(ctx, j.Key().Number)
	}
	if err != nil {
		err = fmt.Errorf("snapshot %s: %w", j.Key(), err)
	}
	return err
}

// submitNext makes the next job pending, with a message that arrives when it is due.
func (c *Chain) submitNext(ctx context.Context, number uint64) error {
	c.mu.Lock()
	if c.newest != nil {
		// Another owner may have committed later numbers while this one did not know that it had lost the shard.
		number = max(number, c.newest.Number)
	}
	c.backlog, c.refused = len(c.pending) > 0 || c.refused, false
	wait := c.cfg.Interval
	if c.backlog {
		wait = 0
	}
	c.mu.Unlock()
	return c.submit(ctx, number+1, min(wait, work.MaxDelay))
}
