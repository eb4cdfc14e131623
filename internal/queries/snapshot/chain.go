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

// Config of a Chain. Store, Table, Frames, Now, AuthorityID and Owner are required.
type Config struct {
	Store       objstore.Store
	Table       work.Table
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
	seen    time.Time            // when the snapshots were listed last, or one was made
	recent  map[uint64]*Snapshot // the last keep that were read or made, and one before them
	pending map[identity.Batch]accepted.Batch
	refused bool // Offer had no room for a batch since the last job
	backlog bool // the last job could not take all that waited

	// Only Step uses these.
	begun   bool     // what the owners before have left is known, and nothing has failed since
	row     work.Row // of the next job; without an Increment it has none yet
	numbers []uint64 // of the snapshots that are there
	listed  bool     // there may be packs that no snapshot names, so the next collection lists them
}

// Log is the name of a shard's chain in the table of pending work.
func Log(s shard.ID) string { return "snapshot/" + s.String() }

// topic is the one that rows name; no message is sent.
func topic(s shard.ID) string { return "snapshot-" + s.String() }

// NewChain checks the settings; it makes no request.
func NewChain(c Config) (*Chain, error) {
	if c.Store == nil || c.Table == nil || c.Frames == nil || c.Now == nil || c.AuthorityID == "" || c.Owner == "" {
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
	w, err := work.NewWorker(nil, c.Table, handler{ch}, work.Config{Topic: topic(c.Shard), Owner: c.Owner, Hold: c.Hold, TimeLimit: c.TimeLimit}, c.Now)
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
	newest, known := c.newest, c.newest != nil || !c.seen.IsZero()
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
	if c.newest == nil && c.seen.IsZero() {
		c.newest = base
	}
	return c.newest, nil
}

// Step makes the next snapshot if that is due. It asks the table once after a start, and where a job takes several packs.
// After every outcome but Idle and Completed it finds out the next time what is there.
func (c *Chain) Step(ctx context.Context) (work.Outcome, error) {
	// Before it is decided whether a job is due, because that depends on the batches that wait.
	if refill := c.cfg.Refill; refill != nil {
		if err := refill(ctx); err != nil {
			return work.Failed, err
		}
	}
	// Whoever was paused may have a successor, which has made and deleted the next number already.
	if !c.begun || c.unseen(scanEvery) || c.ready() && c.unseen(2*c.cfg.Interval+newsAfter) {
		if err := c.begin(ctx); err != nil {
			return work.Failed, fmt.Errorf("snapshot: %w", err)
		}
	}
	// What an owner before has begun is continued at once.
	if len(c.row.State) == 0 && !c.ready() {
		return work.Idle, nil
	}
	o, err := c.worker.Do(ctx, c.row)
	c.begun = o == work.Completed && c.begun
	return o, err
}

// Finish makes a snapshot of all that waits, without regard to the interval, before the shard is given back: the next
// owner would read those frames one by one.
func (c *Chain) Finish(ctx context.Context) error {
	for c.Pending() > 0 {
		c.mu.Lock()
		c.backlog = true
		c.mu.Unlock()
		if o, err := c.Step(ctx); err != nil || o != work.Completed {
			return err // of a batch that can't be packed, or a row that another owner has
		}
	}
	return nil
}

// begin finds out what the owners before have left: the newest snapshot, and a job that took several packs and is not done.
func (c *Chain) begin(ctx context.Context) error {
	first := !c.begun
	c.begun = false
	if err := c.scan(ctx); err != nil {
		return err
	}
	c.listed = true
	last := uint64(0)
	if n := len(c.numbers); n > 0 {
		last = c.numbers[n-1]
	}
	if !first {
		// It is the chain's own, but for an owner that has taken over unnoticed.
		if c.row.Number <= last {
			c.row = c.job(last + 1)
		}
		c.begun = true
		return nil
	}
	log, err := c.cfg.Table.Log(ctx, c.log)
	if err != nil {
		return fmt.Errorf("log %s: %w", c.log, err)
	}
	// A table that was restored from a backup may be behind the store, and a number must not be used twice.
	c.row = c.job(max(last, log.Last) + 1)
	for {
		row, err := c.lowest(ctx)
		if err != nil {
			return fmt.Errorf("rows of %s: %w", c.log, err)
		}
		if row == nil {
			break
		}
		if row.Number > last {
			c.row = *row
			c.row.Fence = c.cfg.Fence
			break
		}
		// Its snapshot is there, and only the row is left.
		if err := c.cfg.Table.Done(ctx, *row); err != nil {
			return fmt.Errorf("complete %s: %w", row.Key, err)
		}
	}
	c.begun = true
	return nil
}

// job is the row of a job that has none yet.
func (c *Chain) job(number uint64) work.Row {
	return work.Row{Key: work.Key{Log: c.log, Number: number}, Topic: topic(c.cfg.Shard), Body: JobBody(c.cfg.Shard, number), Fence: c.cfg.Fence}
}

// rowsPage is large enough to contain the lowest row of a log without other logs under its name.
const rowsPage = 4

// lowest reads the chain's row with the lowest number; nil when there is none.
func (c *Chain) lowest(ctx context.Context) (*work.Row, error) {
	for after := ""; ; {
		rows, next, err := c.cfg.Table.Rows(ctx, c.log, after, rowsPage)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if rows[i].Log == c.log {
				return &rows[i], nil
			}
		}
		if next == "" {
			return nil, nil
		}
		after = next
	}
}

