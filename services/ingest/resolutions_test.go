package ingest_test

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

func often(c *ingest.Config) { c.ResolutionsInterval = 5 * time.Millisecond }

func hello(b identity.Boot) *ingestv1.Hello {
	return &ingestv1.Hello{AgentId: b.Agent, BootId: b.Boot, SpoolId: "spool-1"}
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// decide adds a decision to the log of the bucket, as a reconciler does.
func decide(t testing.TB, s objstore.Store, action resolution.Action, bootID string, cs ...resolution.Conflict) *resolution.Resolution {
	t.Helper()
	a, err := accept.ReadAuthority(bound(t), s)
	fatal(t, err)
	r, _, err := resolution.NewLog(s, nil).Decide(bound(t), resolution.Resolution{AuthorityID: a.AuthorityID, Action: action, AgentID: boot.Agent, BootID: bootID, Conflicts: cs,
		Principal: "ann", DecidedAt: 5, AttemptID: rand.Text()})
	fatal(t, err)
	return r
}

// A quarantined sender is refused with a reason to try again, on streams that are open and on new ones, until it is released.
func TestQuarantine(t *testing.T) {
	store := newStore()
	c := start(t, store, often)
	st, _ := c.mustOpen(t, boot, 0)
	seq := uint64(1)
	send := func() *ingestv1.BatchResult {
		t.Helper()
		f := encode(t, boot, seq, 3, 1)
		seq += 3
		return st.ask(f)
	}
	if r := send(); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Fatalf("before: %v", r)
	}
	for _, of := range []string{"", boot.Boot} {
		decide(t, store, resolution.Quarantine, of)
		eventually(t, "the stream is refused", func() bool { return send().GetReason() == ingest.ReasonSenderQuarantined })
		r := send()
		if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY || r.GetRetryDelay().AsDuration() < time.Second {
			t.Errorf("boot %q: %v", of, r)
		}
		if _, _, err := c.open(t, hello(boot)); status.Code(err) != codes.Unavailable || rpc.Reason(err) != ingest.ReasonSenderQuarantined {
			t.Errorf("boot %q: hello: %v", of, err)
		}
		if _, _, err := c.open(t, hello(identity.Boot{Agent: boot.Agent, Boot: "other"})); (err == nil) != (of != "") {
			t.Errorf("boot %q: hello of another boot: %v", of, err)
		}
		if _, _, err := c.open(t, hello(identity.Boot{Agent: "another", Boot: "b"})); err != nil {
			t.Errorf("another agent: %v", err)
		}
		decide(t, store, resolution.Release, of)
		eventually(t, "the stream goes on", func() bool { return send().GetStatus() == ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED })
	}
}

// A collector that starts takes nothing before it knows what is in quarantine.
func TestQuarantineOutlivesTheCollector(t *testing.T) {
	store := newStore()
	c := start(t, store, nil)
	decide(t, store, resolution.Quarantine, "")
	c.stop()
	again := start(t, store, nil)
	if _, _, err := again.open(t, hello(boot)); rpc.Reason(err) != ingest.ReasonSenderQuarantined {
		t.Errorf("after a restart: %v", err)
	}
}

