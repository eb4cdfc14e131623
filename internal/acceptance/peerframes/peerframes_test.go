package peerframes

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

type sender = grpc.ServerStreamingServer[journalv1.ReadFramesResponse]

// TestAFrameInPiecesHasItsLength: callers count memory by the length of frames, so their buffers are no longer.
func TestAFrameInPiecesHasItsLength(t *testing.T) {
	frame := make([]byte, 270_000)
	a := assembly{batches: []accepted.Batch{{FrameSHA256: identity.Sum(frame), FrameBytes: uint64(len(frame))}}, frames: make([][]byte, 1)}
	for rest := frame; len(rest) > 0; {
		n := min(len(rest), 256<<10)
		if err := a.add(piece(0, rest[:n])); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if got := a.frames[0]; len(got) != len(frame) || cap(got) > len(frame)+len(frame)/100 {
		t.Errorf("%d bytes in a buffer of %d", len(got), cap(got))
	}
}

// TestCallsThatWaitForOthersAreNoFault: calls that get no turn within their wait were never sent, so the collector is asked again.
func TestCallsThatWaitForOthersAreNoFault(t *testing.T) {
	w := newWorld(t, time.Millisecond)
	w.answer = func([][]byte, sender) error { return nil }
	for range callsAtOnce {
		w.peer.calls <- struct{}{}
	}
	for range 2 * tolerated {
		w.read(t)
	}
	if w.calls.Load() != 0 || w.counted("failed") != float64(2*tolerated*len(w.batches)) {
		t.Errorf("%d calls, %v frames failed", w.calls.Load(), w.counted("failed"))
	}
	if w.set.Of(aRun) == nil {
		t.Error("a collector that nobody asked is not asked any more")
	}
}

// collector answers as a test says.
type collector struct {
	journalv1.UnimplementedJournalServiceServer
	calls  atomic.Int64
	answer func(asked [][]byte, s sender) error
}

func (c *collector) ReadFrames(req *journalv1.ReadFramesRequest, s sender) error {
	c.calls.Add(1)
	return c.answer(req.GetFrameSha256(), s)
}

// world is a set with one collector, and frames.
type world struct {
	*collector
	set     *Set
	peer    *Peer
	now     time.Time
	frames  [][]byte
	batches []accepted.Batch
}

var aRun = journal.RunID{1}

func newWorld(t *testing.T, wait time.Duration) *world {
	w := &world{collector: &collector{}, now: time.Unix(1000, 0)}
	gs := grpc.NewServer()
	journalv1.RegisterJournalServiceServer(gs, w)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- gs.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); gs.Stop(); <-served })
	w.set = New(Config{Wait: wait, Now: func() time.Time { return w.now }, Log: telemetry.Discard().Log, Metrics: NewMetrics(prometheus.NewRegistry(), "test")})
	w.peer = w.set.Join("collector", journalv1.NewJournalServiceClient(conn))
	w.peer.Wrote(aRun)
	for i, n := range []int{5000, 700_000, 1, 5000} {
		b := make([]byte, n)
		copy(b, fmt.Sprint(i))
		w.frames = append(w.frames, b)
		w.batches = append(w.batches, accepted.Batch{Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: uint64(i), SeqEnd: uint64(i)},
			FrameSHA256: identity.Sum(b), FrameBytes: uint64(n)})
	}
	return w
}

// read gives the frames that were taken, which are right, or fails.
func (w *world) read(t *testing.T) (taken []int) {
	t.Helper()
	w.peer.Read(t.Context(), w.batches, func(i int, frame []byte) {
		if string(frame) != string(w.frames[i]) {
			t.Errorf("frame %d is wrong", i)
		}
		taken = append(taken, i)
	})
	return taken
}

func (w *world) counted(outcome string) float64 {
	return testutil.ToFloat64(w.set.cfg.Metrics.frames.WithLabelValues(outcome))
}

func piece(i int, data []byte) *journalv1.FramePiece {
	return &journalv1.FramePiece{Index: uint32(i), Data: data}
}

func message(pieces ...*journalv1.FramePiece) *journalv1.ReadFramesResponse {
	return &journalv1.ReadFramesResponse{Pieces: pieces}
}

