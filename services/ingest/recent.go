package ingest

import (
	"bytes"
	"context"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// recentFrames keeps the frames that this collector accepted last in memory, for those who follow the journal: each of
// them would ask the store for each frame. A frame is given away only once its batch stands in a durable segment; before
// that nothing of it was answered, and it may never be accepted.
type recentFrames struct {
	most int64 // bytes; 0 keeps none
	// recycle takes the bytes of a frame that nobody uses any more.
	recycle func([]byte)

	mu    sync.Mutex
	held  map[identity.Digest]*recentFrame // of calls under way, whose batches stand in no durable segment yet
	kept  map[identity.Digest]*recentFrame
	order []*recentFrame // that are kept, the oldest first
	bytes int64          // of kept, with what their buffers have beyond them
}

// recentFrame is a frame in memory.
type recentFrame struct {
	sum   identity.Digest
	bytes []byte
	// Guarded by recentFrames.mu. handed: the bytes were handed over. users: the call that accepts it, those who send it,
	// and the memory itself while it is kept. failed: the call that accepts it ended with an error, so a request of the
	// store's client may still be sending the bytes.
	handed, failed bool
	users          int
}

func newRecentFrames(most int64, recycle func([]byte)) *recentFrames {
	return &recentFrames{most: most, recycle: recycle, held: map[identity.Digest]*recentFrame{}, kept: map[identity.Digest]*recentFrame{}}
}

// accept lets a accept a submission, and keeps its frame once its batch is durable. kept: the frame's bytes were handed
// over, and are none of the caller's any more.
func (r *recentFrames) accept(ctx context.Context, a accept.Acceptor, s accept.Submission) (res accept.Result, kept bool, err error) {
	h := r.hold(s.SHA256, s.Frame)
	ended := false // false after a panic
	defer func() { kept = r.release(h, ended && err == nil) }()
	res, err = a.Accept(ctx, s)
	ended = true
	return res, false, err
}

// hold notes the frame of a call that begins; nil where there is nothing to keep, or another call has the same frame.
func (r *recentFrames) hold(sum identity.Digest, frame []byte) *recentFrame {
	if int64(cap(frame)) > r.most {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[sum] != nil || r.kept[sum] != nil {
		return nil
	}
	h := &recentFrame{sum: sum, bytes: frame, users: 1}
	r.held[sum] = h
	return h
}

// release ends a call, and reports whether its bytes were handed over. Those of a call that failed are never given to another
// one, although the batch may be durable by another call with the same frame.
func (r *recentFrames) release(h *recentFrame, ok bool) (kept bool) {
	if h == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[h.sum] == h {
		delete(r.held, h.sum)
	}
	if kept = h.handed; kept {
		h.failed = !ok
		r.leave(h)
	}
	return kept
}

// durable keeps the frames of entries that stand in a durable segment, in place of the oldest ones. It must be called
// before a hint at the segment goes out.
func (r *recentFrames) durable(entries []*journal.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range entries {
		h := r.held[e.SHA256]
		if h == nil || !e.Outcome.Counts() {
			continue
		}
		delete(r.held, e.SHA256)
		h.handed, h.users = true, h.users+1
		r.kept[e.SHA256] = h
		r.order = append(r.order, h)
		r.bytes += int64(cap(h.bytes))
	}
	for r.bytes > r.most {
		oldest := r.order[0]
		r.order[0], r.order = nil, r.order[1:]
		r.bytes -= int64(cap(oldest.bytes))
		delete(r.kept, oldest.sum)
		r.leave(oldest)
	}
}

// leave ends a use. The caller holds mu.
func (r *recentFrames) leave(h *recentFrame) {
	if h.users--; h.users == 0 && !h.failed {
		r.recycle(h.bytes)
	}
}

// lend gives a frame that is kept, to be read until it is given back; nil if there is none.
func (r *recentFrames) lend(sum identity.Digest) *recentFrame {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.kept[sum]
	if h != nil {
		h.users++
	}
	return h
}

// giveBack ends the use of frames that were lent.
func (r *recentFrames) giveBack(lent []*recentFrame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range lent {
		r.leave(h)
	}
}

// stats counts what is kept.
func (r *recentFrames) stats() (frames int, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.kept), r.bytes
}

// landing accepts what leaves the local spool, and keeps its frames: before they have landed nobody may have them.
type landing struct {
	accept.Acceptor
	recent *recentFrames
}

// Accept implements accept.Acceptor.
func (l landing) Accept(ctx context.Context, s accept.Submission) (accept.Result, error) {
	if l.recent.most > 0 {
		// The bytes may be those of a sender's call, which go back to the pool after its answer.
		s.Frame = bytes.Clone(s.Frame)
	}
	res, _, err := l.recent.accept(ctx, l.Acceptor, s)
	return res, err
}
