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
	// firstPiece of a body must have arrived before memory is reserved for all of it: a
	// declared length is a promise of the client, and may never be kept. These pieces
	// are bounded by the number of requests alone.
	firstPiece = 64 << 10
	// memoryWait is how long a request waits for its share of the memory for bodies.
	memoryWait = 10 * time.Second
	// pressureStall and pressureRate are what a body must keep up while others wait for
	// the memory that it holds. The more wait, the shorter it may stall, down to
	// pressureStallLeast, so that a queue of stalled bodies is through before those that
	// wait behind it are sent away.
	pressureStall      = time.Second
	pressureStallLeast = 250 * time.Millisecond
	pressureRate       = 16 << 10 // bytes a second
	pressureCheck      = 50 * time.Millisecond
)

// memory shares the memory for bodies out among requests. Nobody who waits holds a
// share, so waiting can't lock up. Who holds one and does not send, while others wait,
// is cut off and gives it back: stalled clients can't keep the others out.
type memory struct {
	size    int64
	sem     *semaphore.Weighted
	onCut   func()
	mu      sync.Mutex
	holders map[*share]struct{}
	waiters int
	check   *time.Timer // runs while somebody waits
}

// newMemory makes a memory of size bytes. onCut hears of every body that is cut off; nil: nobody does.
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
	reading atomic.Int64 // unix ns when the read began that goes on; 0: none does
	revoked atomic.Bool
}

// acquire waits for n bytes, for memoryWait at most; conn is whose body will fill them.
func (m *memory) acquire(ctx context.Context, n int64, conn *http.ResponseController) (*share, error) {
	n = min(n, m.size)
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

// countWaiters counts who waits, and has the holders checked as long as anybody does.
func (m *memory) countWaiters(change int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiters += change; m.waiters == 1 && change > 0 {
		m.check = time.AfterFunc(pressureCheck, m.cutSlowBodies)
	}
}

// cutSlowBodies cuts off the bodies that do not keep up.
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
			_ = s.conn.SetReadDeadline(now) // of a connection that is gone at worst
		}
	}
	m.check.Reset(pressureCheck)
}

// slow says whether a share waits for its client, who stalls or trickles. One whose
// bytes are being hashed or written waits for nobody but us.
func (s *share) slow(now time.Time, stall time.Duration) bool {
	began := s.reading.Load()
	if began == 0 {
		return false
	}
	held := now.Sub(s.since)
	return now.Sub(time.Unix(0, began)) > stall ||
		held > pressureStall && float64(s.arrived.Load()) < held.Seconds()*pressureRate
}