// ready reports that the next snapshot is due. One that would equal the newest is not made.
func (c *Chain) ready() bool {
	if !c.due() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The first snapshot, and one that takes what did not fit into the last, need no interval.
	if c.newest == nil || c.backlog {
		return true
	}
	// A snapshot that was made by a clock ahead of this one says nothing about when the next is due.
	since := c.cfg.Now().Sub(time.Unix(0, c.newest.CreatedAt))
	// The clocks of two owners differ, and steps come now and then, so the next is made a little early rather than late.
	return since < 0 || c.cfg.Interval-since <= c.cfg.Interval/10
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
func (c *Chain) scan(ctx context.Context) error {
	numbers, base, err := c.find(ctx)
	if err != nil {
		return err
	}
	c.numbers = numbers
	c.mu.Lock()
	defer c.mu.Unlock()
	// Also when it is nil: the newest may have been deleted, and what is cached must not hide that.
	c.newest, c.seen = base, c.cfg.Now()
	return nil
}

const (
	// scanEvery is the longest time between two listings of the snapshots of a shard for which nothing comes.
	scanEvery = 15 * time.Minute
	// newsAfter, besides two intervals, is how long after a listing or a snapshot of its own a chain makes the next one
	// without a listing: too short for others to make three, and delete what was before.
	newsAfter = 10 * time.Second
)

// unseen reports that this chain has neither listed the snapshots nor made one for so long, or that the clock was set back.
func (c *Chain) unseen(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Now()
	return now.Before(c.seen) || now.Sub(c.seen) >= d
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
	// The oldest go first, as in the store. One more is kept than there, because its packs are to be deleted with it.
	for len(c.recent) > keep+1 {
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

// jobBody says which job a row is of.
type jobBody struct {
	Shard  shard.ID `json:"shard"`
	Number uint64   `json:"number"`
}

// JobBody is the body of the row of a shard's job.
func JobBody(s shard.ID, number uint64) []byte { return JobKind.Marshal(jobBody{s, number}) }

// handler is the chain as a worker's handler.
type handler struct{ c *Chain }

// Job is not used: no message brings a job.
func (h handler) Job(context.Context, work.Message) (work.Key, uint64, error) {
	return work.Key{}, 0, work.ErrPoison
}

// Run makes one snapshot.
func (h handler) Run(ctx context.Context, j *work.Job) error {
	if err := h.c.make(ctx, j); err != nil {
		return fmt.Errorf("snapshot %s: %w", j.Key(), err)
	}
	h.c.done(j.Key().Number)
	return nil
}

// done turns to the next job.
func (c *Chain) done(number uint64) {
	c.mu.Lock()
	if c.newest != nil {
		// Another owner may have committed later numbers while this one did not know that it had lost the shard.
		number = max(number, c.newest.Number)
	}
	c.backlog, c.refused = len(c.pending) > 0 || c.refused, false
	c.mu.Unlock()
	c.row = c.job(number + 1)
}
