package send

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// settledStore is a collector with its bucket, called without a network: what it has accepted and recorded outlives the agent.
type settledStore struct {
	action   ingestv1.ResolutionAction
	settled  map[identity.Digest]bool
	accepted map[identity.Batch][]byte
	// lost are the identities that other frames have.
	lost map[identity.Batch]bool
	// told is called before something is recorded: an agent sends its queue meanwhile.
	told func()
	// fails are the frames about which the call fails, and how often it was made.
	fails map[identity.Digest]error
	calls int
}

func (c *settledStore) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	c.calls++
	req, out := args.(*ingestv1.SettleConflictsRequest), reply.(*ingestv1.SettleConflictsResponse)
	for _, p := range req.GetParked() {
		d, err := identity.DigestFromBytes(p.GetFrameSha256())
		if err == nil {
			err = c.fails[d]
		}
		if err != nil {
			return err
		}
		s := &ingestv1.ConflictSettlement{FrameSha256: p.GetFrameSha256(), Action: c.action, Resolution: 7}
		if p.GetResolution() == 7 {
			if c.told != nil {
				c.told()
			}
			c.settled[d], s.Settled = true, true
		}
		out.Settlements = append(out.Settlements, s)
	}
	return nil
}

func (c *settledStore) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

// drain accepts what is pending, as collectors do: once for each identity. A loss of power may have made a parked batch
// pending again, which loses once more.
func (c *settledStore) drain(q *queue.Queue) error {
	for _, e := range q.Pending(0, 100) {
		if c.lost[e.Identity] {
			if _, err := q.Park(e.No, queue.HoldReason{Reason: reasonConflict}); err != nil {
				return err
			}
			continue
		}
		b, err := q.Frame(e.No)
		if err != nil {
			return err
		}
		if was, ok := c.accepted[e.Identity]; ok && !bytes.Equal(was, b) {
			return fmt.Errorf("%s is sent with two frames", e.Identity)
		}
		c.accepted[e.Identity] = b
		if err := q.Ack(e.No); err != nil {
			return err
		}
	}
	return nil
}

