package retry

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// clock advances by every sleep, and by cost whenever it is read.
type clock struct {
	now   time.Time
	cost  time.Duration
	slept []time.Duration
}

func (c *clock) Now() time.Time {
	c.now = c.now.Add(c.cost)
	return c.now
}

func (c *clock) Sleep(ctx context.Context, d time.Duration) error {
	c.now = c.now.Add(d)
	c.slept = append(c.slept, d)
	return ctx.Err()
}

var (
	errMend  = errors.New("later")
	errFinal = errors.New("never")
)

func again(err error) bool { return errors.Is(err, errMend) }

func TestAttemptsEnd(t *testing.T) {
	policy := Policy{Attempts: 4, Base: 10, Cap: 25}
	for _, c := range []struct {
		name  string
		errs  []error // of the attempts; the last one stays
		want  error
		slept []time.Duration
	}{
		{"at once", []error{nil}, nil, nil},
		{"at the second", []error{errMend, nil}, nil, []time.Duration{10}},
		{"at what no attempt can mend", []error{errMend, errFinal}, errFinal, []time.Duration{10}},
		{"at the bound", []error{errMend}, errMend, []time.Duration{10, 20, 25}},
	} {
		k, n := &clock{}, 0
		err := Retrier{Policy: policy, Clock: k}.Do(t.Context(), func(context.Context) error {
			n++
			return c.errs[min(n, len(c.errs))-1]
		}, again)
		if !errors.Is(err, c.want) || !slices.Equal(k.slept, c.slept) || n != len(c.slept)+1 {
			t.Errorf("%s: %v after %d attempts and %v", c.name, err, n, k.slept)
		}
	}
}

func TestElapsedTimeEndsTheAttempts(t *testing.T) {
	k, n := &clock{cost: time.Millisecond}, 0
	r := Retrier{Policy: Policy{Attempts: 100, Base: 10 * time.Millisecond, Cap: 10 * time.Millisecond, Elapsed: 50 * time.Millisecond}, Clock: k}
	err := r.Do(t.Context(), func(context.Context) error { n++; return errMend }, again)
	if !errors.Is(err, errMend) || n < 2 || n > 5 {
		t.Errorf("%v after %d attempts", err, n)
	}
}

// What an attempt ended with stays, whatever ends the attempts.
func TestTheContextEndsTheAttempts(t *testing.T) {
	r := Retrier{Policy: Policy{Attempts: 100, Base: time.Hour, Cap: time.Hour}, Clock: &clock{now: time.Now()}}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := r.Do(ctx, func(context.Context) error { n++; cancel(); return errMend }, again)
	if !errors.Is(err, errMend) || n != 1 {
		t.Errorf("canceled: %v after %d attempts", err, n)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	k := &clock{now: time.Now()}
	r.Clock = k
	if err := r.Do(ctx, func(context.Context) error { return errMend }, again); !errors.Is(err, errMend) || len(k.slept) != 0 {
		t.Errorf("a wait beyond the deadline: %v after %v", err, k.slept)
	}
}

func TestWaitsDoubleWithJitter(t *testing.T) {
	p := Policy{Attempts: 9, Base: 16 * time.Millisecond, Cap: 100 * time.Millisecond}
	for n := 1; n < 9; n++ {
		top := min(16*time.Millisecond<<(n-1), 100*time.Millisecond)
		if lo, mid, hi := p.Wait(n, 0), p.Wait(n, 0.5), p.Wait(n, 1); lo != top/2 || hi != top || mid <= lo || mid >= hi {
			t.Errorf("wait %d: %s, %s, %s, want up to %s", n, lo, mid, hi, top)
		}
	}
}

func TestPolicyIsChecked(t *testing.T) {
	good := Policy{Attempts: 1, Base: 1, Cap: 1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, p := range []Policy{{}, {Attempts: 1000, Base: 1, Cap: 1}, {Attempts: 1, Base: 2, Cap: 1}, {Attempts: 1, Base: 1, Cap: 1, Elapsed: -1}} {
		if p.Validate() == nil {
			t.Errorf("%+v is taken", p)
		}
	}
}
