package ingest

import (
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// ReasonLagged is the ErrorInfo reason of a watch that fell behind: poll, then watch again.
const ReasonLagged = "LAGGED"

// Bounds of watches: how many there may be, and how many hints may wait for each.
const (
	maxWatchers   = 256
	watcherBuffer = 1024
)

var errManyWatchers = errors.New("too many watchers")

// hub sends hints about this collector's segments to watchers. It never waits for one.
type hub struct {
	// unlanded counts the batches that are accepted on this disk alone.
	unlanded func() int
	// writer is the id that this collector's runs have as their writer.
	writer func() string

	mu       sync.Mutex
	watchers map[*watcher]struct{}
	held     bool // the last message said that there are unlanded batches
}

// watcher is one watch. Its channel is closed when it fell behind.
type watcher struct {
	ch chan *journalv1.WatchJournalResponse
}

func newHub(writer func() string, unlanded func() int) *hub {
	return &hub{writer: writer, unlanded: unlanded, watchers: map[*watcher]struct{}{}}
}

// watch adds a watcher, whose first message says that the watch is on.
func (h *hub) watch() (*watcher, error) {
	n := h.unlanded()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers) >= maxWatchers {
		return nil, errManyWatchers
	}
	w := &watcher{make(chan *journalv1.WatchJournalResponse, watcherBuffer)}
	w.ch <- &journalv1.WatchJournalResponse{Unlanded: uint64(n), Writer: h.writer()}
	h.watchers[w] = struct{}{}
	return w, nil
}

func (h *hub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// durable sends a hint at a segment.
func (h *hub) durable(at journal.Position) {
	n := h.unlanded()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.send(&journalv1.WatchJournalResponse{Position: at.String(), Unlanded: uint64(n), Writer: h.writer()})
}

// spooled is called after a batch was accepted on this disk, before its answer, and after batches
// have left it. It sends the count when it has become zero, or is zero no longer.
func (h *hub) spooled() {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Counted under the lock, so that the last message has the last count.
	if n := h.unlanded(); (n > 0) != h.held {
		h.send(&journalv1.WatchJournalResponse{Unlanded: uint64(n), Writer: h.writer()})
	}
}

// send gives a message to every watcher. The caller holds mu.
func (h *hub) send(m *journalv1.WatchJournalResponse) {
	h.held = m.GetUnlanded() > 0
	for w := range h.watchers {
		select {
		case w.ch <- m:
		default:
			// To drop this message alone would leave a gap that the watcher can't notice.
			delete(h.watchers, w)
			close(w.ch)
		}
	}
}

// journalServer implements JournalService.
type journalServer struct {
	journalv1.UnimplementedJournalServiceServer
	s *Service
}

// WatchJournal sends the positions of this collector's segments from now on.
func (g journalServer) WatchJournal(_ *journalv1.WatchJournalRequest, stream grpc.ServerStreamingServer[journalv1.WatchJournalResponse]) error {
	w, err := g.s.hub.watch()
	if err != nil {
		return failed(codes.ResourceExhausted, rpc.ReasonOverloaded, "%v", err).after(g.s.cfg.Limits.RetryAfter).Err()
	}
	defer g.s.hub.leave(w)
	for {
		select {
		case m, ok := <-w.ch:
			if !ok {
				return failed(codes.Aborted, ReasonLagged, "the watch fell behind: poll, then watch again").Err()
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-g.s.drain:
			return g.s.draining()
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
