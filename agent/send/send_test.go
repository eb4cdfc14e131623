package send_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

const (
	rejected = ingestv1.BatchStatus_BATCH_STATUS_REJECTED
	retry    = ingestv1.BatchStatus_BATCH_STATUS_RETRY
)

type fixture struct {
	t      *testing.T
	ctx    context.Context
	dir    string
	queue  *queue.Queue
	store  *sendtest.Store
	reg    *prometheus.Registry
	cfg    send.Config
	frames map[identity.Batch][]byte
	sender *send.Sender
	// onAside is the sender's, set before run.
	onAside func(queue.State, queue.HeldBatch)
	at      send.Whereabouts
	dialer  send.Dialer
	encoder *frame.Encoder
}

func newFixture(t *testing.T) *fixture {
	ctx, cancel := context.WithTimeout(t.Context(), mutants.Patience(2*time.Minute))
	t.Cleanup(cancel)
	f := &fixture{t: t, ctx: ctx, dir: filepath.Join(t.TempDir(), "q"), store: sendtest.NewStore(),
		reg: prometheus.NewRegistry(), cfg: send.DefaultConfig(), frames: map[identity.Batch][]byte{}, encoder: frame.NewEncoder(frame.Options{})}
	f.cfg.Collectors = nil
	f.cfg.BackoffInitial, f.cfg.BackoffMax = time.Millisecond, 20*time.Millisecond
	f.open()
	return f
}

func (f *fixture) open() {
	q, err := queue.Open(vfs.OS, f.dir, queue.Options{Agent: "a1", MaxBytes: 64 << 20, SegmentBytes: 1 << 20,
		Policy: queue.RefuseNew, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.t.Fatal(err)
	}
	f.queue = q
	f.t.Cleanup(func() { _ = q.Close() })
}

// collector starts one and adds it to the settings.
func (f *fixture) collector(c *sendtest.Collector) *sendtest.Collector {
	f.t.Helper()
	c.Store = f.store
	addr, err := c.Start(closedPort(f.t)) // a test may start another one there
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Stop)
	f.cfg.Collectors = append(f.cfg.Collectors, addr)
	return c
}

// beginAtFirst puts the collectors in an order in which the first one that was added is tried
// first: agents begin by the hash of their id.
func (f *fixture) beginAtFirst() {
	h := fnv.New32a()
	_, _ = h.Write([]byte("a1"))
	n := len(f.cfg.Collectors)
	at := int(h.Sum32() % uint32(n))
	f.cfg.Collectors = append(slices.Clone(f.cfg.Collectors[n-at:]), f.cfg.Collectors[:n-at]...)
}

// append queues n real frames.
func (f *fixture) append(n int) []queue.Entry {
	f.t.Helper()
	var out []queue.Entry
	for i := range n {
		es, err := f.queue.Append(queue.Part{Records: 2, Encode: func(id identity.Batch) ([]byte, error) {
			b := frame.NewBuilder()
			s, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "m"}}, series.Gauge, "", 0)
			if err != nil {
				return nil, err
			}
			_ = b.Append(s, 1, float64(i))
			_ = b.Append(s, 2, rand.Float64())
			batch, err := b.Build(id.BootOf(), id.SeqStart)
			if err != nil {
				return nil, err
			}
			enc, err := f.encoder.Encode(nil, batch)
			f.frames[id] = enc
			return enc, err
		}})
		if err != nil {
			f.t.Fatal(err)
		}
		out = append(out, es...)
	}
	return out
}

// run starts the sender and gives a function that stops it and waits.
func (f *fixture) run() (stop func()) {
	f.t.Helper()
	s, err := send.New(f.cfg, f.queue, send.Deps{Registry: f.reg, Log: slog.New(slog.DiscardHandler), Now: time.Now, OnRefused: f.onAside, Whereabouts: f.at, Dialer: f.dialer})
	if err != nil {
		f.t.Fatal(err)
	}
	f.sender = s
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				f.t.Errorf("Run: %v", err)
			}
		})
	}
	f.t.Cleanup(stop)
	return stop
}

