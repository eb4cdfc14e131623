package ingest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// readFrames asks a collector for frames by their hashes; nil for one that is missing.
func (c *collector) readFrames(t testing.TB, sums ...identity.Digest) ([][]byte, error) {
	t.Helper()
	req := &journalv1.ReadFramesRequest{}
	for _, d := range sums {
		req.FrameSha256 = append(req.FrameSha256, d[:])
	}
	stream, err := journalv1.NewJournalServiceClient(c.conn).ReadFrames(bound(t), req)
	if err != nil {
		t.Fatal(err)
	}
	out := make([][]byte, len(sums))
	answered := make([]bool, len(sums))
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		n := 0
		for _, p := range m.GetPieces() {
			n += len(p.GetData())
			out[p.GetIndex()] = append(out[p.GetIndex()], p.GetData()...)
			answered[p.GetIndex()] = true
			if p.GetMissing() != (len(p.GetData()) == 0) {
				t.Errorf("piece of %d: missing %v with %d bytes", p.GetIndex(), p.GetMissing(), len(p.GetData()))
			}
		}
		if n > 256<<10 || len(m.GetPieces()) == 0 {
			t.Errorf("a message of %d pieces, %d bytes", len(m.GetPieces()), n)
		}
	}
	for i := range answered {
		if !answered[i] {
			t.Errorf("nothing is said of frame %d", i)
		}
	}
	return out, nil
}

// TestFramesAreSentFromMemory: what was accepted, over a stream or over HTTP's unary call, is sent by its hash, in pieces
// where it is long; what is not there is missing. The bytes stay what they are while further frames come.
func TestFramesAreSentFromMemory(t *testing.T) {
	keepPool(t)
	c := start(t, newStore(), nil)
	s, _ := c.mustOpen(t, boot, 0)
	frames := [][]byte{encode(t, boot, 0, 10, 0), bigFrame(t, boot, 10, 1<<20), encode(t, boot, 1<<20, 10, 1)}
	for _, f := range frames[:2] {
		if r := s.ask(f); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
			t.Fatal(r)
		}
	}
	if _, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: frames[2], SpoolId: "spool-1"}); err != nil {
		t.Fatal(err)
	}
	conflict := encode(t, boot, 0, 10, 7)
	if r := s.ask(conflict); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT {
		t.Fatal(r)
	}
	for i := range uint64(50) { // they use the pool's buffers
		s.ask(encode(t, boot, 1<<21+10*i, 10, float64(i)))
	}
	s.done()
	sums := []identity.Digest{identity.Sum(frames[0]), identity.Sum(conflict), identity.Sum(frames[1]), identity.Sum(nil), identity.Sum(frames[2])}
	got, err := c.readFrames(t, sums...)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]byte{frames[0], nil, frames[1], nil, frames[2]} {
		if !bytes.Equal(got[i], want) {
			t.Errorf("frame %d: %d bytes, want %d", i, len(got[i]), len(want))
		}
	}
}

// TestFramesWaitForTheJournal: before its segment is durable a frame is given to nobody, though its manifest exists. A
// watcher that hears of the segment gets it.
func TestFramesWaitForTheJournal(t *testing.T) {
	store := newStore()
	c := start(t, store, nil)
	watch, err := journalv1.NewJournalServiceClient(c.conn).WatchJournal(bound(t), &journalv1.WatchJournalRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	release := store.blockJournal()
	frame := encode(t, boot, 0, 10, 0)
	s, _ := c.mustOpen(t, boot, 0)
	s.send(frame)
	eventually(t, "the segment is on its way", func() bool { return store.journalHeld.Load() == 1 && len(manifests(t, store.Store)) == 1 })
	if got, err := c.readFrames(t, identity.Sum(frame)); err != nil || got[0] != nil {
		t.Errorf("before its segment: %d bytes, %v", len(got[0]), err)
	}
	release()
	if m, err := watch.Recv(); err != nil || m.GetPosition() == "" {
		t.Fatalf("%v, %v", m, err)
	}
	if got, err := c.readFrames(t, identity.Sum(frame)); err != nil || !bytes.Equal(got[0], frame) {
		t.Errorf("after the hint: %d bytes, %v", len(got[0]), err)
	}
	s.recv()
	s.done()
}

// TestSpooledFramesWaitForTheirLanding: what is accepted on the collector's own disk alone is given to nobody.
func TestSpooledFramesWaitForTheirLanding(t *testing.T) {
	store, dir := newStore(), t.TempDir()
	c := start(t, store, func(c *ingest.Config) {
		c.Acceptance, c.Spool.Dir, c.Spool.LandingIntervalMS = "local_spool", dir, 10
	})
	store.journalDown.Store(true)
	frame := encode(t, boot, 0, 10, 0)
	s, _ := c.mustOpen(t, boot, 0)
	if r := s.ask(frame); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Fatal(r)
	}
	eventually(t, "the manifest", func() bool { return len(manifests(t, store.Store)) == 1 })
	if got, err := c.readFrames(t, identity.Sum(frame)); err != nil || got[0] != nil {
		t.Errorf("before its segment: %d bytes, %v", len(got[0]), err)
	}
	store.journalDown.Store(false)
	eventually(t, "it has landed", func() bool {
		got, err := c.readFrames(t, identity.Sum(frame))
		return err == nil && bytes.Equal(got[0], frame)
	})
	if n := count(t, store); n != 1 {
		t.Errorf("%d entries", n)
	}
	s.done()
}

// TestReadFramesIsBounded: too many frames, what is no hash, and calls that may last for ever are refused with a reason;
// a collector without memory for frames has none.
func TestReadFramesIsBounded(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) { c.Journal.FramesMemory = 0 })
	frame := encode(t, boot, 0, 10, 0)
	s, _ := c.mustOpen(t, boot, 0)
	s.ask(frame)
	s.done()
	if got, err := c.readFrames(t, identity.Sum(frame)); err != nil || got[0] != nil {
		t.Errorf("without memory: %d bytes, %v", len(got[0]), err)
	}
	sum := identity.Sum(frame)
	many := make([][]byte, 257)
	for i := range many {
		many[i] = sum[:]
	}
	long, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for name, call := range map[string]struct {
		ctx  context.Context
		sums [][]byte
	}{
		"many": {bound(t), many}, "no hash": {bound(t), [][]byte{sum[:31]}}, "no deadline": {t.Context(), many[:1]}, "an hour": {long, many[:1]},
	} {
		stream, err := journalv1.NewJournalServiceClient(c.conn).ReadFrames(call.ctx, &journalv1.ReadFramesRequest{FrameSha256: call.sums})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument || rpc.Reason(err) != ingest.ReasonBadFramesRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
}
