package failpoint

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Actions.
const (
	Kill  = "kill"  // SIGKILL to itself: nothing is flushed, nothing drained
	Exit  = "exit"  // ends with ExitCode, without a drain
	Panic = "panic" // panics in the goroutine that hit the point
	Stop  = "stop"  // SIGSTOP to itself; somebody else must send SIGCONT
	Sleep = "sleep" // "sleep:250ms" holds the goroutine that hit the point
	Error = "error" // Err gives an error
)

// ExitCode of the action "exit".
const ExitCode = 86

// table is what is armed; it never changes once it is in place.
type table struct {
	points map[string]*arming
	out    io.Writer
}

// arming is one armed point.
type arming struct {
	action string
	sleep  time.Duration
	nth    int64 // only the nth hit acts; 0: each
	hits   atomic.Int64
}

// Arm arms what spec says and nothing else; "" disarms every point. A process calls it once,
// before anything runs; a test that ends operations and not processes calls it around each.
// An unknown point or action is an error, so that no test passes because of a misspelt name.
func Arm(spec string) error { return arm(spec, os.Stderr) }

func arm(spec string, out io.Writer) error {
	if spec == "" {
		armed.Store(nil)
		return nil
	}
	t := &table{points: map[string]*arming{}, out: out}
	for _, part := range strings.Split(spec, ",") {
		name, action, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return fmt.Errorf("%s: %q is not name=action[@n]", Env, part)
		}
		mu.Lock()
		_, ok = known[name]
		mu.Unlock()
		if !ok {
			return fmt.Errorf("%s: no failpoint %q", Env, name)
		}
		if t.points[name] != nil {
			return fmt.Errorf("%s: %q is armed twice", Env, name)
		}
		a, err := parseAction(action)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", Env, name, err)
		}
		t.points[name] = a
	}
	// Only when all of spec is valid, so that a mistake arms nothing.
	armed.Store(t)
	return nil
}

func parseAction(text string) (*arming, error) {
	a := &arming{}
	action, nth, counted := strings.Cut(text, "@")
	if counted {
		n, err := strconv.ParseInt(nth, 10, 32)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("@%s: want a number from 1 on", nth)
		}
		a.nth = n
	}
	var arg string
	var has bool
	a.action, arg, has = strings.Cut(action, ":")
	switch a.action {
	case Sleep:
		var err error
		if a.sleep, err = time.ParseDuration(arg); err != nil || a.sleep <= 0 {
			return nil, fmt.Errorf("sleep:%s: want a duration", arg)
		}
		return a, nil
	case Kill, Exit, Panic, Stop, Error:
		if has {
			return nil, fmt.Errorf("%s takes no argument", a.action)
		}
		return a, nil
	}
	return nil, fmt.Errorf("unknown action %q", a.action)
}

// hit acts when the point is armed and its turn has come. It says so first, in one
// write: whoever armed the point reads there that it was reached.
func (t *table) hit(name string) error {
	a := t.points[name]
	if a == nil {
		return nil
	}
	n := a.hits.Add(1)
	// Compared with the count of this very hit, so that of many concurrent ones exactly one acts.
	if a.nth != 0 && n != a.nth {
		return nil
	}
	fmt.Fprintf(t.out, "failpoint %s: %s at hit %d\n", name, a.action, n)
	switch a.action {
	case Kill:
		killSelf()
	case Exit:
		os.Exit(ExitCode)
	case Panic:
		panic("failpoint " + name)
	case Stop:
		stopSelf()
	case Sleep:
		time.Sleep(a.sleep)
	case Error:
		return fmt.Errorf("failpoint %s: %w", name, ErrInjected)
	}
	return nil
}
