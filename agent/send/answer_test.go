package send_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// TestUnknownStatusIsNoAcceptance: whatever a newer or a broken collector says that this agent
// does not know, the batch stays in the queue and is sent again.
func TestUnknownStatusIsNoAcceptance(t *testing.T) {
	for _, s := range []ingestv1.BatchStatus{ingestv1.BatchStatus_BATCH_STATUS_UNSPECIFIED, 6, 99, -1} {
		t.Run(s.String(), func(t *testing.T) {
			f := newFixture(t)
			es := f.append(3)
			var mu sync.Mutex
			odd := 0
			f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
				mu.Lock()
				defer mu.Unlock()
				if odd++; odd <= 2 {
					reply(sendtest.Answer(b, s, ""))
				} else {
					reply(f.store.Accept(b))
				}
				return nil
			}})
			f.run()
			f.drained()
			f.checkAccepted(es)
			if st := f.queue.Stats(); st.Parked+st.Dead > 0 {
				t.Errorf("set aside: %+v", st)
			}
		})
	}
}

// TestAConflictNamesTheRangeMet: what is parked names the accepted batch that is in the way, if that has other numbers, also after a
// restart; an answer with half of them names none.
func TestAConflictNamesTheRangeMet(t *testing.T) {
	f := newFixture(t)
	es := f.append(3)
	first, last := uint64(0), es[0].Identity.SeqEnd+1
	f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		r := sendtest.Answer(b, ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT, "IDENTITY_CONFLICT")
		sum := identity.Sum([]byte("accepted"))
		r.Conflict = &ingestv1.Conflict{AcceptedSha256: sum[:]}
		info, err := frame.Inspect(b, frame.Limits{})
		if err != nil {
			return err
		}
		switch info.Identity.SeqStart {
		case es[0].Identity.SeqStart:
			r.Conflict.AcceptedSeqStart, r.Conflict.AcceptedSeqEnd = &first, &last
		case es[1].Identity.SeqStart:
			r.Conflict.AcceptedSeqEnd = &last
		}
		reply(r)
		return nil
	}})
	f.run()
	f.drained()
	check := func() {
		t.Helper()
		parked := f.queue.HeldBatches(queue.Parked)
		if len(parked) != 3 {
			t.Fatalf("parked %+v", parked)
		}
		for _, p := range parked {
			want := ""
			if p.Identity() == es[0].Identity {
				want = fmt.Sprintf("0-%d", last)
			}
			if p.Met() != want || p.AcceptedSHA256 == "" {
				t.Errorf("%s meets %q, want %q", p.Identity(), p.Met(), want)
			}
		}
	}
	check()
	if err := f.queue.Close(); err != nil {
		t.Fatal(err)
	}
	f.open()
	check()
}

// TestAnswersAreMatchedByBytes: an answer that names a batch's range and other bytes, or
// nothing that was sent, ends no batch.
func TestAnswersAreMatchedByBytes(t *testing.T) {
	f := newFixture(t)
	es := f.append(3)
	var mu sync.Mutex
	seen := map[identity.Digest]int{}
	f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		mu.Lock()
		defer mu.Unlock()
		seen[identity.Sum(b)]++
		info, err := frame.Inspect(b, frame.Limits{})
		if err != nil {
			return err
		}
		other := identity.Sum([]byte("other bytes"))
		for _, hash := range [][]byte{other[:], nil, {1, 2, 3}} {
			reply(&ingestv1.BatchResult{FrameSha256: hash, SeqStart: info.Identity.SeqStart, SeqEnd: info.Identity.SeqEnd,
				Status: ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED})
		}
		if seen[identity.Sum(b)] == 1 {
			reply(sendtest.Answer(b, retry, "STORE_UNAVAILABLE"))
			return nil
		}
		reply(f.store.Accept(b))
		return nil
	}})
	f.run()
	f.drained()
	f.checkAccepted(es)
	if n := f.answers("unknown"); n < 9 {
		t.Errorf("%v unknown answers were counted", n)
	}
}

// twoBoots queues batches of two boots, three each; the second is the queue's.
func (f *fixture) twoBoots() (first, second []queue.Entry) {
	f.t.Helper()
	first = f.append(3)
	if err := f.queue.NewBoot("test"); err != nil {
		f.t.Fatal(err)
	}
	return first, f.append(3)
}

