package peerframes

import (
	"context"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// Waits between two attempts to watch.
const (
	watchRetry    = 250 * time.Millisecond
	watchRetryMax = 10 * time.Second
)

// Hints takes what one reconciler or collector says was accepted. Hints only save time: a poll finds what they name.
// Its methods are called one after the other.
type Hints interface {
	// Begin: the watch is on, its first message has come. What was accepted before is not hinted at.
	Begin()
	// Take takes a message; p is who sent it, if that has frames.
	Take(ctx context.Context, p *Peer, msg *journalv1.WatchJournalResponse)
	// End: the watch has ended, or could not begin. Hints may have been lost with it.
	End(messages int)
}

// Watch watches a reconciler or collector, which is a member of the set as long as the watch is on. It tries again until
// ctx ends.
func (s *Set) Watch(ctx context.Context, addr string, c rpc.ClientConfig, h Hints) error {
	conn, err := rpc.Dial(addr, c)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := journalv1.NewJournalServiceClient(conn)
	backoff := run.NewBackoff(watchRetry, watchRetryMax)
	for ctx.Err() == nil {
		n, err := s.watchOnce(ctx, addr, client, h)
		if n > 0 {
			backoff.Reset() // a connection that delivered something was good, so its end is no reason to wait long
		}
		h.End(n)
		if s.cfg.Log != nil {
			s.cfg.Log.Debug("watch ended", "address", addr, "messages", n, "error", err)
		}
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// watchOnce reads one stream to its end; n counts its messages.
func (s *Set) watchOnce(ctx context.Context, addr string, client journalv1.JournalServiceClient, h Hints) (n int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.WatchJournal(ctx, &journalv1.WatchJournalRequest{})
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	p := s.Join(addr, client)
	defer p.Leave()
	for {
		msg, err := stream.Recv()
		if err != nil {
			return n, fmt.Errorf("watch: %w", err)
		}
		if n++; n == 1 {
			h.Begin()
		}
		h.Take(ctx, p, msg)
	}
}
