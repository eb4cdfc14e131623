package send_test

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

const (
	acceptExisting = ingestv1.ResolutionAction_RESOLUTION_ACTION_ACCEPT_EXISTING
	keepBoth       = ingestv1.ResolutionAction_RESOLUTION_ACTION_KEEP_BOTH
)

// decided answers every question with one decision, and records nothing while mute.
type decided struct {
	action ingestv1.ResolutionAction
	mute   atomic.Bool
	asked  atomic.Int64
	told   atomic.Int64
}

func (d *decided) settle(req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
	d.asked.Add(1)
	out := &ingestv1.SettleConflictsResponse{}
	for _, p := range req.GetParked() {
		s := &ingestv1.ConflictSettlement{FrameSha256: p.GetFrameSha256(), Action: d.action}
		if d.action != 0 {
			s.Resolution = 7
		}
		if p.GetResolution() == 7 && d.action != 0 {
			d.told.Add(1)
			s.Settled = !d.mute.Load()
		}
		out.Settlements = append(out.Settlements, s)
	}
	return out, nil
}

// park has n batches parked, which the fixture's store has other frames of.
func (f *fixture) park(n int) []queue.HeldBatch {
	f.t.Helper()
	for _, e := range f.append(n) {
		if _, err := f.queue.Park(e.No, queue.HoldReason{Reason: "IDENTITY_CONFLICT"}); err != nil {
			f.t.Fatal(err)
		}
	}
	return f.queue.HeldBatches(queue.Parked)
}

// eventually waits until ok, which no change of what is pending announces.
func (f *fixture) eventually(what string, ok func() bool) {
	f.t.Helper()
	for !ok() {
		select {
		case <-time.After(time.Millisecond):
		case <-f.ctx.Done():
			f.t.Fatalf("%s: %v", what, f.ctx.Err())
		}
	}
}

func (f *fixture) parked() int { return len(f.queue.HeldBatches(queue.Parked)) }

func TestAcceptExistingDropsTheParkedFrame(t *testing.T) {
	for name, action := range map[string]ingestv1.ResolutionAction{"decided": acceptExisting, "undecided": 0, "unknown to this release": 99} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.cfg.SettleInterval = time.Millisecond
			d := &decided{action: action}
			f.collector(&sendtest.Collector{OnSettle: d.settle})
			f.park(3)
			f.run()
			if action == acceptExisting {
				f.eventually("nothing is parked", func() bool { return f.parked() == 0 })
			}
			f.eventually("it is asked again", func() bool { return action == acceptExisting || d.asked.Load() > 3 })
			f.append(1)
			f.drained()
			if got, _ := f.store.Accepted(); len(got) != 1 || action != acceptExisting && f.parked() != 3 {
				t.Errorf("accepted %v, %d parked", got, f.parked())
			}
		})
	}
}

// The records of the parked frame are accepted under their new identity, once, with the collector told before the
// frame is removed.
func TestKeepBoth(t *testing.T) {
	f := newFixture(t)
	f.cfg.SettleInterval = time.Millisecond
	d := &decided{action: keepBoth}
	d.mute.Store(true)
	f.collector(&sendtest.Collector{OnSettle: d.settle})
	held := f.park(1)[0]
	raw, err := f.queue.HeldFrame(queue.Parked, held.ID)
	if err != nil {
		t.Fatal(err)
	}
	stop := f.run()
	f.eventually("the collector is told again and again", func() bool { return d.told.Load() > 3 })
	f.drained()
	if n := f.metric("lightmetrics_agent_sent_batches_total", ""); n != 1 {
		t.Errorf("the records were sent %v times while the collector recorded nothing", n)
	}
	stop()
	// A crash before the answer: everything is done again, by another process with the same queue.
	if err := f.queue.Close(); err != nil {
		t.Fatal(err)
	}
	f.open()
	f.reg = prometheus.NewRegistry()
	d.mute.Store(false)
	f.run()
	f.eventually("nothing is parked", func() bool { return f.parked() == 0 })
	f.drained()
	got, _ := f.store.Accepted()
	if len(got) != 1 || got[0].BootOf() != resolution.Kept(held.AgentID, held.FrameSHA256) || got[0].SeqEnd != 2 {
		t.Fatalf("accepted %v", got)
	}
	var was, is frame.Batch
	if err := errors.Join(frame.Decode(raw, &was, frame.Limits{}), frame.Decode(f.store.Frame(got[0]), &is, frame.Limits{})); err != nil {
		t.Fatal(err)
	}
	if c := resolution.Compare(&was, &is, 1); c.Same != 2 || c.Different+c.OnlyAccepted+c.OnlySubmitted != 0 {
		t.Errorf("%+v", c)
	}
	if b, _, _ := f.queue.Boot(); b == got[0].BootOf() || !bytes.Equal(f.frames[held.Identity()], raw) {
		t.Error("the queue gives out numbers of that boot")
	}
}

