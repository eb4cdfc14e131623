package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// acceptor calls a function in place of the protocol.
type acceptor func(accept.Submission) (accept.Result, error)

func (a acceptor) Accept(_ context.Context, s accept.Submission) (accept.Result, error) { return a(s) }

func entryOf(s accept.Submission, o journal.Outcome) *journal.Entry {
	return &journal.Entry{SHA256: s.SHA256, Outcome: o}
}

func submissionOf(frame []byte) accept.Submission {
	return accept.Submission{Frame: frame, SHA256: identity.Sum(frame)}
}

// lent are the bytes of a frame that is kept; nil if there is none.
func lent(r *recentFrames, sum identity.Digest) []byte {
	h := r.lend(sum)
	if h == nil {
		return nil
	}
	defer r.giveBack([]*recentFrame{h})
	return h.bytes
}

// TestRecentFramesAreBounded: ten times the frames that fit, from several calls at once, and what is kept stays within
// the bound and is that which came last; what was handed over and forgotten still belongs to nobody else.
func TestRecentFramesAreBounded(t *testing.T) {
	const size, fit = 1 << 10, 50
	recycled := 0
	r := newRecentFrames(fit*size, func(b []byte) { recycled++; clear(b) })
	var last []accept.Submission
	for round := range 10 {
		var wg sync.WaitGroup
		last = make([]accept.Submission, fit)
		for i := range last {
			frame := make([]byte, size)
			copy(frame, fmt.Sprint(round, " ", i))
			last[i] = submissionOf(frame)
			wg.Go(func() {
				_, kept, err := r.accept(t.Context(), acceptor(func(s accept.Submission) (accept.Result, error) {
					if lent(r, s.SHA256) != nil {
						t.Error("a frame is given away before its batch is durable")
					}
					r.durable([]*journal.Entry{entryOf(s, journal.Accepted)})
					return accept.Result{Outcome: accept.Accepted}, nil
				}), last[i])
				if err != nil || !kept {
					t.Errorf("kept %v, %v", kept, err)
				}
			})
		}
		wg.Wait()
		if n, bytes := r.stats(); n != fit || bytes != fit*size || len(r.held) != 0 || len(r.order) != n {
			t.Fatalf("%d frames of %d bytes, %d held, %d in order", n, bytes, len(r.held), len(r.order))
		}
	}
	if recycled != 9*fit {
		t.Errorf("%d buffers were given back", recycled)
	}
	for _, s := range last {
		if string(lent(r, s.SHA256)) != string(s.Frame) {
			t.Error("a frame of the last round is not kept")
		}
	}
	// What is being sent keeps its bytes, though the memory forgets it.
	sending := r.lend(last[0].SHA256)
	more := submissionOf(make([]byte, fit*size))
	r.hold(more.SHA256, more.Frame)
	r.durable([]*journal.Entry{entryOf(more, journal.Accepted)})
	if lent(r, last[0].SHA256) != nil || string(sending.bytes) != string(last[0].Frame) || sending.bytes[0] == 0 || recycled != 10*fit-1 {
		t.Errorf("%d buffers were given back, the one that is sent has %q", recycled, sending.bytes[:4])
	}
	r.giveBack([]*recentFrame{sending})
	if recycled != 10*fit {
		t.Errorf("%d buffers were given back at the end", recycled)
	}
	large := submissionOf(make([]byte, fit*size+1))
	if r.hold(large.SHA256, large.Frame) != nil {
		t.Error("a frame that does not fit is held")
	}
}

