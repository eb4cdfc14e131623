package follow

import (
	"context"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// Waits between two attempts to watch.
const (
	watchRetry    = 250 * time.Millisecond
	watchRetryMax = 10 * time.Second
)

// watch follows the hints of one reconciler or collector until ctx ends.
func (f *Follower) watch(ctx context.Context, addr string) error {
	conn, err := rpc.Dial(addr, f.cfg.WatchClient)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := journalv1.NewJournalServiceClient(conn)
	backoff := run.NewBackoff(watchRetry, watchRetryMax)
	for ctx.Err() == nil {
		n, err := f.watchOnce(ctx, addr, client)
		// A connection that delivered something was good, so its end is no reason to wait long.
		if n > 0 {
			backoff.Reset()
			f.pollSoon() // hints may have been lost with the stream
		}
		f.m.watchEnds.Inc()
		f.d.Log.Debug("watch ended", "address", addr, "messages", n, "error", err)
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// watchOnce reads one stream to its end; n counts its messages.
func (f *Follower) watchOnce(ctx context.Context, addr string, client journalv1.JournalServiceClient) (n int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.WatchJournal(ctx, &journalv1.WatchJournalRequest{})
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	w := watched{f: f, addr: addr, peer: f.peers.Join(addr, client)}
	defer w.end()
	for {
		msg, err := stream.Recv()
		if err != nil {
			return n, fmt.Errorf("watch: %w", err)
		}
		n++
		if n == 1 {
			w.begin()
		}
		failpoint.Hit("query.watch.hint.received")
		w.take(ctx, msg)
	}
}

// watched is one watch that is on.
type watched struct {
	f      *Follower
	addr   string
	writer string // of the collector; empty where a reconciler hints at the runs of all
	peer   *peerframes.Peer
}

func (w *watched) begin() {
	w.f.mu.Lock()
	w.f.watches[w.addr] = true
	w.f.mu.Unlock()
	w.f.pollSoon() // what was accepted before the watch was on
}

func (w *watched) end() {
	w.peer.Leave()
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	delete(w.f.watches, w.addr)
	delete(w.f.landed, w.writer)
}

// take follows a hint. Hints only save time: a failure is no reason to end the stream, since the next poll finds
// what they name.
func (w *watched) take(ctx context.Context, msg *journalv1.WatchJournalResponse) {
	f := w.f
	if w.writer == "" {
		w.writer = msg.GetWriter()
	}
	if msg.GetUnlanded() > 0 {
		f.mu.Lock()
		delete(f.landed, w.writer)
		f.mu.Unlock()
	}
	if text := msg.GetPosition(); text != "" {
		f.m.hints.Inc()
		at, err := journal.ParsePosition(text)
		if err != nil {
			f.d.Log.Debug("a hint at no segment", "address", w.addr, "error", err)
			return
		}
		if w.writer == "" {
			f.hint(at)
			return
		}
		w.peer.Wrote(at.Run)
		// The count speaks of this segment, so it is read first. A collector has one run, so nothing else waits.
		if !f.follow(ctx, at) {
			return
		}
	}
	if msg.GetUnlanded() == 0 && w.writer != "" {
		f.mu.Lock()
		f.landed[w.writer] = true
		f.mu.Unlock()
	}
}

// maxHints bounds the hints that wait. For one that is dropped there is a poll.
const maxHints = 1024

// hint reads a run through a segment soon.
func (f *Follower) hint(at journal.Position) {
	select {
	case f.hints <- at:
	default:
		f.pollSoon()
	}
}

// hintLoop follows hints until ctx ends, run beside run: a reconciler hints at the runs of all collectors.
func (f *Follower) hintLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case at := <-f.hints:
			runs := f.waitingHints(at)
			_ = f.fan(ctx, len(runs), func(ctx context.Context, i int) error {
				f.follow(ctx, runs[i])
				return nil
			})
		}
	}
}

// waitingHints are the hints that wait, the given one among them; of each run the last segment.
func (f *Follower) waitingHints(first journal.Position) (out []journal.Position) {
	last := map[journal.RunID]int{}
	add := func(at journal.Position) {
		i, ok := last[at.Run]
		if !ok {
			last[at.Run] = len(out)
			out = append(out, at)
			return
		}
		out[i].Segment = max(out[i].Segment, at.Segment)
	}
	add(first)
	for range len(f.hints) {
		add(<-f.hints)
	}
	return out
}

// follow reads a run through the segment that a hint names, and reports whether that was read.
func (f *Follower) follow(ctx context.Context, at journal.Position) bool {
	ok, _, err := f.has(ctx, at)
	if !ok {
		f.pollSoon()
		f.d.Log.Debug("hint not followed; a poll will", "segment", at, "error", err)
	}
	return ok
}
