package reconciler

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/pkg/coordinator"
	"lightmetrics.dev/lightmetrics/pkg/rollup"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/work"
	"lightmetrics.dev/lightmetrics/pkg/work/mem"
)

// The owner of the shard, and nobody else, is told of new segments over the coordinator's queue.
func TestOwnersAreTold(t *testing.T) {
	q := mem.New(time.Now, mem.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	g := grpc.NewServer()
	coordinator.NewPendingServer(q, q).Register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})

	s := newStore()
	m := acceptBatch(t, s, batch("agent", 0, 9))
	cfg := withIntake(busy())
	cfg.Intake.Coordinator.Address = l.Addr().String()
	start(t, cfg, s)
	own := shard.Of("agent", testShards)
	eventually(t, "told", func() bool {
		ms, err := q.Receive(bg, rollup.Topic(own), 10, time.Minute)
		must(t, err)
		return len(ms) > 0 && taken(t, s)[m.Identity] == 1
	})
	for id := range shard.ID(testShards) {
		if id == own {
			continue
		}
		if d, err := q.Depth(bg, rollup.Topic(id)); err != nil || d.Ready+d.Hidden > 0 {
			t.Errorf("shard %s: %+v, %v", id, d, err)
		}
	}
}

// refusing is a queue that takes nothing.
type refusing struct{ sent chan string }

func (r refusing) Send(_ context.Context, topic string, _ []byte, _ work.SendOptions) error {
	r.sent <- topic
	return work.ErrUnavailable
}

// A queue that takes nothing costs announcements, and holds nothing up.
func TestAnnouncementsMayBeLost(t *testing.T) {
	r := refusing{make(chan string, 10)}
	failed := make(chan error, 10)
	a := newAnnouncer(func(err error) { failed <- err })
	a.queue = r
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error, 1)
	go func() { done <- a.run(ctx) }()
	for range 3 {
		a.announce(1)
		<-r.sent
		if err := <-failed; !errors.Is(err, work.ErrUnavailable) {
			t.Error(err)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
