package reconciler

import (
	"errors"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
)

var (
	errLagged       = errors.New("watcher fell behind")
	errStopping     = errors.New("reconciler is stopping")
	errManyWatchers = errors.New("too many watchers")
)

// relay passes positions of the journal on to watchers. It never waits for a watcher.
type relay struct {
	buffer, limit int

	mu       sync.Mutex
	watchers map[*watcher]struct{}
	closed   bool
}

// watcher is one watch. err is set before ch is closed.
type watcher struct {
	ch  chan journal.Position
	err error
}

func newRelay(buffer, limit int) *relay {
	return &relay{buffer: buffer, limit: limit, watchers: map[*watcher]struct{}{}}
}

func (h *relay) watch() (*watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errStopping
	}
	if len(h.watchers) >= h.limit {
		return nil, errManyWatchers
	}
	w := &watcher{ch: make(chan journal.Position, h.buffer)}
	h.watchers[w] = struct{}{}
	return w, nil
}

func (h *relay) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// publish sends a position to every watcher. A watcher whose buffer is full gets what is buffered and
// then LAGGED: it can't know otherwise that it missed something.
func (h *relay) publish(p journal.Position) (lagged int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		select {
		case w.ch <- p:
		default:
			h.end(w, errLagged)
			lagged++
		}
	}
	return lagged
}

func (h *relay) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers)
}

func (h *relay) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		h.end(w, errStopping)
	}
}

func (h *relay) end(w *watcher, err error) {
	delete(h.watchers, w)
	w.err = err
	close(w.ch)
}
