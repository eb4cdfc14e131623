package send_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
)

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	addrs, err := proc.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	return addrs[0]
}

// refused waits until every collector was tried and failed.
func (f *fixture) refused() {
	f.t.Helper()
	for {
		n := 0
		for _, c := range f.sender.Status().Collectors {
			if c.LastError != "" {
				n++
			}
		}
		if n == len(f.cfg.Collectors) {
			return
		}
		select {
		case <-f.ctx.Done():
			f.t.Fatalf("not tried: %+v", f.sender.Status())
		case <-time.After(time.Millisecond):
		}
	}
}

// A stop does not wait for collectors that are not there, however long the back-off.
func TestDrainGivesUpWhenNobodyListens(t *testing.T) {
	f := newFixture(t)
	f.cfg.Collectors = []string{closedPort(t), closedPort(t)}
	f.cfg.BackoffInitial, f.cfg.BackoffMax = time.Hour, time.Hour
	es := f.append(3)
	f.run()
	f.refused()
	if err := f.sender.Drain(f.ctx); !errors.Is(err, send.ErrUnreachable) {
		t.Fatalf("Drain: %v", err)
	}
	if n := f.queue.Stats().Pending; n != len(es) {
		t.Errorf("%d pending, want %d", n, len(es))
	}
}

// A collector that is back is not missed because its back-off has not ended.
func TestDrainTriesAtOnce(t *testing.T) {
	f := newFixture(t)
	back := closedPort(t)
	f.cfg.Collectors = []string{closedPort(t), back}
	f.beginAtFirst()
	f.cfg.BackoffInitial, f.cfg.BackoffMax = time.Hour, time.Hour
	es := f.append(3)
	f.run()
	f.refused()
	c := &sendtest.Collector{Store: f.store}
	if _, err := c.Start(back); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	if err := f.sender.Drain(f.ctx); err != nil {
		t.Fatalf("Drain: %v; %+v", err, f.sender.Status())
	}
	f.checkAccepted(es)
}

func TestDrainEndsWithItsContext(t *testing.T) {
	f := newFixture(t)
	f.collector(&sendtest.Collector{})
	f.run()
	if err := f.sender.Drain(f.ctx); err != nil {
		t.Fatalf("nothing is pending: %v", err)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	g := newFixture(t)
	g.cfg.Collectors = []string{closedPort(t)}
	g.append(1)
	s, err := send.New(g.cfg, g.queue, send.Deps{Registry: g.reg, Now: time.Now}) // never runs
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Drain: %v", err)
	}
}
