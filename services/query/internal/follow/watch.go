package follow

import (
	"context"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// watch follows the hints of one reconciler or collector until ctx ends.
func (f *Follower) watch(ctx context.Context, addr string) error {
	return f.peers.Watch(ctx, addr, f.cfg.WatchClient, &watched{f: f, addr: addr})
}

// watched is what one address hints at.
type watched struct {
	f      *Follower
	addr   string
	writer string // of the collector; empty where a reconciler hints at the runs of all
}

func (w *watched) Begin() {
	w.f.mu.Lock()
	w.f.watches[w.addr] = true
	w.f.mu.Unlock()
	w.f.pollSoon() // what was accepted before the watch was on
}

func (w *watched) End(messages int) {
	w.f.mu.Lock()
	delete(w.f.watches, w.addr)
	delete(w.f.landed, w.writer)
	w.f.mu.Unlock()
	w.writer = ""
	if messages > 0 {
		w.f.pollSoon() // hints may have been lost with the stream
	}
	w.f.m.watchEnds.Inc()
}

// Take follows a hint. A failure is no reason to end the stream, since the next poll finds what it names.
func (w *watched) Take(ctx context.Context, p *peerframes.Peer, msg *journalv1.WatchJournalResponse) {
	failpoint.Hit("query.watch.hint.received")
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
		p.Wrote(at.Run)
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

// Hint reads a run through a segment soon, because somebody says that it is there. It never waits.
func (f *Follower) Hint(at journal.Position) {
	f.m.hints.Inc()
	f.hint(at)
}

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