// drained waits until nothing is pending.
func (f *fixture) drained() {
	f.t.Helper()
	if err := f.sender.Flush(f.ctx, f.queue.Last()); err != nil {
		f.t.Fatalf("not drained: %v; pending %v; %+v", err, f.queue.Pending(0, 3), f.sender.Status())
	}
}

// until waits for a change of the queue that makes ok true.
func (f *fixture) until(what string, ok func() bool) {
	f.t.Helper()
	for {
		changed := f.queue.Changed()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-f.ctx.Done():
			f.t.Fatalf("%s: %v; %+v", what, f.ctx.Err(), f.sender.Status())
		}
	}
}

// checkAccepted: exactly these identities are accepted, with exactly the queued bytes.
func (f *fixture) checkAccepted(want []queue.Entry) {
	f.t.Helper()
	got, _ := f.store.Accepted()
	if len(got) != len(want) {
		f.t.Errorf("%d accepted, want %d", len(got), len(want))
	}
	for _, e := range want {
		if !bytes.Equal(f.store.Frame(e.Identity), f.frames[e.Identity]) {
			f.t.Errorf("%s is not accepted with its bytes", e.Identity)
		}
	}
}

func (f *fixture) answers(label string) float64 {
	return f.metric("lightmetrics_agent_batches_total", label)
}

// metric is a counter with a label of that value, or with none; -1 when there is no such one.
func (f *fixture) metric(name, label string) float64 {
	list, err := f.reg.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, mf := range list {
		if mf.GetName() != name {
			continue
		}
		for _, m := range mf.GetMetric() {
			if len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

func TestHelloAndOrder(t *testing.T) {
	f := newFixture(t)
	c := f.collector(&sendtest.Collector{})
	es := f.append(50)
	if err := f.queue.Ack(es[0].No); err != nil {
		t.Fatal(err)
	}
	es = es[1:]
	f.run()
	f.drained()
	f.checkAccepted(es)
	got, _ := f.store.Accepted()
	for i, id := range got {
		if id != es[i].Identity {
			t.Fatalf("accepted %s at %d, want %s: oldest first", id, i, es[i].Identity)
		}
	}
	boot, spool, next := f.queue.Boot()
	h := c.Hellos()[0]
	if h.GetAgentId() != "a1" || h.GetBootId() != boot.Boot || h.GetSpoolId() != spool || h.GetNextSeq() != next {
		t.Errorf("hello %v", h)
	}
	// The stream stays open for what comes.
	f.append(1)
	f.drained()
	if n := len(c.Hellos()); n != 1 {
		t.Errorf("%d streams, want 1", n)
	}
}

// TestAllStatusesOutOfOrder answers a window in random order with all five statuses.
func TestAllStatusesOutOfOrder(t *testing.T) {
	f := newFixture(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	es := f.append(12)
	// Entries 2 and 3 are accepted already: 2 with the same bytes, 3 with others.
	f.store.Accept(f.frames[es[2].Identity])
	f.store.Accept(otherFrame(t, es[3].Identity))
	var mu sync.Mutex
	var held [][]byte
	retried := false
	var replyAll func(*ingestv1.BatchResult)
	f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		mu.Lock()
		defer mu.Unlock()
		held, replyAll = append(held, b), reply
		if len(held) < 12 && !retried {
			return nil
		}
		rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		for _, b := range held {
			switch info, _ := frame.Inspect(b, frame.Limits{}); {
			case info.Identity == es[4].Identity:
				replyAll(sendtest.Answer(b, rejected, "FRAME_BAD"))
			case info.Identity == es[5].Identity && !retried:
				retried = true
				r := sendtest.Answer(b, retry, "STORE_UNAVAILABLE")
				r.RetryDelay = durationpb.New(5 * time.Millisecond)
				replyAll(r)
			default:
				replyAll(f.store.Accept(b))
			}
		}
		held = nil
		return nil
	}})
	f.run()
	f.drained()
	if got := f.metric("lightmetrics_agent_sent_batches_total", ""); got != 13 {
		t.Errorf("%v batches were sent, want each once and one twice", got)
	}
	for status, want := range map[string]float64{"accepted": 9, "duplicate": 1, "identity_conflict": 1, "rejected": 1, "retry": 1, "unknown": 0} {
		if got := f.answers(status); got != want {
			t.Errorf("%s: %v answers, want %v", status, got, want)
		}
	}
	parked, dead := f.queue.HeldBatches(queue.Parked), f.queue.HeldBatches(queue.Dead)
	other := identity.Sum(otherFrame(t, es[3].Identity))
	if len(parked) != 1 || parked[0].Identity() != es[3].Identity || parked[0].AcceptedSHA256 != other.String() ||
		parked[0].AcceptedBy != "first" || parked[0].QuarantineKey == "" || parked[0].FrameSHA256 != identity.Sum(f.frames[es[3].Identity]) {
		t.Errorf("parked %+v", parked)
	}
	if len(dead) != 1 || dead[0].Identity() != es[4].Identity || dead[0].Reason != "FRAME_BAD" || dead[0].Detail != "scripted" {
		t.Errorf("dead %+v", dead)
	}
	// A restart brings none of them back.
	if err := f.queue.Close(); err != nil {
		t.Fatal(err)
	}
	f.open()
	if st := f.queue.Stats(); st.Pending != 0 || st.Parked != 1 || st.Dead != 1 {
		t.Errorf("after reopening: %+v", st)
	}
}

// otherFrame is a valid frame of an identity with bytes that no queue has.
func otherFrame(t *testing.T, id identity.Batch) []byte {
	b := frame.NewBuilder()
	s, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "other"}}, series.Gauge, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range id.Count() {
		_ = b.Append(s, int64(i+1), 7)
	}
	batch, err := b.Build(id.BootOf(), id.SeqStart)
	if err != nil {
		t.Fatal(err)
	}
	enc, err := frame.Encode(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	return enc
}

