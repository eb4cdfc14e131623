// Package arrivals follows the acceptance journal for a worker: one follower for all shards that it owns. What
// arrives is queued for the owners of its shards; who begins to own a shard, or has lost something, catches up.
//
// The decisions are the journal's. This package has the loop, and the one place where batches wait for a busy owner.
package arrivals

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
)

const (
	// readsAtOnce bounds the segments and files that are read at once.
	readsAtOnce = 16
	// pollTimeout bounds one poll, and catchUpTimeout the reading of everything since a shard's positions.
	pollTimeout    = time.Minute
	catchUpTimeout = 30 * time.Minute
	// handOver is how many batches of one shard are handed over at once while a shard catches up.
	handOver = 5_000
)

// Config of the arrivals of one worker.
type Config struct {
	Store     journal.FollowerStore
	Authority string
	Shards    uint32
	// Interval between two polls that find something, Idle the longest one between two that do not: it doubles until then.
	Interval, Idle time.Duration
	// Watch names whose hints are taken. While all of them are connected, what they hint at is read at once, and
	// polls, which prove that nothing was missed, are Idle apart.
	Watch []string
	// Gather is how long a shard that catches up waits for others, so that the journal is read once for all of them.
	Gather time.Duration
	// MaxQueued bounds the batches of all shards that wait for their owners.
	MaxQueued int
	// Peers are the collectors that are watched, and Frames keeps the frames that they send; Frames nil asks for none.
	Peers   *peerframes.Set
	Frames  FrameKeeper
	Metrics *metrics.Metrics
	Log     *slog.Logger
}

// Hub has the worker's follower. It is safe for concurrent use.
type Hub struct {
	cfg Config

	polling  sync.Mutex
	follower *journal.Follower // nil: nothing was read yet

	watches *watches
	frames  *taker

	mu     sync.Mutex
	queues map[shard.ID][]*Queue
	queued int

	gathering sync.Mutex
	waiting   *reading // shards that wait for the next reading; nil: none
}

// New makes a hub that has read nothing.
func New(c Config) *Hub {
	if c.Peers == nil {
		c.Peers = peerframes.New(peerframes.Config{})
	}
	return &Hub{cfg: c, frames: newTaker(&c), queues: map[shard.ID][]*Queue{}, watches: newWatches(&c)}
}

// Watch takes the hints of one of Config.Watch until ctx ends.
func (h *Hub) Watch(ctx context.Context, addr string, c rpc.ClientConfig) error {
	return h.watches.peers.Watch(ctx, addr, c, watched{h.watches, addr})
}

// TakeFrames takes the frames of what arrives from the collectors that have them in memory, until ctx ends.
func (h *Hub) TakeFrames(ctx context.Context) error { return h.frames.run(ctx) }

// Run polls until ctx ends.
func (h *Hub) Run(ctx context.Context) error {
	wait := h.cfg.Interval
	for {
		found, err := h.Poll(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			h.cfg.Log.Warn("the journal could not be read; it is tried again", "error", err)
			wait = h.cfg.Interval
		case found:
			wait = h.cfg.Interval
		default:
			wait = min(2*wait, max(h.cfg.Idle, h.cfg.Interval))
		}
		if err := h.wait(ctx, h.pause(wait, err)); err != nil {
			return err
		}
	}
}

// pause is the time until the next poll: wait, unless the last poll found no fault and hints say what comes.
func (h *Hub) pause(wait time.Duration, err error) time.Duration {
	if err == nil && h.watches.all() {
		return max(h.cfg.Idle, h.cfg.Interval)
	}
	return wait
}

// wait reads what hints are about until it is time for a poll.
func (h *Hub) wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			return nil
		case <-h.watches.kick:
			return nil
		case at := <-h.watches.hints:
			if h.follow(ctx, at) {
				return nil
			}
		}
	}
}

