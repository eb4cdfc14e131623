package reconciler

import (
	"sync"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
)

// relay passes positions of the journal on to watchers. It never waits for a watcher.
type relay struct {
	buffer, limit int

	mu       sync.Mutex
	watchers map[*journalWatcher]struct{}
	closed   bool
}

// journalWatcher is one watch. err is set before ch is closed.
type journalWatcher struct {
	ch  chan journal.Position
	err error
}

func newRelay(buffer, limit int) *relay {
	return &relay{buffer: buffer, limit: limit, watchers: map[*journalWatcher]struct{}{}}
}

func (h *relay) watch() (*journalWatcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errHubClosed
	}
	if len(h.watchers) >= h.limit {
		return nil, errManyWatchers
	}
	w := &journalWatcher{ch: make(chan journal.Position, h.buffer)}
	h.watchers[w] = struct{}{}
	return w, nil
}

func (h *relay) leave(w *journalWatcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// publish sends a position to every watcher. A watcher whose buffer is full gets what is buffered and
// then LAGGED: it can't know otherwise that it missed something.
func (h *relay) publish(p journal.Position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		select {
		case w.ch <- p:
		default:
			h.end(w, errLagged)
		}
	}
}

func (h *relay) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		h.end(w, errHubClosed)
	}
}

func (h *relay) end(w *journalWatcher, err error) {
	delete(h.watchers, w)
	w.err = err
	close(w.ch)
}
