package s3api

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

const (
	// firstPiece, bytes, of a body must have arrived before memory is reserved for all of it: a client
	// may declare a length and never send the bytes. The memory of the first pieces is bounded by
	// the number of requests.
	firstPiece = 64 << 10
	// memoryWait is how long a request waits for its share of the memory for bodies.
	memoryWait = 10 * time.Second
	// While others wait for memory, a body that holds some may stall for at most pressureStall and
	// must arrive at pressureRate or more. The more requests wait, the shorter it may stall, down to
	// pressureStallLeast, so that stalled bodies are cut off before the waiting requests reach
	// memoryWait.
	pressureStall      = time.Second
	pressureStallLeast = 250 * time.Millisecond
	pressureRate       = 16 << 10 // bytes a second
	pressureCheck      = 50 * time.Millisecond
)

// memory divides the memory for bodies among requests. A request that waits holds no share, so
// there is no deadlock. A body that holds a share and does not arrive while others wait is cut
// off: stalled clients cannot keep others out.
type memory struct {
	size    int64
	sem     *semaphore.Weighted
	onCut   func()
	mu      sync.Mutex
	holders map[*share]struct{}
	waiters int
	check   *time.Timer // runs while requests wait
}

// newMemory makes a memory of size bytes. onCut is called for every body that is cut off; it may be
// nil.
func newMemory(size int64, onCut func()) *memory {
	if onCut == nil {
		onCut = func() {}
	}
	return &memory{size: size, sem: semaphore.NewWeighted(size), onCut: onCut, holders: map[*share]struct{}{}}
}

// share is one body's part of the memory.
type share struct {
	m     *memory
	n     int64
	since time.Time
	conn  *http.ResponseController

	arrived atomic.Int64 // bytes since the share was given
	reading atomic.Int64 // when the present read of the body began, Unix nanoseconds; 0: no read runs
	revoked atomic.Bool
}

// acquire waits for n bytes, at most memoryWait. conn is the connection whose body will fill them.
func (m *memory) acquire(ctx context.Context, n int64, conn *http.ResponseController) (*share, error) {
	n = min(n, m.size) // a body above the whole memory would wait for ever
	if !m.sem.TryAcquire(n) {
		ctx, cancel := context.WithTimeout(ctx, memoryWait)
		defer cancel()
		m.countWaiters(+1)
		err := m.sem.Acquire(ctx, n)
		m.countWaiters(-1)
		if err != nil {
			return nil, s3err.SlowDown
		}
	}
	// Transfer times of sockets are wall time by nature.
	s := &share{m: m, n: n, since: time.Now(), conn: conn}
	m.mu.Lock()
	m.holders[s] = struct{}{}
	m.mu.Unlock()
	return s, nil
}

func (s *share) release() {
	s.m.mu.Lock()
	delete(s.m.holders, s)
	s.m.mu.Unlock()
	s.m.sem.Release(s.n)
}

// countWaiters changes the number of waiting requests. The first one starts the check of the
// holders, which repeats until nobody waits.
func (m *memory) countWaiters(change int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiters += change; m.waiters == 1 && change > 0 {
		m.check = time.AfterFunc(pressureCheck, m.cutSlowBodies)
	}
}

// cutSlowBodies ends the read of every body that is too slow, by an expired deadline. Its request
// then fails and releases the share.
func (m *memory) cutSlowBodies() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiters == 0 {
		return
	}
	now := time.Now()
	stall := max(pressureStall/time.Duration(1+m.waiters/max(len(m.holders), 1)), pressureStallLeast)
	for s := range m.holders {
		if s.slow(now, stall) && s.revoked.CompareAndSwap(false, true) {
			m.onCut()
			_ = s.conn.SetReadDeadline(now) // fails only if the connection is gone
		}
	}
	m.check.Reset(pressureCheck)
}

// slow reports whether a share waits for its client, and the client stalls or sends too slowly. A
// body that is being hashed or written is not slow: it waits for this store.
func (s *share) slow(now time.Time, stall time.Duration) bool {
	began := s.reading.Load()
	if began == 0 {
		return false
	}
	held := now.Sub(s.since)
	return now.Sub(time.Unix(0, began)) > stall ||
		held > pressureStall && float64(s.arrived.Load()) < held.Seconds()*pressureRate
}