// follow reads what the hint is about, and the others that wait, and reports whether a poll has to find the rest.
func (h *Hub) follow(ctx context.Context, first journal.Position) (poll bool) {
	// Of each run the last position.
	last := map[journal.RunID]uint64{first.Run: first.Segment}
	for range len(h.watches.hints) {
		at := <-h.watches.hints
		last[at.Run] = max(last[at.Run], at.Segment)
	}
	var through []journal.Position
	for id, n := range last {
		through = append(through, journal.Position{Run: id, Segment: n})
	}
	// No poll runs meanwhile: one that finds that the journal went back forgets what was read.
	h.polling.Lock()
	defer h.polling.Unlock()
	if h.follower == nil {
		return true
	}
	known := make([]bool, len(through))
	err := Fan(ctx, len(through), func(ctx context.Context, i int) (err error) {
		known[i], err = h.follower.Read(ctx, through[i])
		return err
	})
	if err != nil {
		h.cfg.Log.Debug("hints are not followed; a poll will", "error", err)
		return true
	}
	for _, k := range known {
		poll = poll || !k
	}
	return poll
}

// Poll reads what is new in the journal once, and queues it. found: there was something.
func (h *Hub) Poll(ctx context.Context) (found bool, err error) {
	h.polling.Lock()
	defer h.polling.Unlock()
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	defer func() {
		outcome := "ok"
		if err != nil {
			outcome = "failed"
		}
		h.cfg.Metrics.Polls.WithLabelValues(outcome).Inc()
	}()
	if err := h.begin(ctx); err != nil {
		return false, err
	}
	polled, err := h.follower.Poll(ctx)
	if errors.Is(err, journal.ErrHeadWentBack) {
		// An older copy of the bucket was put in its place. What this worker has read may not be there any more.
		h.follower = nil
		h.loseAll()
	}
	if err != nil {
		return false, err
	}
	h.cfg.Metrics.Segments.Add(float64(polled.Segments))
	h.mark(polled.Positions)
	return polled.Entries > 0, nil
}

// begin makes the follower unless there is one; the caller holds polling. It starts with what is not folded: whoever
// begins to own a shard catches up with the rest, and not before there is a follower that has what comes later.
func (h *Hub) begin(ctx context.Context) error {
	if h.follower != nil {
		return nil
	}
	head, _, err := journal.ReadHead(ctx, h.cfg.Store)
	if err != nil {
		return err
	}
	h.follower, err = journal.NewFollower(journal.FollowerConfig{
		Store: h.cfg.Store, Authority: h.cfg.Authority, From: head.Positions(), Fan: Fan,
		Segment: func(_ context.Context, s *journal.Segment) error {
			h.frames.want(s.Run, h.deliver(s.Entries))
			return nil
		},
		Folded: func(_ context.Context, es []journal.Entry) error { h.deliver(es); return nil },
	})
	return err
}

// Fan is a journal.Fan that reads several at once.
func Fan(ctx context.Context, n int, do func(context.Context, int) error) error {
	var g errgroup.Group // without a context of its own: an error of one does not stop the others
	g.SetLimit(readsAtOnce)
	errs := make([]error, n)
	for i := range n {
		g.Go(func() error { errs[i] = do(ctx, i); return nil })
	}
	_ = g.Wait() // the errors are in errs
	return errors.Join(errs...)
}

// split gives the accepted batches of entries by shard.
func split(es []journal.Entry, shards uint32, wanted func(shard.ID) bool) map[shard.ID][]accepted.Batch {
	out := map[shard.ID][]accepted.Batch{}
	for i := range es {
		if !es[i].Outcome.Counts() {
			continue
		}
		if id := shard.Of(es[i].ID.Agent, shards); wanted(id) {
			out[id] = append(out[id], es[i].Batch())
		}
	}
	return out
}

// deliver queues batches, and gives those that anybody owns.
func (h *Hub) deliver(es []journal.Entry) map[shard.ID][]accepted.Batch {
	h.mu.Lock()
	defer h.mu.Unlock()
	owned := split(es, h.cfg.Shards, func(id shard.ID) bool { return len(h.queues[id]) > 0 })
	for id, batches := range owned {
		for _, q := range h.queues[id] {
			q.add(batches)
		}
	}
	return owned
}

