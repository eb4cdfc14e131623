package peerframes

import (
	"sync"
	"time"
)

// Waits of a circuit.
const (
	// tolerated failures in a row change nothing.
	tolerated   = 3
	firstPause  = time.Second
	longestStop = time.Minute
)

// circuit says whether a collector is to be asked. After some failures in a row it is not, for a while that doubles;
// then one call tries.
type circuit struct {
	mu       sync.Mutex
	failures int
	until    time.Time // not before; zero while it works
}

// allows reports whether a call may be made at now, and lets only one try after a pause.
func (c *circuit) allows(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.until) {
		return false
	}
	if !c.until.IsZero() {
		c.until = now.Add(c.pause())
	}
	return true
}

// failed notes a call that was of no use. After one that no collector in order would answer so, the pause is the longest.
func (c *circuit) failed(now time.Time, lies bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures++
	if lies {
		c.failures = max(c.failures, tolerated+10)
	}
	if c.failures >= tolerated {
		c.until = now.Add(c.pause())
	}
}

func (c *circuit) worked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures, c.until = 0, time.Time{}
}

func (c *circuit) pause() time.Duration {
	return min(firstPause<<min(max(c.failures-tolerated, 0), 10), longestStop)
}
