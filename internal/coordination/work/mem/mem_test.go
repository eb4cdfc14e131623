package mem_test

import (
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/work/worktest"
)

// clock is moved by the suite.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Wait(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func open(t *testing.T, o worktest.Options) worktest.Env {
	c := &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	s := mem.New(c.Now, mem.Options{MaxTries: o.MaxTries, MaxDead: o.MaxDead})
	return worktest.Env{Queue: s, Table: s, Wait: c.Wait, Short: time.Second}
}

func TestQueueConformance(t *testing.T) { worktest.Queue(t, open) }
func TestTableConformance(t *testing.T) { worktest.Table(t, open) }
