package reconciler

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
)

// source is how a manifest was found.
type source string

const (
	fromJournal   source = "journal"
	fromFullAudit source = "full_audit"
	fromScrub     source = "scrub"
	fromRepair    source = "repair"
)

func sources() []source {
	return []source{fromJournal, fromFullAudit, fromScrub, fromRepair}
}

// item is one manifest to reconcile. Only the queue and the worker that took it use it.
type item struct {
	key       string
	src       source
	headFirst bool // most derived keys exist already
	recheck   bool // a repair record is open
	read      bool // the bytes of the frame are hashed
	queuedAt  time.Time
	tries     int
	due       time.Time
	rounds    []*round
}

// offerResult is what happened to an offer.
type offerResult int

const (
	offerQueued offerResult = iota
	offerKnown              // it waits already, or is being reconciled
	offerFull
)

// queue is a bounded queue that holds each key once, from its offer to its end: while it
// waits, is being reconciled, or waits for a retry.
type queue struct {
	capacity, maxDelayed int

	mu      sync.Mutex
	cond    *sync.Cond // signalled when an item is ready, and when there is room
	items   map[string]*item
	ready   []*item // from head on
	head    int
	delayed byDue
}

func newQueue(capacity, maxDelayed int) *queue {
	q := &queue{capacity: capacity, maxDelayed: maxDelayed, items: map[string]*item{}}
	q.cond = sync.NewCond(&q.mu)
	return q
}

// offer adds an item. It never waits.
func (q *queue) offer(it *item) offerResult {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.add(it, q.capacity)
}

// put adds an item and waits for room. A quarter of the queue is left to offers, which would otherwise be dropped during each full audit.
func (q *queue) put(ctx context.Context, it *item) error {
	stop := context.AfterFunc(ctx, q.wake)
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	// The context's end wakes this loop through AfterFunc: Wait does not end with it.
	for q.add(it, max(1, q.capacity*3/4)) == offerFull {
		if err := ctx.Err(); err != nil {
			return err
		}
		q.cond.Wait()
	}
	return nil
}

func (q *queue) add(it *item, room int) offerResult {
	// The scan's round waits for the item that is queued already, even if it is being reconciled
	// now: a manifest never changes, so it does not matter when it was read.
	if old := q.items[it.key]; old != nil {
		for _, r := range it.rounds {
			r.join()
			old.rounds = append(old.rounds, r)
		}
		old.recheck, old.read = old.recheck || it.recheck, old.read || it.read
		return offerKnown
	}
	if len(q.items) >= room {
		return offerFull
	}
	for _, r := range it.rounds {
		r.join()
	}
	q.items[it.key] = it
	q.push(it)
	return offerQueued
}

func (q *queue) push(it *item) {
	// When everything was taken, the slice starts again at its beginning and does not grow.
	if q.head > 0 && q.head == len(q.ready) {
		q.ready, q.head = q.ready[:0], 0
	}
	q.ready = append(q.ready, it)
	q.cond.Broadcast()
}

// take waits for the next manifest.
func (q *queue) take(ctx context.Context) (*item, error) {
	stop := context.AfterFunc(ctx, q.wake)
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if q.head < len(q.ready) {
			it := q.ready[q.head]
			q.ready[q.head] = nil
			q.head++
			return it, nil
		}
		q.cond.Wait()
	}
}

// options returns the item's options, which an offer of the same key may have changed since it was queued.
func (q *queue) options(it *item) reconcile.Options {
	q.mu.Lock()
	defer q.mu.Unlock()
	return reconcile.Options{HeadFirst: it.headFirst, Recheck: it.recheck, Read: it.read}
}

// finish ends an item. ok says that its manifest was reconciled, or its fault reported.
func (q *queue) finish(it *item, ok bool) {
	q.mu.Lock()
	delete(q.items, it.key)
	// After the delete no offer can add a round to this item.
	rounds := it.rounds
	q.mu.Unlock()
	q.cond.Broadcast()
	for _, r := range rounds {
		r.leave(ok)
	}
}

// retryAt schedules an item for due. Without room it ends the item and returns false; a scan finds the manifest again.
func (q *queue) retryAt(it *item, due time.Time) bool {
	q.mu.Lock()
	if len(q.delayed) >= q.maxDelayed {
		q.mu.Unlock()
		q.finish(it, false)
		return false
	}
	defer q.mu.Unlock()
	it.due = due
	heap.Push(&q.delayed, it)
	return true
}

// promote makes the delayed items that are due ready.
func (q *queue) promote(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.delayed) > 0 && !q.delayed[0].due.After(now) {
		q.push(heap.Pop(&q.delayed).(*item))
	}
}

// length returns the number of manifests that have not ended, and when the first ready one was queued.
func (q *queue) length() (n int, oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head < len(q.ready) {
		oldest = q.ready[q.head].queuedAt
	}
	return len(q.items), oldest
}

func (q *queue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cond.Broadcast()
}

type byDue []*item

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h byDue) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byDue) Push(x any)        { *h = append(*h, x.(*item)) }
func (h *byDue) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return it
}