func openQueue(fs vfs.FS) (*queue.Queue, error) {
	return queue.Open(fs, "/q", queue.Options{Agent: "a1", MaxBytes: 64 << 20, SegmentBytes: 1 << 20, Policy: queue.RefuseNew, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
}

func newSettler(t *testing.T, q *queue.Queue) *Sender {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Collectors = []string{"127.0.0.1:1"} // never dialled
	s, err := New(cfg, q, Deps{Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// parkFrames queues and parks n frames, of which the i-th has i+1 records.
func parkFrames(t *testing.T, q *queue.Queue, n int) map[identity.Digest]queue.HeldBatch {
	t.Helper()
	out := map[identity.Digest]queue.HeldBatch{}
	for i := range n {
		es, err := q.Append(queue.Part{Records: uint64(i + 1), Encode: func(id identity.Batch) ([]byte, error) {
			b := frame.NewBuilder()
			s, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "m"}}, series.Gauge, "", 0)
			for k := range i + 1 {
				err = errors.Join(err, b.Append(s, int64(k+1), float64(i)))
			}
			if err != nil {
				return nil, err
			}
			batch, err := b.Build(id.BootOf(), id.SeqStart)
			if err != nil {
				return nil, err
			}
			return frame.Encode(nil, batch)
		}})
		if err != nil {
			t.Fatal(err)
		}
		h, err := q.Park(es[0].No, queue.HoldReason{Reason: reasonConflict})
		if err != nil {
			t.Fatal(err)
		}
		out[h.FrameSHA256] = h
	}
	return out
}

// settlePoints are the moments of settling at which a process may end.
func settlePoints() []string {
	points := []string{"agent.queue.append.written", "agent.queue.append.synced"}
	for _, p := range failpoint.Points() {
		if p.Test == "agent/send" {
			points = append(points, p.Name)
		}
	}
	return points
}

// dies runs f up to the nth hit of a point, at which the process ends; false when f came to its own end.
func dies(t *testing.T, point string, nth int, f func()) (died bool) {
	t.Helper()
	if err := failpoint.Arm(fmt.Sprintf("%s=%s@%d", point, failpoint.Panic, nth)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = failpoint.Arm("") }()
	defer func() {
		if r := recover(); r != nil && r != "failpoint "+point {
			panic(r)
		} else if r != nil {
			died = true
		}
	}()
	f()
	return false
}

// TestCrashAtEveryStepOfSettling ends the agent at each step of settling parked frames, by a kill and by losses of power, and
// then once more at each step. Whatever was done: no frame is dropped before its settlement is recorded, and in the end the
// records of each frame are accepted exactly once, under their new numbers, or never, as was decided.
func TestCrashAtEveryStepOfSettling(t *testing.T) {
	const frames = 2
	states, reached := 0, map[string]bool{}
	for _, action := range []ingestv1.ResolutionAction{ingestv1.ResolutionAction_RESOLUTION_ACTION_ACCEPT_EXISTING, ingestv1.ResolutionAction_RESOLUTION_ACTION_KEEP_BOTH} {
		for _, sends := range []bool{false, true} {
			for _, point := range settlePoints() {
				for nth := 1; nth <= frames; nth++ {
					f := crashfs.New()
					q, err := openQueue(f)
					if err != nil {
						t.Fatal(err)
					}
					parked := parkFrames(t, q, frames)
					raw, lost := map[identity.Digest][]byte{}, map[identity.Batch]bool{}
					for d, h := range parked {
						lost[h.Identity()] = true
						if raw[d], err = q.HeldFrame(queue.Parked, h.ID); err != nil {
							t.Fatal(err)
						}
					}
					c := &settledStore{action: action, settled: map[identity.Digest]bool{}, accepted: map[identity.Batch][]byte{}, lost: lost}
					s := newSettler(t, q)
					c.told = func() {
						if sends && c.drain(q) != nil {
							t.Error("the queue can't be sent")
						}
					}
					if !dies(t, point, nth, func() { s.settleParked(t.Context(), c) }) {
						continue
					}
					reached[fmt.Sprint(action, " ", point)] = true
					for how, disk := range disksAfter(f) {
						states++
						name := fmt.Sprintf("%s at hit %d of %s, sends %v, %s", action, nth, point, sends, how)
						after := &settledStore{action: action, settled: maps.Clone(c.settled), accepted: maps.Clone(c.accepted), lost: lost}
						if err := goOn(t, disk, after, raw); err != nil {
							t.Errorf("%s: %v", name, err)
						}
					}
				}
			}
		}
	}
	for _, point := range settlePoints() {
		keeps := strings.Contains(point, "append") || strings.HasSuffix(point, ".queued")
		for action, want := range map[ingestv1.ResolutionAction]bool{1: !keeps, 2: true} {
			if got := reached[fmt.Sprint(action, " ", point)]; got != want {
				t.Errorf("%s of %s: reached %v, want %v", point, action, got, want)
			}
		}
	}
	t.Logf("%d states", states)
}

// goOn is the next life of the agent. It fails where a frame was lost or doubled.
func goOn(t *testing.T, disk *crashfs.FS, c *settledStore, raw map[identity.Digest][]byte) error {
	q, err := openQueue(disk)
	if err != nil {
		return err
	}
	defer q.Close()
	there := map[identity.Digest]bool{}
	for _, h := range q.HeldBatches(queue.Parked) {
		there[h.FrameSHA256] = true
	}
	for d := range raw {
		if !there[d] && !c.settled[d] {
			return fmt.Errorf("the frame %s is dropped, and nothing of that is recorded", d)
		}
	}
	s := newSettler(t, q)
	for range 2 { // what is pending again is parked again by the first
		s.settleParked(t.Context(), c)
		if err := c.drain(q); err != nil {
			return err
		}
	}
	s.settleParked(t.Context(), c)
	if left, pending := q.HeldBatches(queue.Parked), q.Pending(0, 100); len(left)+len(pending) != 0 {
		return fmt.Errorf("parked are still %v, pending %v", left, pending)
	}
	want := map[identity.Batch]bool{}
	for d, b := range raw {
		if !c.settled[d] {
			return fmt.Errorf("the settlement of %s is not recorded", d)
		}
		if c.action != ingestv1.ResolutionAction_RESOLUTION_ACTION_KEEP_BOTH {
			continue
		}
		id, renumbered, err := resolution.Renumber(b)
		if err != nil {
			return err
		}
		want[id] = true
		if !bytes.Equal(c.accepted[id], renumbered) {
			return fmt.Errorf("the records of %s are not accepted as %s", d, id)
		}
	}
	if len(c.accepted) != len(want) {
		return fmt.Errorf("accepted are %v, want %v", slices.Collect(maps.Keys(c.accepted)), slices.Collect(maps.Keys(want)))
	}
	return nil
}

// disksAfter are what a killed process leaves, and what some losses of power leave.
func disksAfter(f *crashfs.FS) map[string]*crashfs.FS {
	w := f.Walk()
	for w.Step() {
	}
	out := map[string]*crashfs.FS{"killed": w.Kill()}
	for seed := range uint64(3) {
		for _, m := range []crashfs.Model{crashfs.Dropped, crashfs.Ordered, crashfs.Strict} {
			out[fmt.Sprintf("%s, seed %d", m, seed)] = w.Crash(m, seed)
		}
	}
	return out
}

// A failure about some parked batches leaves the others to be settled: those of another agent id, which the queue has
// had before, and those of the next question.
func TestAFailureLeavesTheOthersToBeSettled(t *testing.T) {
	for code, want := range map[codes.Code]int{codes.InvalidArgument: 1, codes.Unavailable: 1, codes.Unimplemented: 3} {
		q, err := openQueue(crashfs.New())
		if err != nil {
			t.Fatal(err)
		}
		c := &settledStore{action: ingestv1.ResolutionAction_RESOLUTION_ACTION_ACCEPT_EXISTING, settled: map[identity.Digest]bool{}, fails: map[identity.Digest]error{}}
		for d, h := range parkFrames(t, q, 3) {
			// A release that does not know the call knows it for no batch.
			if h.SeqStart == 1 || code == codes.Unimplemented {
				c.fails[d] = status.Error(code, "no")
			}
		}
		s := newSettler(t, q)
		s.settleAtOnce = 1
		s.settleParked(t.Context(), c)
		if left := q.HeldBatches(queue.Parked); len(left) != want || code == codes.Unimplemented && c.calls != 1 {
			t.Errorf("%s: %d are left, want %d; %d calls", code, len(left), want, c.calls)
		}
	}
}

// A quarantined sender asks again when the collector said, for as long as it is refused, so that it learns of its release in a
// bounded time; collectors that fail are left alone for longer each time.
func TestAQuarantinedSenderAsksInTime(t *testing.T) {
	q, err := openQueue(crashfs.New())
	if err != nil {
		t.Fatal(err)
	}
	s := newSettler(t, q)
	now := time.Unix(1_000_000, 0)
	s.now = func() time.Time { return now }
	refused := rpc.Failure{Code: codes.Unavailable, Reason: reasonQuarantined, Message: "x", RetryAfter: 5 * time.Second}.Err()
	down := rpc.Failure{Code: codes.Unavailable, Reason: "STORE_UNAVAILABLE", Message: "x", RetryAfter: time.Second}.Err()
	boot, _, _ := q.Boot()
	longest := time.Duration(0)
	for range 50 {
		s.hold(boot, rpc.RetryAfter(refused))
		d := s.backOff(s.preferred.first(), fmt.Errorf("open stream: %w", refused))
		if d != 5*time.Second {
			t.Fatalf("asks again after %s", d)
		}
		if at := s.nextWake(now); at.Sub(now) != 5*time.Second {
			t.Fatalf("a session of another boot wakes in %s", at.Sub(now))
		}
		now = now.Add(d)
		if at := s.nextWake(now); !at.IsZero() || now.Before(s.holding[boot]) {
			t.Fatalf("it may ask, and waits until %s", at)
		}
	}
	for range 50 {
		longest = max(longest, s.backOff(s.preferred.first(), down))
	}
	if longest < 10*time.Second {
		t.Errorf("a collector that fails is left alone for %s", longest)
	}
	// What a collector asks for is bounded by this agent's settings.
	if d := s.backOff(s.preferred.first(), rpc.Failure{Code: codes.Unavailable, Reason: reasonQuarantined, RetryAfter: time.Hour}.Err()); d > s.cfg.BackoffMax {
		t.Errorf("asks again after %s", d)
	}
}
