package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/intake"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/work"
)

// Defaults and bounds of a Chain.
const (
	DefaultWindow     = 2 * time.Hour
	DefaultHold       = time.Minute
	DefaultMaxPending = 100_000
	// maxNewPacks of one job: the rest waits for the next.
	maxNewPacks = 64
	// keep is how many snapshots are kept, the newest included.
	keep = 3
	// future bounds how long a batch of a clock that runs ahead stays, from its acceptance.
	future = 15 * time.Minute
)

// Config of a Chain. Store, Table, Frames, Now, AuthorityID and Owner are required.
type Config struct {
	Store       objstore.Store
	Table       work.Table
	Queue       work.Queue // may be nil: then only Step finds what is left
	AuthorityID string
	Shard       shard.ID
	Shards      uint32
	// Fence of the grant under which the chain is worked on.
	Fence uint64
	// Owner is different in every incarnation of every process.
	Owner string
	// Window before now whose samples the snapshots hold; 0 means two hours.
	Window time.Duration
	// Hold is the longest time for one pack; 0 means a minute.
	Hold time.Duration
	// MaxPending bounds the batches that wait for the next snapshot; 0 means 100,000.
	MaxPending int
	// PackBatches is the most batches of a pack; 0 means MaxPackBatches, which is also the most.
	PackBatches int
	// Frames reads the frames of the entries, some at once; nil for one that can't be read.
	Frames func(ctx context.Context, entries []intake.Entry) ([][]byte, error)
	Now    func() time.Time
	Events Events
}

// Events are told what a chain does; each may be nil.
type Events struct {
	// Committed: a snapshot was created by this chain.
	Committed func(*Snapshot)
	// Packed: a pack was written; merged tells packs of packs.
	Packed func(r Ref, merged bool)
	// Skipped: a batch is left out, as its frame can't be read or is too long for a pack.
	Skipped func(intake.Entry)
	// Collected: old objects were deleted; err ended it early.
	Collected func(snapshots, packs int, err error)
	// Lost: a snapshot or pack that should be there can't be read; the chain goes on without it.
	Lost func(err error)
}

// Chain makes the snapshots of one shard, under one grant. Offer may be called at any
// time, Step by one caller at a time.
type Chain struct {
	cfg    Config
	log    string
	worker *work.Worker

	mu      sync.Mutex
	newest  *Snapshot            // that was seen; nil before, or when there is none
	recent  map[uint64]*Snapshot // the last keep that were read or made
	pending map[identity.Batch]intake.Entry
}

// Log is the name of a shard's chain in the table of pending work.
func Log(s shard.ID) string { return "snapshot/" + s.String() }

// Topic is where its messages go.
func Topic(s shard.ID) string { return "snapshot-" + s.String() }

// NewChain checks the settings; it makes no request.
func NewChain(c Config) (*Chain, error) {
	if c.Store == nil || c.Table == nil || c.Frames == nil || c.Now == nil || c.AuthorityID == "" || c.Owner == "" {
		return nil, errors.New("snapshot: a dependency is missing")
	}
	if err := shard.CheckCount(c.Shards); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	if uint32(c.Shard) >= c.Shards || c.Window < 0 || c.MaxPending < 0 {
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
	ch := &Chain{cfg: c, log: Log(c.Shard), recent: map[uint64]*Snapshot{}, pending: map[identity.Batch]intake.Entry{}}
	w, err := work.NewWorker(c.Queue, c.Table, handler{ch}, work.Config{
		Topic: Topic(c.Shard), Owner: c.Owner, Order: work.Sparse, Hold: c.Hold,
		// A chain must not wait for an operator: it is tried for ever.
		MaxAttempts: math.MaxUint32,
	}, c.Now)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	ch.worker = w
	return ch, nil
}

// Offer hands in accepted batches. Those of other times than the window, and those that
// the newest snapshot has, are dropped. It reports whether there is room for more.
func (c *Chain) Offer(entries []intake.Entry) (room bool) {
	horizon := c.horizon()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		if lasts(e) < horizon || len(c.pending) >= c.cfg.MaxPending || c.newest != nil && c.newest.Covers(e.Identity()) {
			continue
		}
		c.pending[e.Identity()] = e
	}
	return len(c.pending) < c.cfg.MaxPending
}