// TestOnlyAcceptedFramesAreKept: neither one whose outcome is not durable, nor one that lost a conflict or that another region counts; and of two calls
// with the same frame one hands it over.
func TestOnlyAcceptedFramesAreKept(t *testing.T) {
	r := newRecentFrames(1<<20, func([]byte) {})
	s := submissionOf([]byte("frame"))
	for name, entries := range map[string][]*journal.Entry{"no entry": nil, "conflict": {entryOf(s, journal.Conflict)}, "elsewhere": {entryOf(s, journal.Elsewhere)}} {
		_, kept, _ := r.accept(t.Context(), acceptor(func(accept.Submission) (accept.Result, error) {
			r.durable(entries)
			return accept.Result{}, nil
		}), s)
		if kept || lent(r, s.SHA256) != nil || len(r.held) != 0 {
			t.Errorf("%s: kept %v, %d held", name, kept, len(r.held))
		}
	}
	again := submissionOf([]byte("frame"))
	_, kept, _ := r.accept(t.Context(), acceptor(func(accept.Submission) (accept.Result, error) {
		_, kept, _ := r.accept(t.Context(), acceptor(func(accept.Submission) (accept.Result, error) { return accept.Result{}, nil }), again)
		if kept {
			t.Error("two calls hand over the same frame")
		}
		r.durable([]*journal.Entry{entryOf(s, journal.Duplicate), entryOf(s, journal.Duplicate)})
		return accept.Result{}, nil
	}), s)
	if n, bytes := r.stats(); !kept || n != 1 || bytes != int64(cap(s.Frame)) {
		t.Errorf("kept %v, %d frames, %d bytes", kept, n, bytes)
	}
	if _, kept, _ = r.accept(t.Context(), acceptor(func(accept.Submission) (accept.Result, error) { return accept.Result{}, nil }), again); kept {
		t.Error("a frame that is there is kept again")
	}
	// Without memory nothing is kept.
	off := newRecentFrames(0, nil)
	if off.hold(s.SHA256, s.Frame) != nil {
		t.Error("0 keeps frames")
	}
}

// TestBytesOfAFailedCallAreNotUsedAgain: two calls have the same frame, the batch becomes durable by the second, and the first
// ends with an error while a request of the store's client may still be sending its bytes. They are served, and no other
// frame gets their buffer when they are forgotten, before or after the call's end.
func TestBytesOfAFailedCallAreNotUsedAgain(t *testing.T) {
	const size = 1 << 10
	for name, forget := range map[string]string{"forgotten before its end": "before", "forgotten after its end": "after"} {
		for _, how := range []string{"error", "panic"} {
			t.Run(name+", "+how, func(t *testing.T) {
				r := newRecentFrames(size, func([]byte) { t.Error("the buffer is used again") })
				s := submissionOf(make([]byte, size))
				evict := func() {
					r.recycle = func(b []byte) {
						if &b[0] == &s.Frame[0] {
							t.Error("the buffer is used again")
						}
					}
					other := make([]byte, size)
					other[0] = 1
					next := submissionOf(other)
					_, _, _ = r.accept(t.Context(), acceptor(func(n accept.Submission) (accept.Result, error) {
						r.durable([]*journal.Entry{entryOf(n, journal.Accepted)})
						return accept.Result{}, nil
					}), next)
				}
				func() {
					defer func() { _ = recover() }()
					_, kept, err := r.accept(t.Context(), acceptor(func(first accept.Submission) (accept.Result, error) {
						second := first
						second.Frame = append([]byte(nil), first.Frame...)
						if _, kept, err := r.accept(t.Context(), acceptor(func(s accept.Submission) (accept.Result, error) {
							r.durable([]*journal.Entry{entryOf(s, journal.Duplicate)})
							return accept.Result{}, nil
						}), second); kept || err != nil {
							t.Errorf("the second call: kept %v, %v", kept, err)
						}
						if lent(r, s.SHA256) == nil {
							t.Error("the frame is not kept")
						}
						if forget == "before" {
							evict()
						}
						if how == "panic" {
							panic("in the first call")
						}
						return accept.Result{}, errors.New("the store did not answer in time")
					}), s)
					if !kept || err == nil {
						t.Errorf("the first call: kept %v, %v", kept, err)
					}
				}()
				if forget == "after" {
					evict()
				}
				if lent(r, s.SHA256) != nil {
					t.Error("the frame was not forgotten")
				}
			})
		}
	}
}