// mark tells the owners through which positions everything is in their queues.
func (h *Hub) mark(p journal.Positions) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, qs := range h.queues {
		for _, q := range qs {
			if q.lost {
				continue
			}
			q.marks = append(q.marks, mark{q.taken + uint64(len(q.batches)), p})
			if len(q.marks) > maxMarks {
				q.marks = q.marks[1:] // an owner that is busy for long needs the newer ones
			}
		}
	}
}

func (h *Hub) loseAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, qs := range h.queues {
		for _, q := range qs {
			q.lose()
		}
	}
}

// Queue has what arrived for one owner of a shard.
type Queue struct {
	hub   *Hub
	shard shard.ID
	sink  func([]accepted.Batch)

	// Guarded by hub.mu.
	batches []accepted.Batch
	taken   uint64 // batches that were taken before the first of batches
	marks   []mark
	lost    bool
}

// mark is behind the first n batches of a queue.
type mark struct {
	n  uint64
	at journal.Positions
}

const maxMarks = 16

// Open makes a queue for what arrives from now on. sink, unless it is nil, is called with it at once; it must not
// block. The owner closes the queue.
func (h *Hub) Open(id shard.ID, sink func([]accepted.Batch)) *Queue {
	q := &Queue{hub: h, shard: id, sink: sink}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queues[id] = append(h.queues[id], q)
	return q
}

// Close ends the queue.
func (q *Queue) Close() {
	q.hub.mu.Lock()
	defer q.hub.mu.Unlock()
	q.lose()
	qs := q.hub.queues[q.shard]
	for i := range qs {
		if qs[i] == q {
			q.hub.queues[q.shard] = append(qs[:i:i], qs[i+1:]...)
			break
		}
	}
	if len(q.hub.queues[q.shard]) == 0 {
		delete(q.hub.queues, q.shard)
	}
}

// add queues batches; the caller holds hub.mu.
func (q *Queue) add(batches []accepted.Batch) {
	if q.sink != nil {
		q.sink(batches)
	}
	if q.lost {
		return // the owner catches up anyhow
	}
	if q.hub.queued+len(batches) > q.hub.cfg.MaxQueued {
		q.lose()
		return
	}
	q.batches = append(q.batches, batches...)
	q.hub.queued += len(batches)
}

// lose forgets everything; the caller holds hub.mu.
func (q *Queue) lose() {
	q.hub.queued -= len(q.batches)
	q.taken += uint64(len(q.batches))
	q.batches, q.marks, q.lost = nil, nil, true
}

// Take gives up to n batches. through is not nil where these are the last ones before positions. lost: what
// arrived was forgotten, because there was no room or the journal went back, and the owner has to catch up; from
// now on everything is queued again.
func (q *Queue) Take(n int) (batches []accepted.Batch, through *journal.Positions, lost bool) {
	q.hub.mu.Lock()
	defer q.hub.mu.Unlock()
	if q.lost {
		q.lost = false
		return nil, nil, true
	}
	// Up to the next mark, so that the marks stand between the batches.
	for len(q.marks) > 0 && q.marks[0].n == q.taken {
		through = &q.marks[0].at
		q.marks = q.marks[1:]
	}
	if through != nil {
		return nil, through, false
	}
	n = min(n, len(q.batches))
	if len(q.marks) > 0 {
		n = min(n, int(q.marks[0].n-q.taken))
	}
	batches = append(batches, q.batches[:n]...)
	q.batches = q.batches[n:]
	if len(q.batches) == 0 {
		q.batches = nil // so that the memory of a burst is freed
	}
	q.taken += uint64(n)
	q.hub.queued -= n
	return batches, nil, false
}

// reading is one reading of the journal for several shards.
type reading struct {
	of   []*catchUp
	done chan struct{}
	to   journal.Positions
	err  error
}