func TestACollectorThatRecordsNothing(t *testing.T) {
	f := newFixture(t)
	f.cfg.SettleInterval = time.Millisecond
	d := &decided{action: acceptExisting}
	d.mute.Store(true)
	f.collector(&sendtest.Collector{OnSettle: d.settle})
	f.park(1)
	f.run()
	f.eventually("the collector is told again and again", func() bool { return d.told.Load() > 3 })
	if f.parked() != 1 {
		t.Error("the parked frame is gone")
	}
}

func TestAnswersAboutOthers(t *testing.T) {
	f := newFixture(t)
	f.cfg.SettleInterval = time.Millisecond
	d := &decided{action: acceptExisting}
	other := identity.Sum([]byte("another"))
	f.collector(&sendtest.Collector{OnSettle: func(req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
		out, err := d.settle(req)
		for _, s := range out.GetSettlements() {
			s.FrameSha256, s.Settled = other[:], true
		}
		return out, err
	}})
	f.park(1)
	f.run()
	f.eventually("it is asked again", func() bool { return d.asked.Load() > 3 })
	if f.parked() != 1 {
		t.Error("the parked frame is gone")
	}
}

// A collector of a former release does not know the call: the agent goes on.
func TestAFormerCollector(t *testing.T) {
	f := newFixture(t)
	f.cfg.SettleInterval = time.Millisecond
	f.collector(&sendtest.Collector{})
	f.park(1)
	f.append(3)
	f.run()
	f.drained()
	if f.parked() != 1 {
		t.Error("the parked frame is gone")
	}
}

// While one boot is in quarantine its batches wait, those of others are sent, and decisions reach the agent.
func TestQuarantinedBootWaits(t *testing.T) {
	f := newFixture(t)
	d := &decided{action: acceptExisting}
	var released atomic.Bool
	held := f.append(2)
	bad := held[0].Identity.Boot
	f.collector(&sendtest.Collector{OnSettle: d.settle, OnHello: func(h *ingestv1.Hello) (*ingestv1.Welcome, error) {
		if h.GetBootId() == bad && !released.Load() {
			return nil, rpc.Failure{Code: codes.Unavailable, Reason: "SENDER_QUARANTINED", Message: "x", RetryAfter: 50 * time.Millisecond}.Err()
		}
		return &ingestv1.Welcome{}, nil
	}})
	f.park(1)
	f.run()
	f.eventually("the decision reaches a quarantined agent", func() bool { return f.parked() == 0 })
	if err := f.queue.NewBoot("test"); err != nil {
		t.Fatal(err)
	}
	f.append(2)
	if _, err := f.store.Wait(f.ctx, 2); err != nil {
		t.Fatal("batches of another boot are held up")
	}
	if got, _ := f.store.Accepted(); len(got) != 2 || got[0].Boot == bad || got[1].Boot == bad {
		t.Errorf("accepted %v", got)
	}
	released.Store(true)
	f.drained()
	if got, _ := f.store.Accepted(); len(got) != 4 || f.queue.Stats().Dead != 0 {
		t.Errorf("accepted %v", got)
	}
}

// An agent that has nothing else to send ends its stream for one of the kept boot. What it has queued is told to the
// collector all the same, and all others are queued, or each would take a SettleInterval, and be sent again.
func TestKeepBothIsToldBeforeTheStreamIsLeft(t *testing.T) {
	f := newFixture(t)
	f.cfg.SettleInterval = time.Hour // once is enough
	d := &decided{action: keepBoth}
	f.collector(&sendtest.Collector{OnSettle: func(req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
		if req.GetParked()[0].GetResolution() != 0 {
			time.Sleep(20 * time.Millisecond) // the collector creates a record of each
		}
		return d.settle(req)
	}})
	f.park(3)
	f.run()
	f.eventually("nothing is parked", func() bool { return f.parked() == 0 })
	f.drained()
	if got, _ := f.store.Accepted(); len(got) != 3 || d.told.Load() != 3 {
		t.Errorf("accepted %v, told %d times", got, d.told.Load())
	}
}

