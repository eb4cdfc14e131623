package peerframes

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// streams refuses the first watch, then sends one message and two, and waits.
type streams struct {
	journalv1.UnimplementedJournalServiceServer
	mu    sync.Mutex
	calls int
}

func (s *streams) WatchJournal(_ *journalv1.WatchJournalRequest, out grpc.ServerStreamingServer[journalv1.WatchJournalResponse]) error {
	s.mu.Lock()
	s.calls++
	n := s.calls
	s.mu.Unlock()
	if n == 1 {
		return status.Error(codes.Unavailable, "not yet")
	}
	for range n - 1 {
		if err := out.Send(&journalv1.WatchJournalResponse{Writer: "w"}); err != nil {
			return err
		}
	}
	if n == 3 {
		<-out.Context().Done()
	}
	return nil
}

// noted writes down what it is called for.
type noted struct {
	set  *Set
	stop context.CancelFunc
	run  journal.RunID
	said []string
	bad  error
}

func (n *noted) Begin() { n.said = append(n.said, "begin") }

func (n *noted) Take(_ context.Context, p *Peer, msg *journalv1.WatchJournalResponse) {
	p.Wrote(n.run)
	if !n.set.Hinted(n.run) || msg.GetWriter() != "w" {
		n.bad = fmt.Errorf("%v by who is no member", msg)
	}
	if n.said = append(n.said, "take"); len(n.said) == 7 {
		n.stop()
	}
}

func (n *noted) End(messages int) {
	if n.set.Hinted(n.run) {
		n.bad = fmt.Errorf("still a member when the watch has ended")
	}
	n.said = append(n.said, fmt.Sprint("end ", messages))
}

// TestWatchesBeginAgain: a watch that ends, or can't begin, is tried again; its sender has frames as long as it is on.
func TestWatchesBeginAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gs, served := grpc.NewServer(), make(chan error, 1)
	journalv1.RegisterJournalServiceServer(gs, &streams{})
	go func() { served <- gs.Serve(l) }()
	t.Cleanup(func() { gs.Stop(); <-served })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	n := &noted{set: New(Config{Log: telemetry.Discard().Log}), stop: stop, run: journal.RunID{7}}
	if err := n.set.Watch(ctx, l.Addr().String(), rpc.ClientConfig{}, n); err != context.Canceled {
		t.Fatal(err)
	}
	if want := []string{"end 0", "begin", "take", "end 1", "begin", "take", "take", "end 2"}; !slices.Equal(n.said, want) || n.bad != nil {
		t.Errorf("%q, %v", n.said, n.bad)
	}
}