// What was decided is told to who has the batch parked, and what it did is recorded once.
func TestSettleConflicts(t *testing.T) {
	store := newStore()
	c := start(t, store, often)
	lost := encode(t, boot, 1, 3, 7)
	sum := identity.Sum(lost)
	id := identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 1, SeqEnd: 3}
	parked := &ingestv1.ParkedBatch{BootId: boot.Boot, SeqStart: 1, SeqEnd: 3, FrameSha256: sum[:]}
	ask := func() *ingestv1.ConflictSettlement {
		t.Helper()
		out, err := c.client.SettleConflicts(bound(t), &ingestv1.SettleConflictsRequest{AgentId: boot.Agent, Parked: []*ingestv1.ParkedBatch{parked}})
		fatal(t, err)
		if len(out.GetSettlements()) != 1 {
			t.Fatalf("%v", out)
		}
		return out.GetSettlements()[0]
	}
	if s := ask(); s.GetResolution() != 0 || s.GetAction() != 0 || s.GetSettled() {
		t.Errorf("nothing is decided: %v", s)
	}
	parked.Resolution = 1
	if s := ask(); s.GetSettled() {
		t.Errorf("settled by what was never decided: %v", s)
	}
	parked.Resolution = 0
	d := decide(t, store, resolution.KeepBoth, "", resolution.Conflict{BootID: boot.Boot, SeqStart: 1, SeqEnd: 3, SubmittedSHA256: sum})
	eventually(t, "the decision is told", func() bool { return ask().GetResolution() == d.Number })
	if s := ask(); s.GetAction() != ingestv1.ResolutionAction_RESOLUTION_ACTION_KEEP_BOTH || s.GetSettled() || !slices.Equal(s.GetFrameSha256(), sum[:]) {
		t.Errorf("%v", s)
	}
	parked.Resolution, parked.KeptBootId, parked.KeptSeqEnd = d.Number, "elsewhere", 3
	_, err := c.client.SettleConflicts(bound(t), &ingestv1.SettleConflictsRequest{AgentId: boot.Agent, Parked: []*ingestv1.ParkedBatch{parked}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("another boot than the frame's: %v", err)
	}
	parked.KeptBootId = resolution.Kept(boot.Agent, sum).Boot
	for range 2 {
		if s := ask(); !s.GetSettled() {
			t.Errorf("%v", s)
		}
	}
	b, _, err := store.Get(bound(t), layout.Settled(id, sum), objstore.GetOptions{})
	fatal(t, err)
	if s, err := resolution.ParseSettled(layout.Settled(id, sum), b); err != nil || s.Number != d.Number || s.KeptSeqEnd != 3 || s.CollectorID == "" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := c.client.SettleConflicts(bound(t), &ingestv1.SettleConflictsRequest{AgentId: boot.Agent, Parked: make([]*ingestv1.ParkedBatch, resolution.MaxConflicts+1)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too many: %v", err)
	}
}

// slowCreates is a store that is far away.
type slowCreates struct{ objstore.Store }

func (s slowCreates) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if strings.HasPrefix(key, layout.SettledPrefix) {
		time.Sleep(20 * time.Millisecond)
	}
	return s.Store.Create(ctx, key, b, o)
}

// As many batches as one question may be about are settled within the time of a call, also where a request to the store
// takes long: what did not end in time would be asked again, and not end again.
func TestSettleConflictsFarFromTheStore(t *testing.T) {
	store := newStore()
	store.Store = slowCreates{store.Store}
	c := start(t, store, often)
	var cs []resolution.Conflict
	req := &ingestv1.SettleConflictsRequest{AgentId: boot.Agent}
	for i := range uint64(resolution.MaxConflicts) {
		sum := identity.Sum([]byte{byte(i), byte(i >> 8)})
		cs = append(cs, resolution.Conflict{BootID: boot.Boot, SeqStart: i, SeqEnd: i, SubmittedSHA256: sum})
		req.Parked = append(req.Parked, &ingestv1.ParkedBatch{BootId: boot.Boot, SeqStart: i, SeqEnd: i, FrameSha256: sum[:], Resolution: 1})
	}
	decide(t, store, resolution.AcceptExisting, "", cs...)
	eventually(t, "the decision is known", func() bool {
		out, err := c.client.SettleConflicts(bound(t), &ingestv1.SettleConflictsRequest{AgentId: boot.Agent, Parked: req.Parked[:1]})
		return err == nil && out.GetSettlements()[0].GetSettled()
	})
	began := time.Now()
	out, err := c.client.SettleConflicts(bound(t), req)
	fatal(t, err)
	for i, s := range out.GetSettlements() {
		if !s.GetSettled() || !slices.Equal(s.GetFrameSha256(), req.GetParked()[i].GetFrameSha256()) {
			t.Fatalf("%d: %v", i, s)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s", took) // one after the other, 10s
	}
}

// gets counts the reads of decisions.
type gets struct {
	objstore.Store
	n atomic.Int64
}

func (g *gets) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if strings.HasPrefix(key, layout.ResolutionLogPrefix) {
		g.n.Add(1)
	}
	return g.Store.Get(ctx, key, o)
}