// Collectors are told where the parked batches are.
func TestWhereaboutsAreTold(t *testing.T) {
	f := newFixture(t)
	f.at = send.Whereabouts{Host: "db-7", Page: "http://127.0.0.1:4320", Directory: "/q/parked"}
	var got atomic.Pointer[ingestv1.SettleConflictsRequest]
	f.collector(&sendtest.Collector{OnSettle: func(req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
		got.Store(req)
		return nil, errors.New("never mind")
	}})
	f.park(1)
	f.run()
	f.eventually("a collector is asked", func() bool { return got.Load() != nil })
	if r := got.Load(); r.GetHost() != f.at.Host || r.GetPage() != f.at.Page || r.GetDirectory() != f.at.Directory {
		t.Errorf("%v", r)
	}
}

// A frame that a collector asks for is sent to it, exactly and alone, and stays parked; one that can't be read, or is refused, is
// no reason to stop.
func TestWantedFramesAreSent(t *testing.T) {
	f := newFixture(t)
	f.cfg.SettleInterval = time.Millisecond
	got := make(chan *ingestv1.ParkedBatch, 100)
	var refused atomic.Int64
	f.collector(&sendtest.Collector{OnSettle: func(req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
		out := &ingestv1.SettleConflictsResponse{}
		for i, p := range req.GetParked() {
			out.Settlements = append(out.Settlements, &ingestv1.ConflictSettlement{FrameSha256: p.GetFrameSha256(), FrameWanted: i < 2})
			if len(p.GetFrame()) == 0 {
				continue
			}
			if len(req.GetParked()) != 1 {
				t.Errorf("a frame among %d", len(req.GetParked()))
			}
			if refused.Add(1) == 1 {
				return nil, rpc.Failure{Code: codes.Unavailable, Reason: "X", Message: "not now"}.Err()
			}
			select {
			case got <- p:
			default:
			}
		}
		return out, nil
	}})
	held := f.park(3)
	f.run()
	seen := map[string]bool{}
	for len(seen) < 2 {
		select {
		case p := <-got:
			i := slices.IndexFunc(held, func(b queue.HeldBatch) bool { return b.SeqStart == p.GetSeqStart() })
			raw, err := f.queue.HeldFrame(queue.Parked, held[i].ID)
			if err != nil || !bytes.Equal(raw, p.GetFrame()) || p.GetBootId() != held[i].BootID || p.GetResolution() != 0 || i == 2 {
				t.Errorf("batch %d: %d bytes, %v", i, len(p.GetFrame()), err)
			}
			seen[held[i].ID] = true
		case <-f.ctx.Done():
			t.Fatal("the frames are not sent")
		}
	}
	if f.parked() != 3 {
		t.Errorf("%d are parked", f.parked())
	}
}

// A batch that is decided about stays parked while the store has lost its frame and did not get it back: the agent has the last
// copy.
func TestAWantedFrameIsNotDropped(t *testing.T) {
	f := newFixture(t)
	f.cfg.SettleInterval = time.Millisecond
	var sent, told atomic.Int64
	var whole atomic.Bool
	f.collector(&sendtest.Collector{OnSettle: func(req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
		out := &ingestv1.SettleConflictsResponse{}
		for _, p := range req.GetParked() {
			if len(p.GetFrame()) > 0 && sent.Add(1) == 1 {
				return nil, rpc.Failure{Code: codes.Unavailable, Reason: "X", Message: "not now"}.Err()
			}
			if p.GetResolution() != 0 {
				told.Add(1)
				if !whole.Load() {
					t.Error("it is settled, and the store has no frame")
				}
			}
			out.Settlements = append(out.Settlements, &ingestv1.ConflictSettlement{FrameSha256: p.GetFrameSha256(), Resolution: 7, Action: acceptExisting,
				Settled: p.GetResolution() != 0, FrameWanted: len(p.GetFrame()) == 0 || !whole.Load()})
		}
		return out, nil
	}})
	f.park(1)
	f.run()
	f.eventually("the frame is sent some times", func() bool { return sent.Load() > 4 || f.parked() == 0 })
	if told.Load() != 0 || f.parked() != 1 {
		t.Fatalf("settled %d times, %d are parked", told.Load(), f.parked())
	}
	whole.Store(true)
	f.eventually("it is settled", func() bool { return f.parked() == 0 })
}
