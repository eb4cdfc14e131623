// Package worktest is the conformance suite of work.Queue and work.Table: what every back
// end keeps, and what work.Worker relies on.
package worktest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

// Env is a back end under test. Queue or Table may be nil where only the other is run.
type Env struct {
	Queue work.Queue
	Table work.Table
	// Wait lets at least d pass on the back end's clock; with it nil, the suite sleeps.
	Wait func(d time.Duration)
	// Short is a time that is cheap to wait out, at least a second.
	Short time.Duration
}

// Options of the back end that a case wants.
type Options struct {
	// MaxTries of the queue; 0 is its default.
	MaxTries int
	// MaxDead letters that it keeps; 0 is its default.
	MaxDead int
}

// Open makes an empty back end.
type Open func(t *testing.T, o Options) Env

// opTimeout bounds one case.
const opTimeout = 2 * time.Minute

// long is never waited out.
const long = 10 * time.Minute

// patience is how many short times the suite waits for what must come.
const patience = 30

type suite struct {
	*testing.T
	Env
	ctx context.Context
}

type testCase struct {
	name string
	o    Options
	run  func(*suite)
}

// run runs the cases all at once: on a clock that is not the suite's they mostly sleep,
// and t.Parallel lets no more of them do so than there are processors.
func run(t *testing.T, open Open, cases []testCase) {
	var wg sync.WaitGroup
	for _, c := range cases {
		wg.Go(func() {
			t.Run(c.name, func(t *testing.T) {
				env := open(t, c.o)
				if env.Wait == nil {
					env.Wait = time.Sleep
				}
				ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
				t.Cleanup(cancel)
				c.run(&suite{T: t, Env: env, ctx: ctx})
			})
		})
	}
	wg.Wait()
}

var sentinels = []error{work.ErrExists, work.ErrCompleted, work.ErrLive, work.ErrMoved, work.ErrFenced, work.ErrNotFound,
	work.ErrGone, work.ErrFull, work.ErrInvalid, work.ErrUnknown, work.ErrUnavailable}

// want checks that err wraps target, and no other sentinel.
func (t *suite) want(err, target error, what string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%s: got %v, want %v", what, err, target)
	}
	if target == nil {
		return
	}
	for _, s := range sentinels {
		if s != target && errors.Is(err, s) {
			t.Fatalf("%s: %v wraps %v too", what, err, s)
		}
	}
	var e *work.Error
	if !errors.As(err, &e) || e.Op == "" {
		t.Fatalf("%s: %v names no operation", what, err)
	}
}

func (t *suite) ok(err error, what string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// eventually waits until fn reports true.
func (t *suite) eventually(what string, fn func() bool) {
	t.Helper()
	for range patience {
		t.Wait(t.Short)
		if fn() {
			return
		}
	}
	t.Fatalf("%s: not after %d times %v", what, patience, t.Short)
}

func (t *suite) equal(got, want []byte, what string) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: got %d bytes %.40q, want %d bytes %.40q", what, len(got), got, len(want), want)
	}
}

// together runs fn n times at once and counts the answers by their reason, "" is nil.
func together(n int, fn func(i int) error) map[string]int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	counts := map[string]int{}
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			err := fn(i)
			key := ""
			if err != nil {
				key = decision(err)
			}
			mu.Lock()
			counts[key]++
			mu.Unlock()
		})
	}
	close(start)
	wg.Wait()
	return counts
}

// decisions are what callers of both interfaces branch on.
var decisions = []error{work.ErrExists, work.ErrCompleted, work.ErrLive, work.ErrMoved, work.ErrFenced, work.ErrNotFound, work.ErrGone, work.ErrFull,
	work.ErrInvalid, work.ErrUnknown, work.ErrUnavailable}

// decision is the text of the sentinel that err wraps, or its own where it wraps none.
func decision(err error) string {
	for _, d := range decisions {
		if errors.Is(err, d) {
			return d.Error()
		}
	}
	return err.Error()
}