// A sender learns of its release as soon as it asks again, and not with the collector's next look at the log. What quarantined
// senders ask costs one request in a while, however often they ask, and others cost none.
func TestAReleaseIsLearnedOfByTheNextHello(t *testing.T) {
	store := newStore()
	g := &gets{Store: store.Store}
	store.Store = g
	var clock atomic.Int64
	clock.Store(time.Now().UnixNano())
	first := start(t, store, nil) // so that the bucket has an authority
	first.stop()
	decide(t, store, resolution.Quarantine, "")
	c := launchAt(t, store, rpc.ClientConfig{}, telemetry.Discard(), func() time.Time { return time.Unix(0, clock.Load()) }, func(c *ingest.Config) { c.ResolutionsInterval = time.Hour })
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	refused := func() refusal {
		t.Helper()
		_, _, err := c.open(t, hello(boot))
		if err != nil && rpc.Reason(err) != ingest.ReasonSenderQuarantined {
			t.Fatal(err)
		}
		return refusal{err != nil, rpc.RetryAfter(err)}
	}
	before := g.n.Load()
	for range 20 {
		if r := refused(); !r.refused || r.after <= 0 || r.after > 10*time.Second {
			t.Fatalf("%+v", r)
		}
	}
	if n := g.n.Load() - before; n != 1 {
		t.Errorf("%d requests for 20 hellos", n)
	}
	decide(t, store, resolution.Release, "")
	before = g.n.Load()
	if r := refused(); !r.refused || g.n.Load() != before {
		t.Errorf("within the same time: %+v, %d requests", r, g.n.Load()-before)
	}
	clock.Add(int64(2 * time.Second))
	if r := refused(); r.refused {
		t.Error("it is released, and still refused")
	}
	before = g.n.Load()
	clock.Add(int64(time.Minute))
	if refused(); g.n.Load() != before {
		t.Error("a sender that is not in quarantine costs a request")
	}
}

// refusal is whether a hello was refused, and when it may be said again.
type refusal struct {
	refused bool
	after   time.Duration
}

// A parked frame that the store has lost is asked for, and put back where its bytes are the frame's; nothing else is written.
func TestParkedFramesArePutBack(t *testing.T) {
	store := newStore()
	c := start(t, store, often)
	st, _ := c.mustOpen(t, boot, 0)
	lost := encode(t, boot, 1, 3, 7)
	sum := identity.Sum(lost)
	for i, f := range [][]byte{encode(t, boot, 1, 3, 1), lost} {
		want := []ingestv1.BatchStatus{ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED, ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT}[i]
		if r := st.ask(f); r.GetStatus() != want {
			t.Fatalf("%v", r)
		}
	}
	id := identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 1, SeqEnd: 3}
	ask := func(frame []byte, more ...*ingestv1.ParkedBatch) (*ingestv1.ConflictSettlement, error) {
		t.Helper()
		parked := &ingestv1.ParkedBatch{BootId: boot.Boot, SeqStart: 1, SeqEnd: 3, FrameSha256: sum[:], Frame: frame}
		out, err := c.client.SettleConflicts(bound(t), &ingestv1.SettleConflictsRequest{AgentId: boot.Agent, Parked: append(more, parked)})
		if err != nil {
			return nil, err
		}
		return out.GetSettlements()[len(more)], nil
	}
	key := layout.Blob(sum, 0)
	fatal(t, store.Delete(bound(t), key))
	if s, err := ask(lost); err != nil || s.GetFrameWanted() {
		t.Errorf("nobody has found it missing: %v, %v", s, err)
	}
	if _, err := store.Head(bound(t), key); err == nil {
		t.Error("a frame that nobody wants was written")
	}
	_, err := store.Create(bound(t), layout.RepairQuarantine(id, sum), []byte("{}"), objstore.PutOptions{})
	fatal(t, err)
	if s, err := ask(nil); err != nil || !s.GetFrameWanted() {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := ask(encode(t, boot, 1, 3, 8)); err != nil || s.GetFrameWanted() {
		t.Errorf("other bytes: %v, %v", s, err)
	}
	if _, err := store.Head(bound(t), key); err == nil {
		t.Error("other bytes were written")
	}
	if _, err := ask(lost, &ingestv1.ParkedBatch{BootId: boot.Boot, SeqStart: 1, SeqEnd: 3, FrameSha256: sum[:]}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a frame among others: %v", err)
	}
	unknown := func([]byte) {}
	store.keep.Store(&unknown)
	if s, err := ask(lost); err != nil || !s.GetFrameWanted() {
		t.Errorf("the store does not take it, and its sender may drop it: %v, %v", s, err)
	}
	store.keep.Store(nil)
	if s, err := ask(lost); err != nil || s.GetFrameWanted() {
		t.Errorf("%v, %v", s, err)
	}
	if got, _, err := store.Get(bound(t), key, objstore.GetOptions{}); err != nil || !slices.Equal(got, lost) {
		t.Errorf("it is not put back: %v", err)
	}
}