// Room reports whether Offer would take more.
func (c *Chain) Room() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending) < c.cfg.MaxPending
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

// Step does at most one job: the one that is pending, else the next if there is something
// to do. Idle says that there was not.
func (c *Chain) Step(ctx context.Context) (work.Outcome, error) {
	if c.cfg.Queue != nil { // messages come from sweeps, and only wake
		if o, err := c.worker.Step(ctx); err != nil || o == work.Completed {
			return o, err
		}
	}
	numbers, err := c.look(ctx)
	if err != nil {
		return work.Failed, err
	}
	rows, _, err := c.cfg.Table.Rows(ctx, c.log, "", 1)
	if err != nil {
		return work.Failed, fmt.Errorf("snapshot: rows of %s: %w", c.log, err)
	}
	var number uint64
	switch {
	case len(rows) > 0:
		number = rows[0].Number
	case !c.due():
		return work.Idle, nil
	default:
		log, err := c.cfg.Table.Log(ctx, c.log)
		if err != nil {
			return work.Failed, fmt.Errorf("snapshot: log %s: %w", c.log, err)
		}
		number = log.Last + 1
		if n := len(numbers); n > 0 {
			number = max(number, numbers[n-1]+1)
		}
	}
	return c.worker.Do(ctx, work.Key{Log: c.log, Number: number}, c.cfg.Fence, Message(c.cfg.Shard, number))
}

// due: the next snapshot would differ.
func (c *Chain) due() bool {
	horizon := c.horizon()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.pending {
		if lasts(e) < horizon || c.newest != nil && c.newest.Covers(id) {
			delete(c.pending, id)
		}
	}
	if len(c.pending) > 0 {
		return true
	}
	if c.newest != nil {
		for i := range c.newest.Packs {
			if c.newest.Packs[i].MaxTime < horizon {
				return true
			}
		}
	}
	return false
}

// look lists the snapshots and sees that the newest readable one is known.
func (c *Chain) look(ctx context.Context) ([]uint64, error) {
	numbers, err := Numbers(ctx, c.cfg.Store, c.cfg.Shard)
	if err != nil {
		return nil, err
	}
	base, err := c.base(ctx, numbers, math.MaxUint64)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.newest = base
	c.mu.Unlock()
	return numbers, nil
}

// base is the newest of numbers below the given one that can be read; nil when none can.
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
		if !absent(err) {
			return nil, err
		}
		c.lost(err)
	}
	return nil, nil
}

// read reads a snapshot of this chain, or remembers it.
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
	if s.AuthorityID != c.cfg.AuthorityID || s.Shards != c.cfg.Shards {
		return nil, fmt.Errorf("read %q: %w: it is of authority %q and %d shards", s.Key(), ErrCorrupt, s.AuthorityID, s.Shards)
	}
	c.remember(s)
	return s, nil
}

func (c *Chain) remember(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recent[s.Number] = s
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

// lasts is the time of the batch's newest sample, as far as a snapshot waits for it.
func lasts(e intake.Entry) int64 { return min(e.MaxTime, e.AcceptedAt+int64(future)) }

// message is the body of a job's message.
type message struct {
	Shard  shard.ID `json:"shard"`
	Number uint64   `json:"number"`
}

// Message is the body of the message that brings job number of the shard.
func Message(s shard.ID, number uint64) []byte {
	b, _ := json.Marshal(message{s, number}) // numbers always marshal
	return b
}

// handler makes a chain's jobs known to a worker.
type handler struct{ c *Chain }

// Job reads a message.
func (h handler) Job(_ context.Context, m work.Message) (work.Key, uint64, error) {
	var b message
	if err := json.Unmarshal(m.Body, &b); err != nil || b.Shard != h.c.cfg.Shard || b.Number == 0 {
		return work.Key{}, 0, fmt.Errorf("%w: message %q", work.ErrPoison, m.Body)
	}
	return work.Key{Log: h.c.log, Number: b.Number}, h.c.cfg.Fence, nil
}

// Run makes one snapshot.
func (h handler) Run(ctx context.Context, j *work.Job) error {
	err := h.c.make(ctx, j)
	if err != nil {
		err = fmt.Errorf("snapshot %s: %w", j.Key(), err)
	}
	return err
}