// TestStreamCut: the stream breaks after frames were accepted and before they were
// answered, over and over; the same bytes come again and nothing counts twice.
func TestStreamCut(t *testing.T) {
	f := newFixture(t)
	es := f.append(40)
	var mu sync.Mutex
	n := 0
	f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		mu.Lock()
		defer mu.Unlock()
		n++
		r := f.store.Accept(b)
		if n%7 == 0 {
			return status.Error(codes.Unavailable, "cut")
		}
		reply(r)
		return nil
	}})
	f.run()
	f.drained()
	f.checkAccepted(es)
	if f.answers("identity_conflict") != 0 {
		t.Error("a repeat was seen as a conflict")
	}
	if f.answers("duplicate") == 0 {
		t.Error("no answer was lost: the script is wrong")
	}
}

// TestStalledStream: a collector that takes frames and never answers is left for another.
func TestStalledStream(t *testing.T) {
	f := newFixture(t)
	f.cfg.AnswerTimeout = 50 * time.Millisecond
	es := f.append(5)
	f.collector(&sendtest.Collector{OnFrame: func([]byte, func(*ingestv1.BatchResult)) error { return nil }})
	f.collector(&sendtest.Collector{})
	f.beginAtFirst()
	f.run()
	f.drained()
	f.checkAccepted(es)
}

// TestSilentCollector: a welcome that does not come is a failure, too.
func TestSilentCollector(t *testing.T) {
	f := newFixture(t)
	f.cfg.ConnectTimeout = 50 * time.Millisecond
	es := f.append(5)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	f.collector(&sendtest.Collector{OnHello: func(*ingestv1.Hello) (*ingestv1.Welcome, error) {
		<-release
		return nil, errors.New("too late")
	}})
	f.collector(&sendtest.Collector{})
	f.beginAtFirst()
	f.run()
	f.drained()
	f.checkAccepted(es)
}

