package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// Waits between two attempts to watch.
const (
	watchRetry    = 250 * time.Millisecond
	watchRetryMax = 10 * time.Second
	// watchQueue is how many hints may wait. When they are more, the stream is not read, and the reconciler ends
	// it with LAGGED.
	watchQueue = 1024
)

// watch follows the hints of one reconciler until ctx ends.
func (f *Follower) watch(ctx context.Context, addr string) error {
	conn, err := rpc.Dial(addr, f.cfg.WatchClient)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := reconcilerv1.NewReconcilerServiceClient(conn)
	backoff := run.NewBackoff(watchRetry, watchRetryMax)
	for ctx.Err() == nil {
		n, err := f.watchOnce(ctx, client)
		// A connection that delivered something was good, so its end is no reason to wait long.
		if n > 0 {
			backoff.Reset()
			f.auditSoon() // hints may have been lost with the stream
		}
		f.m.watchEnds.Inc()
		f.d.Log.Debug("watch ended", "reconciler", addr, "messages", n, "error", err)
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// watchOnce reads one stream to its end; n counts its messages.
func (f *Follower) watchOnce(ctx context.Context, client reconcilerv1.ReconcilerServiceClient) (n int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.WatchAccepted(ctx, &reconcilerv1.WatchAcceptedRequest{})
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	hints := make(chan *reconcilerv1.WatchAcceptedResponse, watchQueue)
	g := run.NewGroup(ctx)
	g.Go("receive", func(ctx context.Context) error {
		defer close(hints)
		for {
			msg, err := stream.Recv()
			if err != nil {
				return fmt.Errorf("watch: %w", err)
			}
			n++
			if msg.GetManifestKey() == "" {
				f.auditSoon() // the watch has begun: find what was accepted before it
				continue
			}
			select {
			case hints <- msg:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	for range f.cfg.Fetchers {
		g.Go("take", func(ctx context.Context) error {
			for msg := range hints {
				failpoint.Hit("query.watch.hint.received")
				f.m.hints.Inc()
				if err := f.take(ctx, msg.GetManifestKey(), msg.GetManifest()); err != nil && !errors.Is(err, context.Canceled) {
					// Hints are only for speed. A failure is no reason to end the stream.
					f.d.Log.Debug("hint not followed; an audit will", "key", msg.GetManifestKey(), "error", err)
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return n, err
}
