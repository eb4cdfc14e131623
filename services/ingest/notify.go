package ingest

import (
	"bytes"
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
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// notifier sends hints to reconcilers, about accepted manifests and about segments of the journal. It
// never delays an answer: a hint that finds its queue full is dropped, and the reconcilers' scans and polls find what it was about.
type notifier struct {
	peers   []*peer
	metrics *metrics
}

// peer is one reconciler.
type peer struct {
	address   string
	conn      *grpc.ClientConn
	manifests *hints[reconcilerv1.NotifyAcceptedRequest, reconcilerv1.NotifyAcceptedResponse]
	segments  *hints[journalv1.NotifyJournalRequest, journalv1.NotifyJournalResponse]
}

// hints is one stream of hints to a reconciler.
type hints[Hint, Answer any] struct {
	queue   chan *Hint
	open    func(context.Context, ...grpc.CallOption) (grpc.ClientStreamingClient[Hint, Answer], error)
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
		log := log.With("reconciler", a)
		n.peers = append(n.peers, &peer{
			address: a, conn: conn,
			manifests: newHints(c.Queue, reconcilerv1.NewReconcilerServiceClient(conn).NotifyAccepted, log, m),
			segments:  newHints(c.Queue, journalv1.NewJournalServiceClient(conn).NotifyJournal, log, m),
		})
	}
	return n, nil
}

func newHints[Hint, Answer any](queue int, open func(context.Context, ...grpc.CallOption) (grpc.ClientStreamingClient[Hint, Answer], error),
	log *slog.Logger, m *metrics) *hints[Hint, Answer] {
	return &hints[Hint, Answer]{queue: make(chan *Hint, queue), open: open, log: log, metrics: m}
}

// accepted queues one manifest for every reconciler.
func (n *notifier) accepted(key string, manifest []byte) {
	if len(n.peers) == 0 {
		return
	}
	req := &reconcilerv1.NotifyAcceptedRequest{ManifestKey: key, Manifest: bytes.Clone(manifest)}
	for _, p := range n.peers {
		p.manifests.offer(req)
	}
}

// durable queues a hint at one segment for every reconciler.
func (n *notifier) durable(at journal.Position) {
	for _, p := range n.peers {
		p.segments.offer(&journalv1.NotifyJournalRequest{Position: at.String()})
	}
}

// start adds two loops for each reconciler; they end with the group.
func (n *notifier) start(g *run.Group) {
	for _, p := range n.peers {
		g.Go("notify "+p.address, p.manifests.run)
		g.Go("notify "+p.address+" of the journal", p.segments.run)
	}
}

func (n *notifier) close() error {
	var errs []error
	for _, p := range n.peers {
		errs = append(errs, p.conn.Close())
	}
	return errors.Join(errs...)
}

func (h *hints[Hint, Answer]) offer(m *Hint) {
	select {
	case h.queue <- m:
	default:
		h.metrics.notified.WithLabelValues("dropped").Inc()
	}
}

// run keeps a stream open until ctx ends.
func (h *hints[Hint, Answer]) run(ctx context.Context) error {
	backoff := run.NewBackoff(notifyMinBackoff, notifyMaxBackoff)
	for {
		sent, err := h.stream(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if sent {
			backoff.Reset()
		}
		wait := backoff.Next()
		h.log.Info("notifications interrupted", "error", err, "again_in", wait)
		if run.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// stream opens a stream and sends hints until it fails; it reports whether any was sent.
func (h *hints[Hint, Answer]) stream(ctx context.Context) (bool, error) {
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := h.open(sctx)
	if err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { // ends with sctx
		ended <- st.RecvMsg(new(Answer))
	}()
	sent := false
	for {
		select {
		case req := <-h.queue:
			failpoint.Hit("ingest.notify.send.before")
			if err := st.Send(req); err != nil {
				h.metrics.notified.WithLabelValues("dropped").Inc()
				// Send returns only io.EOF; the stream's error comes from RecvMsg.
				return sent, errors.Join(err, <-ended)
			}
			failpoint.Hit("ingest.notify.send.after")
			sent = true
			h.metrics.notified.WithLabelValues("sent").Inc()
		case err := <-ended:
			return sent, fmt.Errorf("the reconciler ended the stream: %w", errors.Join(err))
		case <-ctx.Done():
			return sent, ctx.Err()
		}
	}
}
