package reconciler

import (
	"errors"
	"sync"

	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

var (
	errLagged       = errors.New("watcher fell behind")
	errHubClosed    = errors.New("reconciler is stopping")
	errManyWatchers = errors.New("too many watchers")
)

// hub sends reconciled manifests to watchers. It never waits for a watcher.
type hub struct {
	buffer, limit int

	mu       sync.Mutex
	watchers map[*watcher]struct{}
	closed   bool
}

// watcher is one watch. err is set before ch is closed.
type watcher struct {
	ch  chan *reconcilerv1.WatchAcceptedResponse
	err error
}

func newHub(buffer, limit int) *hub {
	return &hub{buffer: buffer, limit: limit, watchers: map[*watcher]struct{}{}}
}

func (h *hub) watch() (*watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errHubClosed
	}
	if len(h.watchers) >= h.limit {
		return nil, errManyWatchers
	}
	w := &watcher{ch: make(chan *reconcilerv1.WatchAcceptedResponse, h.buffer)}
	h.watchers[w] = struct{}{}
	return w, nil
}

func (h *hub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// publish sends m to every watcher. A watcher whose buffer is full gets the buffered manifests and then LAGGED.
func (h *hub) publish(m *reconcilerv1.WatchAcceptedResponse) (lagged int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		select {
		case w.ch <- m:
		default:
			// To drop this manifest alone would leave a gap that the watcher can't notice.
			h.end(w, errLagged)
			lagged++
		}
	}
	return lagged
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		h.end(w, errHubClosed)
	}
}

func (h *hub) end(w *watcher, err error) {
	delete(h.watchers, w)
	w.err = err
	close(w.ch)
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers)
}