// TestFailover stops the collector in use while batches come, and later the other one.
func TestFailover(t *testing.T) {
	f := newFixture(t)
	var both []*sendtest.Collector
	both = append(both, f.collector(&sendtest.Collector{}), f.collector(&sendtest.Collector{}))
	f.run()
	es := f.append(10)
	f.drained()
	inUse := func() int {
		return slices.IndexFunc(f.sender.Status().Collectors, func(c send.CollectorStatus) bool { return c.Connected })
	}
	first := inUse()
	if first < 0 {
		t.Fatalf("nothing is connected: %+v", f.sender.Status())
	}
	both[first].Stop()
	es = append(es, f.append(10)...)
	f.drained()
	if got := inUse(); got != 1-first {
		t.Fatalf("collector %d is in use, want %d", got, 1-first)
	}
	both[1-first].Stop()
	es = append(es, f.append(10)...) // both are down
	again := &sendtest.Collector{Store: f.store}
	if _, err := again.Start(f.cfg.Collectors[first]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Stop)
	f.drained()
	f.checkAccepted(es)
	if testutil.CollectAndCount(f.reg, "lightmetrics_agent_stream_errors_total") != 2 {
		t.Error("no stream errors by collector")
	}
}

// TestStoreDown: every answer is RETRY until the store is back; nothing is lost, few are asked
// meanwhile, and the backlog goes in order.
func TestStoreDown(t *testing.T) {
	f := newFixture(t)
	es := f.append(100)
	var mu sync.Mutex
	asked, up := 0, false
	f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		mu.Lock()
		defer mu.Unlock()
		if asked++; !up && asked < 60 {
			reply(sendtest.Answer(b, retry, "STORE_UNAVAILABLE"))
			return nil
		}
		up = true
		reply(f.store.Accept(b))
		return nil
	}})
	f.run()
	f.drained()
	f.checkAccepted(es)
	got, _ := f.store.Accepted()
	// The batch that found the store up may be any of those that were asked about meanwhile.
	late := 0
	for i := 1; i < len(got); i++ {
		if got[i].SeqStart < got[i-1].SeqStart {
			late++
		}
	}
	if late > 1 {
		t.Errorf("the backlog was drained out of order at %d places", late)
	}
	if st := f.sender.Status(); st.Retrying || st.LastRetryReason != "" {
		t.Errorf("status still says retrying: %+v", st)
	}
}

// TestStuckBatch: one batch that is always answered RETRY does not hold up the others.
func TestStuckBatch(t *testing.T) {
	f := newFixture(t)
	es := f.append(40)
	f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		if info, _ := frame.Inspect(b, frame.Limits{}); info.Identity == es[0].Identity {
			reply(sendtest.Answer(b, retry, "CORRUPT_MANIFEST"))
			return nil
		}
		reply(f.store.Accept(b))
		return nil
	}})
	f.run()
	f.until("all but one", func() bool { return f.queue.Stats().Pending == 1 })
	if got := f.queue.Pending(0, 2); got[0] != es[0] {
		t.Fatalf("pending %v", got)
	}
	f.checkAccepted(es[1:])
}

// TestWindow: no more batches and bytes are in flight than the collector allows.
func TestWindow(t *testing.T) {
	f := newFixture(t)
	es := f.append(30)
	var mu sync.Mutex
	inFlight, top := 0, 0
	f.collector(&sendtest.Collector{
		OnHello: func(*ingestv1.Hello) (*ingestv1.Welcome, error) {
			return &ingestv1.Welcome{MaxInFlightBatches: 3, MaxInFlightBytes: 1 << 20}, nil
		},
		OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
			mu.Lock()
			inFlight++
			top = max(top, inFlight)
			if inFlight < 3 && len(f.queue.Pending(0, 3)) == 3 {
				mu.Unlock()
				return nil // answered with the third
			}
			inFlight = 0
			mu.Unlock()
			for _, e := range f.queue.Pending(0, 3) {
				if fb, err := f.queue.Frame(e.No); err == nil {
					reply(f.store.Accept(fb))
				}
			}
			return nil
		}})
	f.run()
	f.drained()
	f.checkAccepted(es)
	if top > 3 {
		t.Errorf("%d batches were in flight, the collector allows 3", top)
	}
}