// TestStreamsHaveOneBoot: the frames of a stream are of the boot that its hello named, however
// the boots are mixed in the queue; a collector rejects every other.
func TestStreamsHaveOneBoot(t *testing.T) {
	f := newFixture(t)
	c := f.collector(&sendtest.Collector{})
	first, second := f.twoBoots()
	f.run()
	f.drained()
	f.checkAccepted(append(first, second...))
	if st := f.queue.Stats(); st.Dead > 0 {
		t.Fatalf("%d batches were rejected: %+v", st.Dead, f.queue.HeldBatches(queue.Dead)[0])
	}
	h := c.Hellos()
	if len(h) != 2 || h[0].GetBootId() != first[0].Identity.Boot || h[1].GetBootId() != second[0].Identity.Boot {
		t.Fatalf("hellos %v", h)
	}
}

// TestClashSparesOtherBoots: only what the clashed boot has is parked.
func TestClashSparesOtherBoots(t *testing.T) {
	f := newFixture(t)
	first, second := f.twoBoots()
	f.collector(&sendtest.Collector{OnHello: func(h *ingestv1.Hello) (*ingestv1.Welcome, error) {
		if h.GetBootId() == first[0].Identity.Boot {
			return nil, clashError()
		}
		return &ingestv1.Welcome{}, nil
	}})
	boot, _, _ := f.queue.Boot()
	f.run()
	f.drained()
	f.checkAccepted(second)
	if n := f.queue.Stats().Parked; n != len(first) {
		t.Errorf("%d parked, want %d", n, len(first))
	}
	if b, _, _ := f.queue.Boot(); b != boot {
		t.Error("the clash of an old boot started a new one")
	}
}

// TestStreamsThatEndInOrder: a collector that ends a stream with OK has not answered what
// is open; that is sent again at once, and not after an answer's timeout.
func TestStreamsThatEndInOrder(t *testing.T) {
	f := newFixture(t)
	f.cfg.AnswerTimeout = time.Hour
	es := f.append(20)
	var mu sync.Mutex
	n := 0
	f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		mu.Lock()
		defer mu.Unlock()
		if n++; n%5 == 0 && n < 20 {
			return io.EOF
		}
		reply(f.store.Accept(b))
		return nil
	}})
	f.run()
	f.drained()
	f.checkAccepted(es)
}

// TestRetryMovesOn: a collector that only answers RETRY is left for another one.
func TestRetryMovesOn(t *testing.T) {
	f := newFixture(t)
	es := f.append(5)
	f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		reply(sendtest.Answer(b, retry, "STORE_UNAVAILABLE"))
		return nil
	}})
	f.collector(&sendtest.Collector{})
	f.beginAtFirst()
	f.run()
	f.drained()
	f.checkAccepted(es)
}

// TestAsideThatCannotBeWritten: a conflict whose bytes find no place on the disk stays in
// the queue, is asked about again, and is parked when there is one.
func TestAsideThatCannotBeWritten(t *testing.T) {
	f := newFixture(t)
	es := f.append(2)
	f.store.Accept(otherFrame(t, es[0].Identity))
	dir := filepath.Join(f.dir, "parked")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // nothing can be made below a file
		t.Fatal(err)
	}
	c := f.collector(&sendtest.Collector{})
	c.OnFrame = func(b []byte, reply func(*ingestv1.BatchResult)) error {
		reply(f.store.Accept(b))
		return nil
	}
	f.run()
	for f.answers("identity_conflict") < 3 && f.ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if st := f.queue.Stats(); st.Pending != 1 || st.Parked != 0 {
		t.Fatalf("%+v, %v conflicts", st, f.answers("identity_conflict"))
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f.drained()
	parked := f.queue.HeldBatches(queue.Parked)
	if len(parked) != 1 || parked[0].Identity() != es[0].Identity {
		t.Fatalf("parked %+v", parked)
	}
	if b, err := os.ReadFile(filepath.Join(dir, parked[0].ID+".lmbatch")); err != nil || !bytes.Equal(b, f.frames[es[0].Identity]) {
		t.Errorf("the parked file has %d bytes, %v", len(b), err)
	}
	if st := f.sender.Status(); st.Collectors[0].State != send.Connected {
		t.Errorf("the stream ended: %+v", st.Collectors[0])
	}
}
