// Package mem is the queue and the table of pending work in memory: linearizable and
// deterministic. It serves tests, the simulation and processes that live alone.
package mem

import (
	"context"
	"fmt"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

// Options of New.
type Options struct {
	// MaxTries is how often a message is delivered; 0 means work.DefaultMaxTries.
	MaxTries int
	// MaxDead letters of a topic are kept; 0 means work.MaxDeadLetters.
	MaxDead int
}

// Store is both; safe for concurrent use. Every operation takes effect at one moment.
type Store struct {
	now  func() time.Time
	opts Options

	mu     sync.Mutex
	next   uint64
	topics map[string]*topic
	rows   map[work.Key]*row
	order  []string // tokens of the rows, ascending
	logs   map[string]work.Log
}

var (
	_ work.Queue = (*Store)(nil)
	_ work.Table = (*Store)(nil)
)

// New makes an empty store whose times come from now.
func New(now func() time.Time, o Options) *Store {
	if o.MaxTries <= 0 {
		o.MaxTries = work.DefaultMaxTries
	}
	if o.MaxDead <= 0 {
		o.MaxDead = work.MaxDeadLetters
	}
	return &Store{now: now, opts: o, topics: map[string]*topic{}, rows: map[work.Key]*row{}, logs: map[string]work.Log{}}
}

func (s *Store) number() uint64 {
	s.next++
	return s.next
}

// alive refuses a call whose context has ended.
func alive(ctx context.Context, op, key string) error {
	if err := ctx.Err(); err != nil {
		return &work.Error{Op: op, Key: key, Err: fmt.Errorf("%w: %w", work.ErrUnavailable, err)}
	}
	return nil
}
