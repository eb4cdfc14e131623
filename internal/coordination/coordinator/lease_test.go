package coordinator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestLeaseEndsByItsOwnClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := time.Now()
		time.Sleep(2 * time.Second) // the answer was slow: the lease counts from the question
		l := newLease(context.Background(), "s", sent, 10*time.Second)
		g := Grant{lease: l, ctx: l.ctx}
		time.Sleep(6 * time.Second) // 8 s
		if err := g.Check(); err != nil {
			t.Fatal(err)
		}
		l.extend(sent.Add(5*time.Second), 10*time.Second) // to 14 s, a tenth less
		l.extend(sent, 10*time.Second)                    // an answer that was overtaken
		time.Sleep(5900 * time.Millisecond)               // 13.9 s
		if err := g.Check(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if err := context.Cause(l.ctx); !errors.Is(err, ErrLeaseExpired) {
			t.Errorf("after the deadline: %v", err)
		}
		l.extend(time.Now(), 10*time.Second)
		if err := g.Check(); !errors.Is(err, ErrLeaseExpired) {
			t.Errorf("a lease that has ended was extended: %v", err)
		}
	})
}

// TestCheckIsFasterThanTheTimer: a worker that was paused asks before its timer has run.
func TestCheckIsFasterThanTheTimer(t *testing.T) {
	l := newLease(context.Background(), "s", time.Now(), time.Hour)
	defer l.end(ErrLost)
	l.timer.Stop()
	g := Grant{lease: l, ctx: l.ctx}
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	l.deadline = time.Now().Add(-time.Nanosecond)
	l.extend(time.Now(), time.Hour)
	if err := g.Check(); !errors.Is(err, ErrLeaseExpired) {
		t.Errorf("past the deadline: %v", err)
	}
}

func TestCauseIsThatOfTheGrant(t *testing.T) {
	l := newLease(context.Background(), "s", time.Now(), time.Hour)
	ctx, cancel := context.WithCancelCause(l.ctx)
	cancel(ErrRevoked)
	l.end(ErrLost)
	if err := (Grant{lease: l, ctx: ctx}).Check(); !errors.Is(err, ErrRevoked) {
		t.Error(err)
	}
}

func TestSettingsAreRefused(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Addresses = nil },
		func(c *Config) { c.DrainTimeout = 0 },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := NewOwner(c, "rollup", 4, Deps{}); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	if _, err := NewOwner(DefaultConfig(), "rollup", 0, Deps{}); err == nil {
		t.Error("no shards are taken")
	}
	if o, err := NewOwner(DefaultConfig(), "rollup", 4, Deps{}); err != nil || o.WorkerID() == "" {
		t.Errorf("the host's name: %v", err)
	}
}