// catchUp is one shard of a reading.
type catchUp struct {
	ctx   context.Context // ends when its caller has
	shard shard.ID
	from  journal.Positions
	// out has no buffer: the reading waits for slow shards.
	out chan []accepted.Batch

	mu      sync.Mutex
	batches []accepted.Batch // that wait until there are enough of them
}

// CatchUp reads everything that the journal has after from, hands the shard's batches to take, and returns the
// positions through which it has read. It reads once for all shards that begin at about the same time. An error of
// take ends it, and is none of the others.
func (h *Hub) CatchUp(ctx context.Context, id shard.ID, from journal.Positions, take func([]accepted.Batch) error) (journal.Positions, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &catchUp{ctx: ctx, shard: id, from: from, out: make(chan []accepted.Batch)}
	h.gathering.Lock()
	r := h.waiting
	if r == nil {
		r = &reading{done: make(chan struct{})}
		h.waiting = r
	}
	if r.of = append(r.of, c); len(r.of) == 1 {
		go h.readFor(r)
	}
	h.gathering.Unlock()
	for {
		select {
		case batches := <-c.out:
			if err := take(batches); err != nil {
				return journal.Positions{}, err
			}
		case <-r.done:
			return r.to, r.err
		case <-ctx.Done():
			return journal.Positions{}, ctx.Err()
		}
	}
}

// readFor gathers shards, and reads the journal for them. It goes on when one of them is given away, because the others
// wait for it, and ends when all are.
func (h *Hub) readFor(r *reading) {
	defer close(r.done)
	_ = run.WallClock{}.Sleep(context.Background(), h.cfg.Gather) // it is never cut short
	h.gathering.Lock()
	h.waiting = nil
	h.gathering.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), catchUpTimeout)
	defer cancel()
	var waiting atomic.Int64
	waiting.Store(int64(len(r.of)))
	for _, c := range r.of {
		stop := context.AfterFunc(c.ctx, func() {
			if waiting.Add(-1) == 0 {
				cancel()
			}
		})
		defer stop()
	}
	h.polling.Lock()
	r.err = h.begin(ctx)
	h.polling.Unlock()
	if r.err == nil {
		r.to, r.err = h.read(ctx, r.of)
	}
}

// read reads the journal for several shards.
func (h *Hub) read(ctx context.Context, of []*catchUp) (journal.Positions, error) {
	from := of[0].from
	byShard := map[shard.ID][]*catchUp{}
	for _, c := range of {
		from = journal.Earliest(from, c.from)
		byShard[c.shard] = append(byShard[c.shard], c)
	}
	apply := func(ctx context.Context, es []journal.Entry) error {
		for id, batches := range split(es, h.cfg.Shards, func(id shard.ID) bool { return byShard[id] != nil }) {
			for _, c := range byShard[id] {
				if err := c.add(ctx, batches, handOver); err != nil {
					return err
				}
			}
		}
		return nil
	}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: h.cfg.Store, Authority: h.cfg.Authority, From: from, Fan: Fan, Folded: apply,
		Segment: func(ctx context.Context, s *journal.Segment) error { return apply(ctx, s.Entries) },
	})
	if err != nil {
		return journal.Positions{}, err
	}
	polled, err := f.Poll(ctx)
	if err != nil {
		return journal.Positions{}, fmt.Errorf("catch up with the journal: %w", err)
	}
	return polled.Positions, Fan(ctx, len(of), func(ctx context.Context, i int) error { return of[i].add(ctx, nil, 0) })
}

// add hands batches over when more than n wait.
func (c *catchUp) add(ctx context.Context, batches []accepted.Batch, n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batches = append(c.batches, batches...)
	if len(c.batches) <= n {
		return nil
	}
	select {
	case c.out <- c.batches:
	case <-c.ctx.Done(): // its shard was given away, or it has failed, which is no failure of the others
	case <-ctx.Done():
		return ctx.Err()
	}
	c.batches = nil
	return nil
}
