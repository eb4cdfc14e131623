package ingest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// sender is a test's end of a stream.
type sender struct {
	ingestv1.IngestService_StreamBatchesClient
	t testing.TB
}

func (c *collector) open(t testing.TB, h *ingestv1.Hello) (sender, *ingestv1.Welcome, error) {
	t.Helper()
	st, err := c.client.StreamBatches(bound(t))
	if err != nil {
		t.Fatal(err)
	}
	// A refusal may come before the hello is out; Recv has it.
	_ = st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{Hello: h}})
	m, err := st.Recv()
	return sender{st, t}, m.GetWelcome(), err
}

func (c *collector) mustOpen(t testing.TB, b identity.Boot, from uint64) (sender, *ingestv1.Welcome) {
	t.Helper()
	s, w, err := c.open(t, &ingestv1.Hello{AgentId: b.Agent, BootId: b.Boot, SpoolId: "spool-1", FirstPendingSeq: from})
	if err != nil {
		t.Fatalf("hello: %v", err)
	}
	return s, w
}

func (s sender) send(f []byte) {
	s.t.Helper()
	if err := s.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Frame{Frame: f}}); err != nil {
		s.t.Fatal(err)
	}
}

func (s sender) recv() *ingestv1.BatchResult {
	s.t.Helper()
	m, err := s.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	return m.GetResult()
}

// ask sends a frame and reads its answer.
func (s sender) ask(f []byte) *ingestv1.BatchResult {
	s.t.Helper()
	s.send(f)
	r := s.recv()
	if want := identity.Sum(f); !bytes.Equal(r.GetFrameSha256(), want[:]) {
		s.t.Fatalf("answer is of %x, the frame is %v", r.GetFrameSha256(), want)
	}
	return r
}

func (s sender) done() {
	s.t.Helper()
	if err := s.CloseSend(); err != nil {
		s.t.Fatal(err)
	}
	if m, err := s.Recv(); !errors.Is(err, io.EOF) {
		s.t.Fatalf("end of stream: %v, %v", m, err)
	}
}

func TestStreamAnswersEveryOutcomeAndGoesOn(t *testing.T) {
	c := start(t, newStore(), nil)
	s, w := c.mustOpen(t, boot, 1)
	if w.AcceptedThrough != nil || w.GetCollectorId() != "collector-a" || w.GetAuthorityId() == "" || w.GetMaxFrameBytes() != 4<<20 {
		t.Fatalf("welcome %v", w)
	}
	first, other := encode(t, boot, 1, 10, 0), encode(t, boot, 1, 10, 99)
	r := s.ask(first)
	if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED || r.GetSeqStart() != 1 || r.GetSeqEnd() != 10 ||
		r.GetAcceptance().GetManifestKey() != layout.Accepted(identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 1, SeqEnd: 10}) {
		t.Fatalf("first: %v", r)
	}
	if r := s.ask(first); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE {
		t.Fatalf("again: %v", r)
	}
	r = s.ask(other)
	accepted, submitted := identity.Sum(first), identity.Sum(other)
	if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT ||
		!bytes.Equal(r.GetConflict().GetAcceptedSha256(), accepted[:]) || !bytes.Equal(r.GetConflict().GetSubmittedSha256(), submitted[:]) ||
		r.GetConflict().GetCollectorId() != "collector-a" || r.GetConflict().GetAcceptedAtUnixNs() == 0 || r.GetConflict().GetQuarantineKey() == "" {
		t.Fatalf("conflict: %v", r)
	}
	if r := s.ask([]byte("not a frame")); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_REJECTED || r.GetReason() != "BAD_MAGIC" {
		t.Fatalf("garbage: %v", r)
	}
	foreign := encode(t, identity.Boot{Agent: "web-2", Boot: "boot-1"}, 1, 5, 0)
	if r := s.ask(foreign); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_REJECTED || r.GetReason() != ingest.ReasonForeignIdentity {
		t.Fatalf("foreign: %v", r)
	}
	if r := s.ask(encode(t, boot, 11, 5, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Fatalf("after conflicts and rejects: %v", r)
	}
	s.done()
	b, _, err := c.store.Get(t.Context(), layout.Blob(accepted, 0), objstore.GetOptions{})
	if err != nil || !bytes.Equal(b, first) {
		t.Fatalf("stored frame: %d bytes, %v", len(b), err)
	}
	for outcome, want := range map[string]float64{"accepted": 2, "duplicate": 1, "conflict": 1} {
		if got := c.batches(t, outcome, ""); got != want {
			t.Errorf("%s: counted %v, want %v", outcome, got, want)
		}
	}
}

