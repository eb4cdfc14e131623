package ingest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
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

func (c *collector) mustOpen(t testing.TB, b identity.Boot, next uint64) (sender, *ingestv1.Welcome) {
	t.Helper()
	s, w, err := c.open(t, &ingestv1.Hello{AgentId: b.Agent, BootId: b.Boot, SpoolId: "spool-1", NextSeq: next})
	if err != nil {
		t.Fatalf("hello: %v", err)
	}
	return s, w
}

// others opens and ends n streams of other boots, one after the other: what the collector
// has to do by then that takes no longer, it has done.
func (c *collector) others(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		s, _ := c.mustOpen(t, identity.Boot{Agent: "other", Boot: fmt.Sprint(i)}, 0)
		s.done()
	}
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
	if w.GetNumbersTaken() || w.GetCollectorId() != "collector-a" || w.GetAuthorityId() == "" || w.GetMaxFrameBytes() != 4<<20 {
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
	foreign = encode(t, identity.Boot{Agent: "web-1", Boot: "boot-2"}, 1, 5, 0)
	if r := s.ask(foreign); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_REJECTED || r.GetReason() != ingest.ReasonForeignIdentity {
		t.Fatalf("another boot of the agent: %v", r)
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

// The manifest says of the frame what is true of it: queries and rollups take it from there.
func TestManifestDescribesTheFrame(t *testing.T) {
	c := start(t, newStore(), nil)
	s, _ := c.mustOpen(t, boot, 7)
	f := encode(t, boot, 7, 10, 0)
	began := time.Now()
	r := s.ask(f)
	s.done()
	b, _, err := c.store.Get(t.Context(), r.GetAcceptance().GetManifestKey(), objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := accept.ParseManifest(b)
	if err != nil {
		t.Fatal(err)
	}
	if at := m.AcceptedTime(); at.Before(began) || at.After(time.Now()) || at.UnixNano() != r.GetAcceptance().GetAcceptedAtUnixNs() {
		t.Errorf("accepted at %v, answered %d", at, r.GetAcceptance().GetAcceptedAtUnixNs())
	}
	h, err := frame.ParseHeader(f)
	if err != nil {
		t.Fatal(err)
	}
	got := []any{m.Identity, m.FrameSHA256, m.FrameBytes, m.RawBlobKey, m.CollectorID, m.RecordCount, m.MinTime, m.MaxTime}
	const first = int64(1_700_000_000_000_000_000)
	want := []any{h.Identity, identity.Sum(f), uint64(len(f)), layout.Blob(identity.Sum(f), 0), "collector-a", uint64(10), first, first + int64(9e9)}
	for i := range want {
		if fmt.Sprint(got[i]) != fmt.Sprint(want[i]) {
			t.Errorf("field %d is %v, want %v", i, got[i], want[i])
		}
	}
}

// A welcome says whether another sender uses the boot id, and never which batches are accepted: a sender
// that dropped those would take them from the journal, where they may not stand yet.
func TestWelcomeTellsOfTakenNumbers(t *testing.T) {
	c := start(t, newStore(), nil)
	s, _ := c.mustOpen(t, boot, 0)
	for _, start := range []uint64{0, 10, 30, 60} { // 0-19, 30-39, 60-69
		s.ask(encode(t, boot, start, 10, 0))
	}
	s.done()
	for next, taken := range map[uint64]bool{0: true, 20: true, 60: true, 61: false, 70: false, math.MaxUint64: false} {
		s, w := c.mustOpen(t, boot, next)
		s.done()
		if w.GetNumbersTaken() != taken {
			t.Errorf("next number %d: %v", next, w)
		}
	}
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
	after := contents(t, c.store)
	for key := range after {
		if strings.HasPrefix(key, layout.ClashesOf(boot)) { // of the other spool
			delete(after, key)
		}
	}
	if len(after) != len(before) {
		t.Errorf("refused hellos wrote: %v", after)
	}
}

// A sender that sends more than its window is not read on until answers make room: by
// number of batches, and by their bytes.
func TestWindowPausesReading(t *testing.T) {
	t.Run("batches", func(t *testing.T) {
		testWindow(t, 3, func(l *ingest.Limits) { l.StreamBatches = 3 })
	})
	t.Run("bytes", func(t *testing.T) {
		testWindow(t, 2, func(l *ingest.Limits) { l.StreamBytes = config.Bytes(len(encode(t, boot, 0, 10, 0)) + 1) })
	})
}

func testWindow(t *testing.T, window int64, change func(*ingest.Limits)) {
	c := start(t, newStore(), func(c *ingest.Config) { change(&c.Limits) })
	release := c.store.block()
	s, _ := c.mustOpen(t, boot, 0)
	for i := range uint64(10) {
		s.send(encode(t, boot, i*10, 10, 0))
	}
	eventually(t, "a full window in flight", func() bool { return c.store.held.Load() == window })
	c.others(t, 20) // time for a reader that does not stop
	if most := c.store.most.Load(); most != window {
		t.Errorf("%d batches in flight, the window is %d", most, window)
	}
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

// What was read of a sender that goes away is accepted all the same.
func TestWhatWasReadIsFinished(t *testing.T) {
	c := start(t, newStore(), nil)
	release := c.store.block()
	ctx, cancel := context.WithCancel(t.Context())
	g, err := c.client.StreamBatches(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := sender{g, t}
	hello := &ingestv1.Hello{AgentId: boot.Agent, BootId: boot.Boot}
	if err := s.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{Hello: hello}}); err != nil {
		t.Fatal(err)
	}
	f := encode(t, boot, 0, 10, 0)
	s.send(f)
	eventually(t, "in flight", func() bool { return c.store.held.Load() == 1 })
	cancel()
	c.others(t, 20) // time for a collector that gives up
	held := c.store.held.Load()
	release()
	if held != 1 {
		t.Fatal("the submission ended with its sender")
	}
	eventually(t, "accepted", func() bool {
		_, err := c.store.Head(t.Context(), layout.Accepted(identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 0, SeqEnd: 9}))
		return err == nil
	})
}

// A boot of which the store does not list what is accepted is not welcomed as a new one.
func TestHelloOverAFailedListing(t *testing.T) {
	c := start(t, newStore(), nil)
	c.store.unlisted.Store(true)
	if _, _, err := c.open(t, &ingestv1.Hello{AgentId: boot.Agent, BootId: boot.Boot, SpoolId: "spool-1"}); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	c.store.unlisted.Store(false)
	s, _ := c.mustOpen(t, boot, 0)
	s.done()
}

// A failure that nobody knows is a matter of coming again: nothing may be assumed of it.
func TestPanicIsRetry(t *testing.T) {
	c := start(t, newStore(), nil)
	s, _ := c.mustOpen(t, boot, 0)
	f := encode(t, boot, 0, 10, 0)
	c.store.panics.Store(1)
	if r := s.ask(f); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY || r.GetRetryDelay().AsDuration() <= 0 {
		t.Errorf("after a panic: %v", r)
	}
	if r := s.ask(f); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Errorf("the same bytes again: %v", r)
	}
	s.done()
}

// The bytes of a frame whose acceptance failed may still be on their way to the store:
// they do not change.
func TestBytesOfAFailedFrameStay(t *testing.T) {
	keepPool(t)
	c := start(t, newStore(), func(c *ingest.Config) { c.AcceptTimeout = 100 * time.Millisecond })
	s, _ := c.mustOpen(t, boot, 0)
	var kept atomic.Pointer[[]byte]
	keep := func(body []byte) { kept.Store(&body) }
	c.store.keep.Store(&keep)
	f := encode(t, boot, 0, 10, 0)
	if r := s.ask(f); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY {
		t.Fatalf("%v", r)
	}
	c.store.keep.Store(nil)
	for i := range uint64(200) {
		s.ask(encode(t, boot, 100+10*i, 10, float64(i)))
	}
	if b := kept.Load(); b == nil || !bytes.Equal(*b, f) {
		t.Error("the bytes that the store's client may be sending are another frame's now")
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
