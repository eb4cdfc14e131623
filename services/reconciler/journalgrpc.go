package reconciler

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// journalServer implements the JournalService: hints at the segments of the journal, in and out.
type journalServer struct {
	journalv1.UnimplementedJournalServiceServer
	k        *journalKeeper
	stopping <-chan struct{}
}

// NotifyJournal reads the runs that hints are about, until the collector ends the stream. A hint proves
// nothing: what it is about is read from the store.
func (g journalServer) NotifyJournal(stream grpc.ClientStreamingServer[journalv1.NotifyJournalRequest, journalv1.NotifyJournalResponse]) error {
	// A collector keeps its stream open while it has nothing to tell: then polls may be rare.
	g.k.hinting.Add(1)
	defer g.k.hinting.Add(-1)
	var res journalv1.NotifyJournalResponse
	ended := make(chan error, 1)
	// Ends with the stream: Recv fails when the handler returns.
	go func() {
		for {
			req, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			p, err := journal.ParsePosition(req.GetPosition())
			if err != nil {
				ended <- invalid(err.Error())
				return
			}
			failpoint.Hit("reconciler.notify.received.after")
			if g.k.hint(p) {
				res.Queued++
				g.k.m.hints.WithLabelValues("queued").Inc()
			} else {
				res.Dropped++
				g.k.m.hints.WithLabelValues("dropped").Inc()
			}
		}
	}()
	select {
	case err := <-ended:
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&res)
		}
		return err
	case <-g.stopping:
		return draining()
	}
}

// WatchJournal sends the position of every segment that this process reads from now on. Its first message is empty:
// it says that the watch is on.
func (g journalServer) WatchJournal(_ *journalv1.WatchJournalRequest, stream grpc.ServerStreamingServer[journalv1.WatchJournalResponse]) error {
	w, err := g.k.relay.watch()
	switch {
	case errors.Is(err, errStopping):
		return draining()
	case err != nil:
		return rpc.Failure{Code: codes.ResourceExhausted, Reason: rpc.ReasonOverloaded, Message: err.Error(), RetryAfter: g.k.cfg.Journal.Polling.Interval}.Err()
	}
	defer g.k.relay.leave(w)
	if err := stream.Send(&journalv1.WatchJournalResponse{}); err != nil {
		return err
	}
	return g.send(stream.Context(), w, stream)
}

func (g journalServer) send(ctx context.Context, w *watcher, stream grpc.ServerStreamingServer[journalv1.WatchJournalResponse]) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p, ok := <-w.ch:
			switch {
			case ok:
				if err := stream.Send(&journalv1.WatchJournalResponse{Position: p.String()}); err != nil {
					return err
				}
			// err is set before the channel is closed, so it may be read now.
			case errors.Is(w.err, errLagged):
				return rpc.Failure{Code: codes.Aborted, Reason: ReasonLagged, Message: "watch fell behind: poll, then watch again"}.Err()
			default:
				return draining()
			}
		}
	}
}