func TestWelcomeTellsWhatIsAccepted(t *testing.T) {
	c := start(t, newStore(), nil)
	s, _ := c.mustOpen(t, boot, 0)
	for _, start := range []uint64{0, 10, 30, 60} { // 0-19, 30-39, 60-69
		s.ask(encode(t, boot, start, 10, 0))
	}
	s.done()
	for _, tc := range []struct {
		from    uint64
		through int64 // -1: absent
		beyond  [][2]uint64
		gaps    [][2]uint64
	}{
		{0, 19, [][2]uint64{{30, 39}, {60, 69}}, [][2]uint64{{20, 29}, {40, 59}}},
		{10, 19, [][2]uint64{{30, 39}, {60, 69}}, [][2]uint64{{20, 29}, {40, 59}}},
		{20, -1, [][2]uint64{{30, 39}, {60, 69}}, [][2]uint64{{20, 29}, {40, 59}}},
		{30, 39, [][2]uint64{{60, 69}}, [][2]uint64{{40, 59}}},
		{60, 69, nil, nil},
		{70, -1, nil, nil},
	} {
		s, w := c.mustOpen(t, boot, tc.from)
		s.done()
		through := int64(-1)
		if w.AcceptedThrough != nil {
			through = int64(w.GetAcceptedThrough())
		}
		if through != tc.through || !equalRanges(w.GetAcceptedBeyond(), tc.beyond) || !equalRanges(w.GetGaps(), tc.gaps) {
			t.Errorf("from %d: %v", tc.from, w)
		}
	}
}

func equalRanges(got []*ingestv1.SeqRange, want [][2]uint64) bool {
	if len(got) != len(want) {
		return false
	}
	for i, r := range got {
		if r.GetStart() != want[i][0] || r.GetEnd() != want[i][1] {
			return false
		}
	}
	return true
}

func TestHelloIsRefused(t *testing.T) {
	c := start(t, newStore(), nil)
	s, _ := c.mustOpen(t, boot, 0)
	s.done()
	before := contents(t, c.store)
	for name, tc := range map[string]struct {
		hello  *ingestv1.Hello
		code   codes.Code
		reason string
	}{
		"no agent":      {&ingestv1.Hello{BootId: "b"}, codes.InvalidArgument, ingest.ReasonBadHello},
		"no boot":       {&ingestv1.Hello{AgentId: "a"}, codes.InvalidArgument, ingest.ReasonBadHello},
		"long spool id": {&ingestv1.Hello{AgentId: "a", BootId: "b", SpoolId: string(make([]byte, 65))}, codes.InvalidArgument, ingest.ReasonBadSpoolID},
		"boot clash":    {&ingestv1.Hello{AgentId: boot.Agent, BootId: boot.Boot, SpoolId: "spool-2"}, codes.FailedPrecondition, "BOOT_ID_CLASH"},
	} {
		_, _, err := c.open(t, tc.hello)
		if status.Code(err) != tc.code || rpc.Reason(err) != tc.reason {
			t.Errorf("%s: %v (%s)", name, err, rpc.Reason(err))
		}
	}
	st, err := c.client.StreamBatches(bound(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Frame{Frame: encode(t, boot, 0, 1, 0)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); rpc.Reason(err) != ingest.ReasonBadHello {
		t.Errorf("frame before hello: %v", err)
	}
	if after := contents(t, c.store); len(after) != len(before) {
		t.Errorf("refused hellos wrote: %v", after)
	}
}

func TestWindowPausesReading(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) { c.Limits.StreamBatches = 3 })
	release := c.store.block()
	s, w := c.mustOpen(t, boot, 0)
	if w.GetMaxInFlightBatches() != 3 {
		t.Fatalf("window %d", w.GetMaxInFlightBatches())
	}
	for i := range uint64(10) {
		s.send(encode(t, boot, i*10, 10, 0))
	}
	eventually(t, "three in flight", func() bool { return c.store.held.Load() == 3 })
	release()
	seen := map[uint64]bool{}
	for range 10 {
		r := s.recv()
		if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED || seen[r.GetSeqStart()] {
			t.Fatalf("%v", r)
		}
		seen[r.GetSeqStart()] = true
	}
	s.done()
}

func TestDrainFinishesWhatWasRead(t *testing.T) {
	c := start(t, newStore(), nil)
	release := c.store.block()
	s, _ := c.mustOpen(t, boot, 0)
	for i := range uint64(5) {
		s.send(encode(t, boot, i*10, 10, 0))
	}
	eventually(t, "five in flight", func() bool { return c.store.held.Load() == 5 })
	ended := make(chan struct{})
	go func() { c.stop(); close(ended) }()
	eventually(t, "draining", func() bool {
		_, err := c.client.SubmitBatch(context.Background(), &ingestv1.SubmitBatchRequest{})
		return status.Code(err) == codes.Unavailable
	})
	release()
	for range 5 {
		if r := s.recv(); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
			t.Errorf("%v", r)
		}
	}
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable || rpc.Reason(err) != rpc.ReasonDraining || rpc.RetryAfter(err) <= 0 {
		t.Errorf("end of a drained stream: %v", err)
	}
	<-ended
}

func TestTooManyStreams(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) { c.Limits.Streams = 1 })
	s, _ := c.mustOpen(t, boot, 0)
	_, _, err := c.open(t, &ingestv1.Hello{AgentId: "web-2", BootId: "b"})
	if status.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != ingest.ReasonTooManyStreams || rpc.RetryAfter(err) <= 0 {
		t.Errorf("second stream: %v", err)
	}
	s.done()
}
