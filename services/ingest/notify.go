package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// notifier sends hints at segments of the journal to reconcilers. It never delays an answer: a hint that
// finds its queue full is dropped, and the reconcilers' polls find its segment.
type notifier struct {
	peers   []*peer
	metrics *metrics
}

// peer is one reconciler.
type peer struct {
	address string
	conn    *grpc.ClientConn
	queue   chan journal.Position
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
			address: a, conn: conn, queue: make(chan journal.Position, c.Queue), log: log.With("reconciler", a), metrics: m,
		})
	}
	return n, nil
}

// durable queues a hint at one segment for every reconciler.
func (n *notifier) durable(at journal.Position) {
	for _, p := range n.peers {
		select {
		case p.queue <- at:
		default:
			n.metrics.notified.WithLabelValues("dropped").Inc()
		}
	}
}

// start adds a loop for each reconciler; they end with the group.
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
	backoff := run.NewBackoff(notifyMinBackoff, notifyMaxBackoff)
	for {
		sent, err := p.stream(ctx)
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
func (p *peer) stream(ctx context.Context) (bool, error) {
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := journalv1.NewJournalServiceClient(p.conn).NotifyJournal(sctx)
	if err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { // ends with sctx
		ended <- st.RecvMsg(new(journalv1.NotifyJournalResponse))
	}()
	sent := false
	for {
		select {
		case at := <-p.queue:
			failpoint.Hit("ingest.notify.send.before")
			if err := st.Send(&journalv1.NotifyJournalRequest{Position: at.String()}); err != nil {
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