// TestBootClash: what the clashed boot has is parked, new batches get a new boot.
func TestBootClash(t *testing.T) {
	for _, where := range []string{"answer", "hello"} {
		t.Run(where, func(t *testing.T) {
			f := newFixture(t)
			clashed, spool, _ := f.queue.Boot()
			c := &sendtest.Collector{}
			if where == "answer" {
				c.OnFrame = func(b []byte, reply func(*ingestv1.BatchResult)) error {
					if info, _ := frame.Inspect(b, frame.Limits{}); info.Identity.Boot == clashed.Boot {
						reply(sendtest.Answer(b, rejected, "BOOT_ID_CLASH"))
					} else {
						reply(f.store.Accept(b))
					}
					return nil
				}
			} else {
				c.OnHello = func(h *ingestv1.Hello) (*ingestv1.Welcome, error) {
					if h.GetBootId() == clashed.Boot {
						return nil, clashError()
					}
					return &ingestv1.Welcome{}, nil
				}
			}
			f.collector(c)
			f.append(100)
			f.run()
			f.until("all parked", func() bool { return f.queue.Stats().Parked == 100 })
			boot, s, next := f.queue.Boot()
			if boot.Boot == clashed.Boot || s != spool || next != 1 {
				t.Fatalf("boot %v spool %s next %d", boot, s, next)
			}
			for _, a := range f.queue.HeldBatches(queue.Parked) {
				if a.Reason != "BOOT_ID_CLASH" {
					t.Fatalf("parked for %s", a.Reason)
				}
			}
			es := f.append(5)
			f.drained()
			f.checkAccepted(es)
		})
	}
}

// TestForeignRecords: collectors have numbers that this queue never gave out, so another
// one uses its boot id; new batches get a new boot, old ones are still sent as they are.
func TestForeignRecords(t *testing.T) {
	for name, foreign := range map[string]bool{"taken": true, "nothing that is known": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			es := f.append(3)
			old, _, next := f.queue.Boot()
			f.collector(&sendtest.Collector{OnHello: func(h *ingestv1.Hello) (*ingestv1.Welcome, error) {
				return &ingestv1.Welcome{NumbersTaken: foreign && h.GetBootId() == old.Boot && h.GetNextSeq() == next}, nil
			}})
			f.run()
			f.drained()
			f.checkAccepted(es)
			if b, _, _ := f.queue.Boot(); (b != old) != foreign {
				t.Errorf("a new boot was started: %v, want %v", b != old, foreign)
			}
			es = append(es, f.append(3)...)
			f.drained()
			f.checkAccepted(es)
		})
	}
}

// TestTooLargeForCollector: a frame that would end the stream each time is set aside.
func TestTooLargeForCollector(t *testing.T) {
	f := newFixture(t)
	f.append(1)
	f.collector(&sendtest.Collector{OnHello: func(*ingestv1.Hello) (*ingestv1.Welcome, error) {
		return &ingestv1.Welcome{MaxFrameBytes: 10}, nil
	}})
	f.run()
	f.until("dead letter", func() bool { return f.queue.Stats().Dead == 1 })
	if a := f.queue.HeldBatches(queue.Dead)[0]; a.Reason != "FRAME_TOO_LARGE" {
		t.Errorf("reason %q", a.Reason)
	}
}

// TestDamagedOnDisk: bytes that are not what was queued are never sent.
func TestDamagedOnDisk(t *testing.T) {
	f := newFixture(t)
	es := f.append(3)
	path := filepath.Join(f.dir, "00000000000000000001.lmq")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, f.frames[es[1].Identity])
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte{b[at+50] ^ 1}, int64(at+50)); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	f.collector(&sendtest.Collector{})
	f.run()
	f.drained()
	f.checkAccepted([]queue.Entry{es[0], es[2]})
}

