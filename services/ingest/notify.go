package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// notifier sends hints about accepted manifests to reconcilers. It never delays an answer: a
// hint that finds its queue full is dropped, and the reconcilers' scans find the manifest.
type notifier struct {
	peers   []*peer
	metrics *metrics
}

type peer struct {
	address string
	queue   chan *reconcilerv1.NotifyAcceptedRequest
	conn    *grpc.ClientConn
	log     *slog.Logger
	metrics *metrics
}

const (
	notifyMinBackoff = 200 * time.Millisecond
	notifyMaxBackoff = 10 * time.Second
)

func newNotifier(c NotifyConfig, log *slog.Logger, m *metrics) (*notifier, error) {
	n := &notifier{metrics: m}
	for _, a := range c.Addresses {
		conn, err := rpc.Dial(a, c.Client)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("notify: %w", err), n.close())
		}
		n.peers = append(n.peers, &peer{
			address: a, queue: make(chan *reconcilerv1.NotifyAcceptedRequest, c.Queue),
			conn: conn, log: log.With("reconciler", a), metrics: m,
		})
	}
	return n, nil
}

// accepted queues one manifest for every reconciler.
func (n *notifier) accepted(key string, manifest []byte) {
	if len(n.peers) == 0 {
		return
	}
	req := &reconcilerv1.NotifyAcceptedRequest{ManifestKey: key, Manifest: bytes.Clone(manifest)}
	for _, p := range n.peers {
		select {
		case p.queue <- req:
		default:
			n.metrics.notified.WithLabelValues("dropped").Inc()
		}
	}
}

// start adds a loop for each reconciler; each ends with the group.
func (n *notifier) start(g *run.Group) {
	for _, p := range n.peers {
		g.Go("notify "+p.address, p.run)
	}
}

func (n *notifier) close() error {
	var errs []error
	for _, p := range n.peers {
		errs = append(errs, p.conn.Close())
	}
	return errors.Join(errs...)
}

// run keeps a stream open until ctx ends.
func (p *peer) run(ctx context.Context) error {
	client := reconcilerv1.NewReconcilerServiceClient(p.conn)
	backoff := run.NewBackoff(notifyMinBackoff, notifyMaxBackoff)
	for {
		sent, err := p.stream(ctx, client)
		if ctx.Err() != nil {
			return nil
		}
		if sent {
			backoff.Reset()
		}
		wait := backoff.Next()
		p.log.Info("notifications interrupted", "error", err, "again_in", wait)
		if run.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// stream opens a stream and sends hints until it fails; it reports whether any was sent.
func (p *peer) stream(ctx context.Context, client reconcilerv1.ReconcilerServiceClient) (bool, error) {
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := client.NotifyAccepted(sctx)
	if err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { // ends with sctx
		ended <- st.RecvMsg(new(reconcilerv1.NotifyAcceptedResponse))
	}()
	sent := false
	for {
		select {
		case req := <-p.queue:
			failpoint.Hit("ingest.notify.send.before")
			if err := st.Send(req); err != nil {
				p.metrics.notified.WithLabelValues("dropped").Inc()
				// Send returns only io.EOF; the stream's error comes from RecvMsg.
				return sent, errors.Join(err, <-ended)
			}
			failpoint.Hit("ingest.notify.send.after")
			sent = true
			p.metrics.notified.WithLabelValues("sent").Inc()
		case err := <-ended:
			return sent, fmt.Errorf("the reconciler ended the stream: %w", errors.Join(err))
		case <-ctx.Done():
			return sent, ctx.Err()
		}
	}
}
