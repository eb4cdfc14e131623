package follow

import (
	"context"
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/queries/missing"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// queue has the batches whose frames are to be fetched, in the order in which the journal named them.
// It knows how far they are done: what a poll proves counts once every batch that was named before its end
// is done, however slow one frame is and whatever was named since.
type queue struct {
	most    int
	shardOf func(agent string) uint32

	mu     sync.Mutex
	tail   uint64                   // ticket of the batch that was added last
	order  []*want                  // in the order of tickets, from the first that is not done
	byID   map[identity.Batch]*want // that are not done
	ready  []*want                  // nobody fetches them; in the order of tickets, but for those that failed
	tally  missing.Tally            // of what is not done
	marks  []mark
	passed mark // the newest mark whose batches are all done
	// more is told when there is something to fetch, full when nothing more fits; done is closed and
	// replaced when a batch is done.
	more, full, done chan struct{}
}

// want is one batch to fetch.
type want struct {
	batch  accepted.Batch
	ticket uint64
	// notBefore is when a batch whose fetch failed is tried again.
	notBefore time.Time
	failures  int
	// run is where the journal named the batch; zero where nobody knows. The collector of that run may have the frame.
	run journal.RunID
	// stored: the frame is to be read from the store; its collector was asked, or is not to be.
	stored bool
	done   bool
	shard  uint32
}

// mark is what a poll proves once all batches up to a ticket are done.
type mark struct {
	upTo    uint64
	through time.Time // by the store's clock
	since   time.Time // at or before through, by this machine's clock: only for its age
	begun   bool      // the journal has every accepted batch
	blocks  bool      // memory has what blocks lack
}

const (
	// maxQueued bounds the batches that wait; whoever reads the journal waits then.
	maxQueued = 100_000
	// maxMarks bounds the polls that wait for slow frames; further ones prove nothing until one is done.
	maxMarks = 64
)

func newQueue(most int) *queue {
	return &queue{most: most, shardOf: func(string) uint32 { return missing.NoShard }, byID: map[identity.Batch]*want{},
		more: make(chan struct{}, 1), full: make(chan struct{}, 1), done: make(chan struct{})}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// add adds the batches that are not there. It waits while the queue is full.
func (q *queue) add(ctx context.Context, run journal.RunID, batches []accepted.Batch) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	// At the end, so that what one segment names is fetched together.
	defer signal(q.more)
	for i := range batches {
		if err := q.addOne(ctx, run, batches[i]); err != nil {
			return err
		}
	}
	return nil
}

// addOne adds a batch. The caller holds mu, which is released while the queue is full.
func (q *queue) addOne(ctx context.Context, run journal.RunID, b accepted.Batch) error {
	for {
		if q.byID[b.Identity] != nil {
			return nil // its ticket is older, so whoever waits for this one waits for it
		}
		if len(q.byID) < q.most {
			break
		}
		done := q.done
		signal(q.more)
		signal(q.full)
		q.mu.Unlock()
		select {
		case <-done:
			q.mu.Lock()
		case <-ctx.Done():
			q.mu.Lock()
			return ctx.Err()
		}
	}
	q.tail++
	w := &want{batch: b, ticket: q.tail, shard: q.shardOf(b.Identity.Agent), run: run}
	q.tally.Add(w.shard, hoursOf(&b), 1)
	q.byID[b.Identity], q.order = w, append(q.order, w)
	q.ready = append(q.ready, w)
	return nil
}

// next takes a batch that is due at now; nil and the wait until one is due where there is none, 0 for ever.
func (q *queue) next(now time.Time) (*want, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var wait time.Duration
	for i, w := range q.ready {
		d := w.notBefore.Sub(now)
		if d <= 0 {
			if i == 0 {
				// Nearly always, and nothing of a long queue has to move.
				q.ready[0], q.ready = nil, q.ready[1:]
			} else {
				q.ready = slices.Delete(q.ready, i, i+1)
			}
			if len(q.ready) == 0 {
				q.ready = nil // the array of a long queue is given back
			}
			return w, 0
		}
		if wait == 0 || d < wait {
			wait = d
		}
	}
	return nil, wait
}

// searched is how many of those that wait are searched for others of a run.
const searched = 8 * peerframes.MaxFrames

// alike takes batches of the same run as w, which was taken, as many as fit into one call for their frames. w is the
// first of them.
func (q *queue) alike(w *want) []*want {
	q.mu.Lock()
	defer q.mu.Unlock()
	out, bytes := []*want{w}, w.batch.FrameBytes
	window := q.ready[:min(len(q.ready), searched)]
	var rest []*want
	for _, o := range window {
		if o.run == w.run && !o.stored && peerframes.Fits(&o.batch, len(out), bytes) {
			out, bytes = append(out, o), bytes+o.batch.FrameBytes
			continue
		}
		rest = append(rest, o)
	}
	taken := len(window) - len(rest)
	copy(window[taken:], rest)
	clear(window[:taken])
	if q.ready = q.ready[taken:]; len(q.ready) == 0 {
		q.ready = nil
	}
	return out
}

// fromStore returns batches whose collector did not send their frames: the store is asked.
func (q *queue) fromStore(ws []*want) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range ws {
		w.stored = true
	}
	q.ready = append(q.ready, ws...)
	signal(q.more)
}

// takeAll takes everything that nobody fetches, due or not.
func (q *queue) takeAll() []*want {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.ready
	q.ready = nil
	return all
}

// retry returns a batch whose fetch failed, to be tried again at a time.
func (q *queue) retry(w *want, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.notBefore, w.failures, w.stored = at, w.failures+1, true
	q.ready = append(q.ready, w)
	signal(q.more)
}

// finish says that the batch is in memory, known to be missing, or not needed any more.
func (q *queue) finish(w *want) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.done {
		return
	}
	w.done = true
	q.tally.Add(w.shard, hoursOf(&w.batch), -1)
	delete(q.byID, w.batch.Identity)
	for len(q.order) > 0 && q.order[0].done {
		q.order[0], q.order = nil, q.order[1:]
	}
	q.advance()
}

// advance lets marks pass, and wakes who waits. The caller holds mu.
func (q *queue) advance() {
	for len(q.marks) > 0 && q.passedLocked(q.marks[0].upTo) {
		q.passed, q.marks = q.marks[0], q.marks[1:]
	}
	close(q.done)
	q.done = make(chan struct{})
}

// passedLocked reports whether every batch up to the ticket is done.
func (q *queue) passedLocked(upTo uint64) bool {
	return len(q.order) == 0 || q.order[0].ticket > upTo
}

// prove notes what a poll proves, now that it has added everything that it found.
func (q *queue) prove(m mark) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m.upTo = q.tail
	if len(q.marks) < maxMarks {
		q.marks = append(q.marks, m)
	}
	q.advance()
}

// proven is what counts by now.
func (q *queue) proven() mark {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.passed
}

// waiting is how many batches are not done.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.byID)
}

// in says what of a range of hours is not done.
func (q *queue) in(h missing.Hours) missing.Summary {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tally.In(h)
}

// wait waits until everything that was added so far is done.
func (q *queue) wait(ctx context.Context) error {
	q.mu.Lock()
	upTo := q.tail
	for !q.passedLocked(upTo) {
		done := q.done
		q.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
		q.mu.Lock()
	}
	q.mu.Unlock()
	return nil
}
