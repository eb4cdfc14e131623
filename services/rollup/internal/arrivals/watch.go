package arrivals

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

const (
	// Waits between two attempts to watch.
	watchRetry    = 250 * time.Millisecond
	watchRetryMax = 10 * time.Second
	// maxHints bounds the hints that wait. What has no room is found by the next poll.
	maxHints = 1024
)

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

// watch takes the hints of one reconciler or collector until ctx ends. They only save time: a poll finds what they name.
func (w *watches) watch(ctx context.Context, addr string, c rpc.ClientConfig) error {
	conn, err := rpc.Dial(addr, c)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := journalv1.NewJournalServiceClient(conn)
	backoff := run.NewBackoff(watchRetry, watchRetryMax)
	for ctx.Err() == nil {
		n, err := w.watchOnce(ctx, addr, client)
		if n > 0 { // a connection that delivered something was good
			backoff.Reset()
		}
		w.log.Debug("watch ended", "address", addr, "messages", n, "error", err)
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// watchOnce reads one stream to its end; n counts its messages.
func (w *watches) watchOnce(ctx context.Context, addr string, client journalv1.JournalServiceClient) (n int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.WatchJournal(ctx, &journalv1.WatchJournalRequest{})
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	defer w.note(addr, false)
	peer := w.peers.Join(addr, client)
	defer peer.Leave()
	for {
		msg, err := stream.Recv()
		if err != nil {
			return n, fmt.Errorf("watch: %w", err)
		}
		if n++; n == 1 {
			w.note(addr, true)
		}
		if text := msg.GetPosition(); text != "" {
			at, err := journal.ParsePosition(text)
			if err != nil {
				w.log.Debug("a hint at no segment", "address", addr, "error", err)
				continue
			}
			if msg.GetWriter() != "" { // of a collector: the run is its own
				peer.Wrote(at.Run)
			}
			w.hint(at)
		}
	}
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