// TestRefusalsAreReported: whoever flushes has heard of every batch that was not accepted,
// with its reason, before the flush ends.
func TestRefusalsAreReported(t *testing.T) {
	f := newFixture(t)
	es := f.append(4)
	path := filepath.Join(f.dir, "00000000000000000001.lmq")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, f.frames[es[2].Identity])+50] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil { // the same file: it is open in the queue
		t.Fatal(err)
	}
	f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		switch info, _ := frame.Inspect(b, frame.Limits{}); info.Identity {
		case es[3].Identity: // nothing follows the report of the last one
			reply(sendtest.Answer(b, rejected, "BAD_LABELS"))
		case es[1].Identity:
			reply(sendtest.Answer(b, ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT, ""))
		default:
			reply(f.store.Accept(b))
		}
		return nil
	}})
	var mu sync.Mutex
	got := map[identity.Batch]string{}
	f.onAside = func(s queue.State, a queue.HeldBatch) {
		time.Sleep(20 * time.Millisecond) // a slow listener: the flush waits for it
		mu.Lock()
		defer mu.Unlock()
		got[a.Identity()] = fmt.Sprint(s, " ", a.Reason, " ", a.ID != "")
	}
	f.run()
	f.drained()
	mu.Lock()
	defer mu.Unlock()
	for i, want := range map[int]string{3: "dead BAD_LABELS true", 1: "parked IDENTITY_CONFLICT true", 2: "dropped DAMAGED_ON_DISK false"} {
		if got[es[i].Identity] != want {
			t.Errorf("batch %d: %q, want %q", i, got[es[i].Identity], want)
		}
	}
	if len(got) != 3 {
		t.Errorf("%d reports: %v", len(got), got)
	}
	f.checkAccepted(es[:1])
}

// TestFlushIsBounded: a flush waits for the entries that it is asked for, and for nothing later.
func TestFlushIsBounded(t *testing.T) {
	f := newFixture(t)
	first := f.append(1)
	hold := make(chan struct{})
	f.collector(&sendtest.Collector{OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		if info, _ := frame.Inspect(b, frame.Limits{}); info.Identity == first[0].Identity {
			go func() { <-hold; reply(f.store.Accept(b)) }()
		}
		return nil // later ones are never answered
	}})
	f.run()
	later := f.append(1)
	ctx, cancel := context.WithTimeout(f.ctx, 20*time.Millisecond)
	defer cancel()
	if err := f.sender.Flush(ctx, first[0].No); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("flushed before the answer: %v", err)
	}
	close(hold)
	if err := f.sender.Flush(f.ctx, later[0].No-1); err != nil {
		t.Fatal(err)
	}
	if n := f.queue.Stats().Pending; n != 1 {
		t.Errorf("%d batches are pending", n)
	}
}

// TestRandomFaults mixes everything over two collectors that share a store.
func TestRandomFaults(t *testing.T) {
	f := newFixture(t)
	f.cfg.AnswerTimeout = 100 * time.Millisecond
	f.cfg.BackoffMax = 5 * time.Millisecond
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 2))
	script := func(b []byte, reply func(*ingestv1.BatchResult)) error {
		mu.Lock()
		defer mu.Unlock()
		switch rng.IntN(12) {
		case 0:
			return status.Error(codes.Unavailable, "cut before")
		case 1:
			f.store.Accept(b)
			return fmt.Errorf("cut after")
		case 2:
			reply(sendtest.Answer(b, retry, "OVERLOADED"))
		case 3:
			if rng.IntN(4) == 0 {
				return nil // never answered
			}
			fallthrough
		default:
			reply(f.store.Accept(b))
		}
		return nil
	}
	f.collector(&sendtest.Collector{OnFrame: script})
	f.collector(&sendtest.Collector{OnFrame: script})
	f.run()
	var es []queue.Entry
	for range 10 {
		es = append(es, f.append(20)...)
	}
	f.drained()
	f.checkAccepted(es)
	if n := f.answers("identity_conflict") + f.answers("rejected"); n != 0 {
		t.Errorf("%v conflicts or rejects", n)
	}
}