// TestFramesAreTaken: frames of one message and of several, and not those that are missing.
func TestFramesAreTaken(t *testing.T) {
	w := newWorld(t, time.Minute)
	w.answer = func(asked [][]byte, s sender) error {
		for i := range w.batches {
			if string(asked[i]) != string(w.batches[i].FrameSHA256[:]) {
				return status.Error(codes.InvalidArgument, "other frames")
			}
		}
		_ = s.Send(message(piece(0, w.frames[0]), piece(1, w.frames[1][:10])))
		_ = s.Send(message(piece(1, w.frames[1][10:500_000])))
		return s.Send(message(piece(1, w.frames[1][500_000:]), &journalv1.FramePiece{Index: 2, Missing: true}, piece(3, w.frames[3])))
	}
	if got := w.read(t); !slices.Equal(got, []int{0, 1, 3}) {
		t.Errorf("took %v", got)
	}
	if w.counted("taken") != 3 || w.counted("missing") != 1 || w.counted("failed") != 0 {
		t.Errorf("%v taken, %v missing, %v failed", w.counted("taken"), w.counted("missing"), w.counted("failed"))
	}
	if w.set.Of(aRun) != w.peer {
		t.Error("a collector that works is not asked again")
	}
}

// TestLiarsCostAShortWait: whatever a collector sends, only frames that are what the journal says are taken, the call
// ends, the reason is counted, and a collector that lies is not asked for a minute.
func TestLiarsCostAShortWait(t *testing.T) {
	forever := func(s sender, m *journalv1.ReadFramesResponse) error {
		for {
			if err := s.Send(m); err != nil {
				return err
			}
		}
	}
	var w *world
	for name, c := range map[string]struct {
		answer func([][]byte, sender) error
		taken  []int
		reason Reason
	}{
		"wrong bytes": {func(_ [][]byte, s sender) error {
			b := slices.Clone(w.frames[1])
			b[600_000]++
			return s.Send(message(piece(0, w.frames[0]), piece(1, b[:300_000]), piece(1, b[300_000:]), piece(2, w.frames[2]), piece(3, w.frames[3])))
		}, []int{0}, reasonWrongBytes},
		"another frame":        {func(_ [][]byte, s sender) error { return s.Send(message(piece(0, w.frames[3]))) }, nil, reasonWrongBytes},
		"too long":             {func(_ [][]byte, s sender) error { return s.Send(message(piece(0, w.frames[1]))) }, nil, reasonTooLong},
		"endless frame":        {func(_ [][]byte, s sender) error { return forever(s, message(piece(0, make([]byte, 99)))) }, nil, reasonTooLong},
		"endless empty":        {func(_ [][]byte, s sender) error { return forever(s, message()) }, nil, reasonProtocol},
		"endless empty pieces": {func(_ [][]byte, s sender) error { return forever(s, message(piece(0, nil))) }, nil, reasonProtocol},
		"endless missing": {func(_ [][]byte, s sender) error {
			return forever(s, message(&journalv1.FramePiece{Missing: true}))
		}, nil, reasonProtocol},
		"no order": {func(_ [][]byte, s sender) error { return s.Send(message(piece(1, w.frames[1]))) }, nil, reasonProtocol},
		"cut": {func(_ [][]byte, s sender) error {
			return s.Send(message(piece(0, w.frames[0]), piece(1, w.frames[1][:9])))
		}, []int{0}, reasonProtocol},
		"more than asked": {func(_ [][]byte, s sender) error {
			for i, f := range w.frames {
				_ = s.Send(message(piece(i, f)))
			}
			return s.Send(message(piece(4, w.frames[0])))
		}, []int{0, 1, 2, 3}, reasonProtocol},
		"missing with bytes": {func(_ [][]byte, s sender) error {
			return s.Send(message(&journalv1.FramePiece{Missing: true, Data: w.frames[0]}))
		}, nil, reasonProtocol},
		"a large message": {func(_ [][]byte, s sender) error { return s.Send(message(piece(0, make([]byte, maxMessage)))) }, nil, reasonRefused},
		"another error":   {func([][]byte, sender) error { return status.Error(codes.PermissionDenied, "no") }, nil, reasonRefused},
		"draining":        {func([][]byte, sender) error { return status.Error(codes.Unavailable, "no") }, nil, reasonUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w = newWorld(t, time.Minute)
			w.answer = c.answer
			if got := w.read(t); !slices.Equal(got, c.taken) {
				t.Errorf("took %v, want %v", got, c.taken)
			}
			if n := testutil.ToFloat64(w.set.cfg.Metrics.failures.WithLabelValues(string(c.reason))); n != 1 {
				t.Errorf("%v failures of reason %s", n, c.reason)
			}
			if w.counted("taken") != float64(len(c.taken)) || w.counted("failed")+w.counted("missing") != float64(4-len(c.taken)) {
				t.Errorf("%v taken, %v failed", w.counted("taken"), w.counted("failed"))
			}
			if asked := w.set.Of(aRun) != nil; asked == c.reason.lies() {
				t.Errorf("asked again at once: %v", asked)
			}
		})
	}
}

