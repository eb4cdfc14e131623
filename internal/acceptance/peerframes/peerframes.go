// Package peerframes takes frames of accepted batches from the memory of the collectors that accepted them, so that
// followers of the journal need not ask the store for each. Nothing rests on a collector: the journal says how long a
// frame is and which hash it has, and only bytes that agree are taken. What a collector lacks, or does not send soon and
// right, is for the caller to read from the store; a collector that keeps failing is not asked for a while.
package peerframes

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// Bounds of one call.
const (
	// MaxFrames and MaxBytes bound what is asked for at once: so many frames, and so many bytes or one frame.
	MaxFrames = 128
	MaxBytes  = 4 << 20
	// maxFrame is the longest frame that is asked for; longer ones are read from the store.
	maxFrame = 16 << 20
	// maxMessage bounds a message; collectors send a quarter of it.
	maxMessage = 1 << 20
	// bytesPerSecond is what a connection is expected to carry: Config.Wait grows by the time of what is asked for.
	bytesPerSecond = 16 << 20
	// callsAtOnce bounds the calls of one collector.
	callsAtOnce = 8
	// runsOfPeer is how many runs of a collector are remembered: it has one at a time.
	runsOfPeer = 4
)

// Config of a Set. All fields but Wait are required.
type Config struct {
	// Wait bounds a call, beside the time that its bytes take; 0 asks nobody.
	Wait    time.Duration
	Now     func() time.Time
	Log     *slog.Logger
	Metrics *Metrics
}

// Set is the collectors that a follower watches. It is safe for concurrent use.
type Set struct {
	cfg Config

	mu   sync.Mutex
	runs map[journal.RunID]*Peer
}

// New makes a set of no collectors.
func New(c Config) *Set { return &Set{cfg: c, runs: map[journal.RunID]*Peer{}} }

// Join adds the collector at the other end of a watch that begins. The caller ends it with Leave.
func (s *Set) Join(addr string, c journalv1.JournalServiceClient) *Peer {
	return &Peer{set: s, addr: addr, client: c, calls: make(chan struct{}, callsAtOnce)}
}

// Hinted reports whether a collector that is watched has hinted at segments of a run.
func (s *Set) Hinted(run journal.RunID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[run] != nil
}

// Of returns the collector that hinted at segments of a run; nil where there is none, or it is not to be asked now.
func (s *Set) Of(run journal.RunID) *Peer {
	s.mu.Lock()
	p := s.runs[run]
	s.mu.Unlock()
	if p == nil || s.cfg.Wait <= 0 || !p.circuit.allows(s.cfg.Now()) {
		return nil
	}
	return p
}

// Fits reports whether a frame may be asked for beside so many others with so many bytes.
func Fits(b *accepted.Batch, frames int, bytes uint64) bool {
	if frames == 0 {
		return b.FrameBytes <= maxFrame
	}
	return frames < MaxFrames && bytes+b.FrameBytes <= MaxBytes
}

// Peer is one collector.
type Peer struct {
	set     *Set
	addr    string
	client  journalv1.JournalServiceClient
	calls   chan struct{}
	circuit circuit

	runs []journal.RunID // guarded by set.mu; the latest last
}

// Wrote notes that the collector hinted at a segment of a run of its own.
func (p *Peer) Wrote(run journal.RunID) {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	if p.set.runs[run] == p {
		return
	}
	p.set.runs[run] = p
	p.runs = append(p.runs, run)
	if len(p.runs) > runsOfPeer {
		p.forget(p.runs[0])
		p.runs = slices.Delete(p.runs, 0, 1)
	}
}

// Leave ends what Join began.
func (p *Peer) Leave() {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	for _, run := range p.runs {
		p.forget(run)
	}
	p.runs = nil
}

// forget forgets a run, unless another collector has hinted at it since. The caller holds set.mu.
func (p *Peer) forget(run journal.RunID) {
	if p.set.runs[run] == p {
		delete(p.set.runs, run)
	}
}

// Read asks the collector for frames, and gives take those whose length and hash are right; take is called by this
// goroutine, in order, and may keep the bytes. What it does not give is to be read from the store. The collector has
// Config.Wait, whatever it does.
func (p *Peer) Read(ctx context.Context, batches []accepted.Batch, take func(i int, frame []byte)) {
	var bytes uint64
	for i := range batches {
		bytes += batches[i].FrameBytes
	}
	wait := p.set.cfg.Wait + time.Duration(bytes)*time.Second/bytesPerSecond
	call, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	a := assembly{batches: batches, frames: make([][]byte, len(batches))}
	err := p.read(call, &a)
	cancel()
	// Outside of the wait, which is for the collector and not for this machine.
	defer func() {
		for i, frame := range a.frames {
			if frame != nil {
				take(i, frame)
			}
		}
	}()
	if ctx.Err() != nil {
		return // the caller's end is no fault of the collector
	}
	m := p.set.cfg.Metrics
	m.frames.WithLabelValues("taken").Add(float64(a.taken))
	m.bytes.Add(float64(a.bytes))
	m.frames.WithLabelValues("missing").Add(float64(a.missing))
	m.frames.WithLabelValues("failed").Add(float64(len(batches) - a.taken - a.missing))
	switch {
	case errors.Is(err, errQueued):
		m.failures.WithLabelValues(string(reasonTimeout)).Inc()
	case err != nil:
		why := reasonOf(err)
		m.failures.WithLabelValues(string(why)).Inc()
		p.set.cfg.Log.Debug("frames were not taken from a collector; the store is asked", "address", p.addr, "reason", why, "error", err)
		p.circuit.failed(p.set.cfg.Now(), why.lies())
	case a.taken == 0:
		// It was started again, or has forgotten what is asked for: to ask on would only take time.
		p.circuit.failed(p.set.cfg.Now(), false)
	default:
		p.circuit.worked()
	}
}

// errQueued: the wait was over before it was this call's turn. The collector was not asked, so it is not its fault; calls
// that it answers too late count by themselves.
var errQueued = errors.New("other calls for frames took the whole wait")

func (p *Peer) read(ctx context.Context, a *assembly) error {
	select {
	case p.calls <- struct{}{}:
		defer func() { <-p.calls }()
	case <-ctx.Done():
		return errQueued
	}
	req := &journalv1.ReadFramesRequest{FrameSha256: make([][]byte, len(a.batches))}
	for i := range a.batches {
		req.FrameSha256[i] = a.batches[i].FrameSHA256[:]
	}
	stream, err := p.client.ReadFrames(ctx, req, grpc.MaxCallRecvMsgSize(maxMessage))
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return a.end()
		}
		if err != nil {
			return err
		}
		if len(m.GetPieces()) == 0 {
			return &protocolError{reasonProtocol, "a message without pieces"}
		}
		for _, piece := range m.GetPieces() {
			if err := a.add(piece); err != nil {
				return err
			}
		}
	}
}
