package arrivals

import (
	"context"
	"log/slog"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// maxHints bounds the hints that wait. What has no room is found by the next poll.
const maxHints = 1024

// watches are those of reconcilers and collectors that name what is accepted. Safe for concurrent use.
type watches struct {
	addresses []string
	log       *slog.Logger
	count     func() // hints
	peers     *peerframes.Set

	kick  chan struct{} // a poll is to come now
	hints chan journal.Position

	mu sync.Mutex
	on map[string]bool // by address
}

func newWatches(c *Config) *watches {
	return &watches{addresses: c.Watch, log: c.Log, count: c.Metrics.Hints.Inc, peers: c.Peers, kick: make(chan struct{}, 1), hints: make(chan journal.Position, maxHints), on: map[string]bool{}}
}

// watched is what one reconciler or collector hints at.
type watched struct {
	*watches
	addr string
}

// Begin notes that the watch is on.
func (w watched) Begin() { w.note(w.addr, true) }

// End notes that it has ended.
func (w watched) End(int) { w.note(w.addr, false) }

// Take asks to read what a hint names.
func (w watched) Take(_ context.Context, p *peerframes.Peer, msg *journalv1.WatchJournalResponse) {
	text := msg.GetPosition()
	if text == "" {
		return
	}
	at, err := journal.ParsePosition(text)
	if err != nil {
		w.log.Debug("a hint at no segment", "address", w.addr, "error", err)
		return
	}
	if msg.GetWriter() != "" { // of a collector: the run is its own
		p.Wrote(at.Run)
	}
	w.hint(at)
}

// note notes that a watch is on, or ended. Either way hints may have been missed.
func (w *watches) note(addr string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.on[addr] == on {
		return
	}
	w.on[addr] = on
	w.pollSoon()
}

// all reports whether somebody hints at whatever is accepted.
func (w *watches) all() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, addr := range w.addresses {
		if !w.on[addr] {
			return false
		}
	}
	return len(w.addresses) > 0
}

// pollSoon asks for a poll now. One that was asked for already is enough.
func (w *watches) pollSoon() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// hint asks to read a run through a segment soon.
func (w *watches) hint(at journal.Position) {
	w.count()
	select {
	case w.hints <- at:
	default:
		w.pollSoon()
	}
}