// TestSilentCollectorsAreNotAskedForLong: calls that are not answered end with the wait, and after some of them the
// collector is not asked, but for one try from time to time.
func TestSilentCollectorsAreNotAskedForLong(t *testing.T) {
	w := newWorld(t, time.Millisecond)
	w.answer = func(_ [][]byte, s sender) error { <-s.Context().Done(); return s.Context().Err() }
	for i := range tolerated {
		p := w.set.Of(aRun)
		if p == nil {
			t.Fatalf("not asked after %d failures", i)
		}
		if got := w.read(t); len(got) != 0 {
			t.Errorf("took %v", got)
		}
	}
	if w.set.Of(aRun) != nil {
		t.Error("still asked")
	}
	w.now = w.now.Add(firstPause)
	if w.set.Of(aRun) == nil {
		t.Error("not asked after the pause")
	}
	if w.set.Of(aRun) != nil {
		t.Error("more than one call tries after the pause")
	}
	w.now = w.now.Add(longestStop)
	w.answer = func(_ [][]byte, s sender) error { return s.Send(message(piece(0, w.frames[0]))) }
	w.set.cfg.Wait, w.batches = time.Minute, w.batches[:1]
	if w.set.Of(aRun) == nil || len(w.read(t)) != 1 || w.set.Of(aRun) == nil || w.set.Of(aRun) == nil {
		t.Error("a collector that works again is not asked as before")
	}
}

// TestAnEndedCallIsNoFault: who is stopped while it waits says nothing about the collector.
func TestAnEndedCallIsNoFault(t *testing.T) {
	w := newWorld(t, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	w.answer = func(_ [][]byte, s sender) error { cancel(); <-s.Context().Done(); return s.Context().Err() }
	w.peer.Read(ctx, w.batches, func(i int, _ []byte) { t.Errorf("took %d", i) })
	if w.counted("failed") != 0 || w.peer.circuit.failures != 0 {
		t.Errorf("%v failed", w.counted("failed"))
	}
}

// TestRunsHaveTheirCollector: a run is asked for at the collector that hinted at it last, while its watch is on.
func TestRunsHaveTheirCollector(t *testing.T) {
	s := New(Config{Wait: time.Second, Now: time.Now, Log: telemetry.Discard().Log, Metrics: NewMetrics(prometheus.NewRegistry(), "test")})
	a, b := s.Join("a", nil), s.Join("b", nil)
	for i := range byte(10) {
		a.Wrote(journal.RunID{i})
	}
	b.Wrote(journal.RunID{9})
	for i := range byte(10) {
		var want *Peer
		switch {
		case i == 9:
			want = b
		case i >= 10-runsOfPeer:
			want = a
		}
		if got := s.Of(journal.RunID{i}); got != want {
			t.Errorf("run %d: %p, want %p", i, got, want)
		}
	}
	a.Leave()
	if s.Of(journal.RunID{8}) != nil || s.Of(journal.RunID{9}) != b || len(s.runs) != 1 {
		t.Errorf("%d runs after one has left", len(s.runs))
	}
	s.cfg.Wait = 0
	if s.Of(journal.RunID{9}) != nil {
		t.Error("a wait of 0 asks collectors")
	}
}

// TestWhatFitsIntoACall: so many frames and bytes, or one large frame, but not the largest.
func TestWhatFitsIntoACall(t *testing.T) {
	for _, c := range []struct {
		frame, bytes uint64
		frames       int
		fits         bool
	}{
		{MaxBytes + 1, 0, 0, true}, {maxFrame + 1, 0, 0, false}, {1, MaxBytes - 1, 1, true}, {2, MaxBytes - 1, 1, false}, {1, 1, MaxFrames, false}, {1, 1, MaxFrames - 1, true},
	} {
		if got := Fits(&accepted.Batch{FrameBytes: c.frame}, c.frames, c.bytes); got != c.fits {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
