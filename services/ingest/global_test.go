package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// world is the linearizer of the regions eu and us, served as coordinators do, over claims in memory.
type world struct {
	t     *testing.T
	store *mem.Store
	// now serves the present epoch.
	now     atomic.Pointer[linearizer.Linearizer]
	address string
	// away: it refuses everything, as coordinators do without etcd. hangs: it answers nothing, as one behind a cut does.
	away, hangs atomic.Bool
	// denies: it refuses the collector's credentials.
	denies atomic.Bool
	// dissolved: it has ended.
	dissolved atomic.Bool
	spans     atomic.Pointer[[]claims.Span]
}

func (w *world) Do(ctx context.Context, ops []claims.Op) []linearizer.Result {
	if w.hangs.Load() {
		<-ctx.Done()
	}
	if w.hangs.Load() || w.away.Load() {
		out := make([]linearizer.Result, len(ops))
		for i := range out {
			out[i].Err = claims.ErrUnavailable
		}
		return out
	}
	if w.dissolved.Load() {
		out := make([]linearizer.Result, len(ops))
		for i := range out {
			out[i].Err = claims.ErrDissolved
		}
		return out
	}
	return w.now.Load().Do(ctx, ops)
}

func (w *world) Scan(ctx context.Context, s claims.Scan) (claims.Page, error) {
	if w.away.Load() {
		return claims.Page{}, claims.ErrUnavailable
	}
	if w.dissolved.Load() {
		return claims.Page{}, claims.ErrDissolved
	}
	return w.now.Load().Scan(ctx, s)
}

// worldFolds are the folds of a test.
type worldFolds struct {
	mem.NoFolds
	*world
}

func (f worldFolds) Spans(_ context.Context, id identity.Batch, _ claims.Folds) (out []claims.Span, _ error) {
	if spans := f.spans.Load(); spans != nil {
		for _, s := range *spans {
			if s.Start <= id.SeqEnd && id.SeqStart <= s.End {
				out = append(out, s)
			}
		}
	}
	return out, nil
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, store: mem.New()}
	w.moveTo(3, "eu", "us")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = l.Addr().String()
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if w.denies.Load() {
			region := "eu"
			return nil, rpc.Status(&rpc.DeniedError{Principal: "collector", Method: info.FullMethod, Roles: []rpc.Role{rpc.RoleWorker}, Region: &region})
		}
		return h(ctx, req)
	}))
	coordinator.NewIdentityServer(w, time.Now).Register(s)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return w
}

// moveTo begins an epoch.
func (w *world) moveTo(number uint64, regions ...claims.Region) {
	w.t.Helper()
	const keys = claims.Keys("/t/")
	epoch := claims.Epoch{Number: number, ID: claims.ID{byte(number)}, Regions: regions}
	if _, err := w.store.Commit(w.t.Context(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Epoch(), Value: epoch.Marshal()}}}}}); err != nil {
		w.t.Fatal(err)
	}
	l, err := linearizer.New(w.store, linearizer.Options{Config: claims.DefaultConfig(), Keys: keys, Epoch: epoch, Folds: worldFolds{mem.NoFolds{Epoch: epoch.Number}, w}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(l.Close)
	w.now.Store(l)
}

// start starts a collector of a region.
func (w *world) start(t *testing.T, store *faulty, region string, change func(*ingest.Config)) *collector {
	t.Helper()
	return w.startAt(t, store, region, nil, change)
}

// startAt is start, with a clock; nil is time.Now.
func (w *world) startAt(t *testing.T, store *faulty, region string, now func() time.Time, change func(*ingest.Config)) *collector {
	t.Helper()
	c := launchAt(t, store, rpc.ClientConfig{}, telemetry.Discard(), now, func(c *ingest.Config) {
		c.Acceptance, c.Region, c.Coordinator.Addresses, c.TakeOver = "global", region, []string{w.address}, time.Hour
		if change != nil {
			change(c)
		}
	})
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	return c
}

// claim claims an identity for a frame, as a collector of the region does first.
func (w *world) claim(t *testing.T, id identity.Batch, f []byte, region claims.Region) {
	t.Helper()
	r := w.Do(t.Context(), []claims.Op{{Kind: claims.DoClaim, Identity: id, Hash: identity.Sum(f), ID: claims.ID{77}, Region: region, Epoch: 3}})[0]
	if r.Err != nil || r.Answer.Outcome != claims.Held {
		t.Fatalf("%+v", r)
	}
}

// TestWelcomeOfSeveralRegions: what another sender has in any region takes numbers. A claim that may be given up takes none, and a
// linearizer that does not answer only makes the welcome say less.
func TestWelcomeOfSeveralRegions(t *testing.T) {
	w := newWorld(t)
	eu, us := w.start(t, newStore(), "eu", nil), w.start(t, newStore(), "us", nil)
	first, _ := eu.mustOpen(t, boot, 0)
	if r := first.ask(encode(t, boot, 10, 10, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED { // 10 to 19
		t.Fatal(r)
	}
	first.done()
	taken := func(c *collector, b identity.Boot, next uint64) bool {
		t.Helper()
		s, welcome := c.mustOpen(t, b, next)
		s.done()
		return welcome.GetNumbersTaken()
	}
	for next, want := range map[uint64]bool{0: true, 10: true, 19: true, 20: false, 1<<64 - 1: false} {
		for name, c := range map[string]*collector{"eu": eu, "us": us} {
			if got := taken(c, boot, next); got != want {
				t.Errorf("%s, numbers from %d on are taken: %v", name, next, got)
			}
		}
	}
	w.claim(t, identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 30, SeqEnd: 39}, []byte("x"), "eu")
	if taken(us, boot, 20) {
		t.Error("a claim that may be given up takes numbers")
	}
	w.spans.Store(&[]claims.Span{{Start: 100, End: 200, Home: "eu"}})
	if !taken(us, boot, 150) || taken(us, boot, 201) {
		t.Error("what is folded takes other numbers than its own")
	}
	w.away.Store(true)
	if taken(us, boot, 10) {
		t.Error("numbers are taken, by the word of nobody")
	}
}

// TestConflictsNameTheRangeMet: who is refused because of another identity of the boot learns which, on the stream, over gRPC and over
// HTTP; and who is refused because of another frame of the same identity is not told one.
func TestConflictsNameTheRangeMet(t *testing.T) {
	w := newWorld(t)
	eu, us := w.start(t, newStore(), "eu", nil), w.start(t, newStore(), "us", nil)
	s, _ := eu.mustOpen(t, boot, 0)
	if r := s.ask(encode(t, boot, 10, 10, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED { // 10 to 19
		t.Fatal(r)
	}
	s.done()
	meets, same := encode(t, boot, 15, 10, 1), encode(t, boot, 10, 10, 1)
	s, _ = us.mustOpen(t, boot, 15)
	r := s.ask(meets)
	c := r.GetConflict()
	if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT || c.AcceptedSeqStart == nil || c.GetAcceptedSeqStart() != 10 || c.GetAcceptedSeqEnd() != 19 || !strings.Contains(r.GetDetail(), "10-19") {
		t.Errorf("%v", r)
	}
	if c := s.ask(same).GetConflict(); c == nil || c.AcceptedSeqStart != nil || c.AcceptedSeqEnd != nil {
		t.Errorf("of the same numbers: %v", c)
	}
	s.done()
	_, err := us.client.SubmitBatch(t.Context(), &ingestv1.SubmitBatchRequest{Frame: meets, SpoolId: "spool-1"})
	if m := errorInfo(err); rpc.Reason(err) != ingest.ReasonIdentityConflict || m["accepted_seq_start"] != "10" || m["accepted_seq_end"] != "19" ||
		m["manifest_key"] != layout.Accepted(identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 10, SeqEnd: 19}) {
		t.Errorf("%v, %v", err, m)
	}
	spool := func(r *http.Request) { r.Header.Set(ingest.SpoolIDHeader, "spool-1") }
	a := us.post(t, meets, spool)
	if a.code != 409 || a.body["accepted_seq_start"] != "10" || a.body["accepted_seq_end"] != "19" || !strings.Contains(fmt.Sprint(a.body["detail"], a.body["message"]), "10-19") {
		t.Errorf("%d %v", a.code, a.body)
	}
	if a = us.post(t, same, spool); a.code != 409 || a.body["accepted_seq_start"] != nil {
		t.Errorf("of the same numbers: %d %v", a.code, a.body)
	}
}

// TestWhatIsNotKnownOfAnotherRegion: when another region accepted a batch, and which collector did, its own records say. An answer here
// leaves it out, and gives neither the epoch of Unix nor its own time and name for it.
func TestWhatIsNotKnownOfAnotherRegion(t *testing.T) {
	w := newWorld(t)
	eu, us := w.start(t, newStore(), "eu", nil), w.start(t, newStore(), "us", nil)
	first, other := encode(t, boot, 10, 10, 0), encode(t, boot, 10, 10, 1)
	spool := func(r *http.Request) { r.Header.Set(ingest.SpoolIDHeader, "spool-1") }
	if a := eu.post(t, first, spool); a.code != 200 || a.body["duplicate"] != false || a.body["accepted_at"] == nil || a.body["collector_id"] == nil {
		t.Fatalf("%d %v", a.code, a.body)
	}
	known := func(m map[string]any) bool { return m["accepted_at"] != nil || m["collector_id"] != nil }
	var a answer
	for range 100 { // until it is settled
		if a = us.post(t, first, spool); a.code == 200 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if a.code != 200 || a.body["duplicate"] != true || known(a.body) {
		t.Errorf("%d %v", a.code, a.body)
	}
	if a = us.post(t, other, spool); a.code != 409 || known(a.body) || a.body["accepted_sha256"] != identity.Sum(first).String() {
		t.Errorf("%d %v", a.code, a.body)
	}
	_, err := us.client.SubmitBatch(t.Context(), &ingestv1.SubmitBatchRequest{Frame: other, SpoolId: "spool-1"})
	if m := errorInfo(err); rpc.Reason(err) != ingest.ReasonIdentityConflict || m["accepted_at"] != "" || m["collector_id"] != "" {
		t.Errorf("%v, %v", err, m)
	}
	s, _ := us.mustOpen(t, boot, 15)
	if c := s.ask(other).GetConflict(); c == nil || c.GetAcceptedAtUnixNs() != 0 || c.GetCollectorId() != "" {
		t.Errorf("%v", c)
	}
	if a := s.ask(first).GetAcceptance(); a == nil || a.GetAcceptedAtUnixNs() != 0 || a.GetCollectorId() != "" || a.GetJournalPosition() == "" {
		t.Errorf("%v", a)
	}
	s.done()
	// Its own region knows.
	if a := eu.post(t, first, spool); a.code != 200 || a.body["duplicate"] != true || a.body["accepted_at"] == nil || a.body["collector_id"] == nil {
		t.Errorf("%d %v", a.code, a.body)
	}
}

// TestBoundsOfSeveralRegions: a batch out of bounds that another region has accepted is a duplicate here. Where nobody can know that, and
// while another one may be accepting it, its sender is told to come again, and never that it is refused.
func TestBoundsOfSeveralRegions(t *testing.T) {
	w := newWorld(t)
	eu := w.start(t, newStore(), "eu", nil)
	us := w.start(t, newStore(), "us", func(c *ingest.Config) { c.Limits.BatchSeries = 10 })
	now := time.Now()
	there, fresh, pending := encodeSeries(t, boot, 1, 0, 100, now), encodeSeries(t, boot, 1000, 0, 100, now), encodeSeries(t, boot, 2000, 0, 100, now)
	if got := eu.submit(t, there); got != "accepted" {
		t.Fatal(got)
	}
	w.claim(t, identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 2000, SeqEnd: 2099}, pending, "eu")
	eventually(t, "settled", func() bool { return us.submit(t, there) != "CLAIM_PENDING" })
	for _, tc := range []struct {
		what  string
		frame []byte
		away  bool
		want  string
	}{
		{"accepted there", there, false, "duplicate"},
		{"new", fresh, false, ingest.ReasonBatchSeriesLimit},
		{"being accepted there", pending, false, "CLAIM_PENDING"},
		{"other bytes", encodeSeries(t, boot, 1, 100, 200, now), false, ingest.ReasonIdentityConflict},
		{"new, and the linearizer is away", fresh, true, "LINEARIZER_UNAVAILABLE"},
		{"accepted there, and the linearizer is away", there, true, "LINEARIZER_UNAVAILABLE"},
		{"new, and the linearizer is back", fresh, false, ingest.ReasonBatchSeriesLimit},
	} {
		w.away.Store(tc.away)
		if got := us.submit(t, tc.frame); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.what, got, tc.want)
		}
	}
	// What is folded has no claim any more.
	w.spans.Store(&[]claims.Span{{Start: 1000, End: 1099, Home: "eu"}})
	if got := us.submit(t, fresh); got == ingest.ReasonBatchSeriesLimit {
		t.Error("a folded batch is refused")
	}
}

// TestALinearizerThatDenies: a collector whose credentials the linearizer refuses is not ready, from the start or from the batch on that
// finds out, as with a store that denies; its senders go elsewhere. It is ready again once it is let in.
func TestALinearizerThatDenies(t *testing.T) {
	w := newWorld(t)
	w.denies.Store(true)
	c := launch(t, newStore(), rpc.ClientConfig{}, func(c *ingest.Config) {
		c.Acceptance, c.Region, c.Coordinator.Addresses, c.TakeOver = "global", "eu", []string{w.address}, time.Hour
	})
	says := func(denied bool) {
		t.Helper()
		want := map[bool]float64{true: 1}[denied]
		eventually(t, "the collector to find out", func() bool {
			err := c.NotReady()
			return (err != nil && errors.Is(err, accept.ErrClaimDenied)) == denied && c.gauge(t, "lightmetrics_ingest_linearizer_denied") == want
		})
		if err := c.NotReady(); denied && !strings.Contains(err.Error(), "region \"eu\"") {
			t.Error(err)
		}
	}
	says(true)
	w.denies.Store(false)
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	says(false)
	if got := c.submit(t, encode(t, boot, 10, 10, 0)); got != "accepted" {
		t.Fatal(got)
	}
	w.denies.Store(true)
	if got := c.submit(t, encode(t, boot, 20, 10, 0)); got != "LINEARIZER_DENIED" {
		t.Error(got)
	}
	says(true)
	if got := c.gauge(t, "lightmetrics_ingest_linearizer_away"); got != 0 {
		t.Errorf("one that denies is away: %v", got)
	}
	w.denies.Store(false)
	eventually(t, "ready again", func() bool { return c.NotReady() == nil })
	eventually(t, "accepted", func() bool { return c.submit(t, encode(t, boot, 20, 10, 0)) == "accepted" })
	// One that does not answer says nothing of credentials.
	w.away.Store(true)
	other := launch(t, newStore(), rpc.ClientConfig{}, func(c *ingest.Config) {
		c.Acceptance, c.Region, c.Coordinator.Addresses, c.TakeOver = "global", "us", []string{w.address}, time.Hour
	})
	eventually(t, "ready without the linearizer", func() bool { return other.NotReady() == nil })
}

// TestARegionThatTakesNoPart: a collector whose region is not added yet is not ready until it is, and one whose region is retired is not
// from the first batch on that finds out.
func TestARegionThatTakesNoPart(t *testing.T) {
	w, other := newWorld(t), identity.Boot{Agent: boot.Agent, Boot: "boot-of-later"}
	c := launch(t, newStore(), rpc.ClientConfig{}, func(c *ingest.Config) {
		c.Acceptance, c.Region, c.Coordinator.Addresses, c.TakeOver = "global", "asia", []string{w.address}, time.Hour
	})
	away := func(epoch string) {
		t.Helper()
		eventually(t, "the collector to find out", func() bool {
			err := c.NotReady()
			return err != nil && strings.Contains(err.Error(), `"asia" is none of the regions of `+epoch) && c.gauge(t, "lightmetrics_ingest_linearizer_denied") == 1
		})
	}
	away("epoch 3")
	w.moveTo(4, "asia", "eu", "us")
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	if got := c.submit(t, encode(t, boot, 10, 10, 0)); got != "accepted" {
		t.Fatal(got)
	}
	w.moveTo(5, "eu", "us")
	// Of another boot: there is no recovery here, which drops claims of earlier epochs.
	if got := c.submit(t, encode(t, other, 20, 10, 0)); got != "LINEARIZER_DENIED" {
		t.Error(got)
	}
	away("epoch 5")
	if got := c.submit(t, encode(t, other, 20, 10, 0)); got != rpc.ReasonNotReady {
		t.Error(got)
	}
	w.moveTo(6, "asia", "eu", "us")
	eventually(t, "ready again", func() bool { return c.NotReady() == nil })
	if got := c.submit(t, encode(t, other, 20, 10, 0)); got != "accepted" || c.gauge(t, "lightmetrics_ingest_linearizer_denied") != 0 {
		t.Error(got)
	}
}

// TestALinearizerThatIsDissolved: a collector that still runs is not ready. Where its bucket says so, too, it ends (TestABucketOfARegion).
func TestALinearizerThatIsDissolved(t *testing.T) {
	w := newWorld(t)
	c := launch(t, newStore(), rpc.ClientConfig{}, func(c *ingest.Config) {
		c.Acceptance, c.Region, c.Coordinator.Addresses, c.TakeOver = "global", "eu", []string{w.address}, time.Hour
	})
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	w.dissolved.Store(true)
	if got := c.submit(t, encode(t, boot, 10, 10, 0)); got != "LINEARIZER_DENIED" {
		t.Error(got)
	}
	eventually(t, "the collector to find out", func() bool { err := c.NotReady(); return err != nil && strings.Contains(err.Error(), "dissolved") })
	w.dissolved.Store(false)
	eventually(t, "ready again", func() bool { return c.NotReady() == nil })
	if got := c.submit(t, encode(t, boot, 10, 10, 0)); got != "accepted" {
		t.Error(got)
	}
}

// TestALinearizerThatIsAway: senders are told at once, nothing is asked or written for them, and when it is back batches are accepted.
func TestALinearizerThatIsAway(t *testing.T) {
	for name, how := range map[string]func(*world) *atomic.Bool{
		"refuses": func(w *world) *atomic.Bool { return &w.away },
		"hangs":   func(w *world) *atomic.Bool { return &w.hangs },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			store := newStore()
			began := time.Now()
			var later atomic.Int64
			clock := func() time.Time { return began.Add(time.Duration(later.Load())) }
			c := w.startAt(t, store, "eu", clock, func(c *ingest.Config) { c.Coordinator.Timeout = 200 * time.Millisecond })
			seq := uint64(0)
			submit := func() string {
				seq += 10
				return c.submit(t, encode(t, boot, seq, 10, 0))
			}
			wantAway := func(want float64) {
				t.Helper()
				if got := c.gauge(t, "lightmetrics_ingest_linearizer_away"); got != want {
					t.Errorf("linearizer_away is %v, want %v", got, want)
				}
			}
			eventually(t, "accepted", func() bool { return submit() == "accepted" })
			wantAway(0)
			failed := c.counter(t, "lightmetrics_ingest_claim_changes_total", "failed")
			how(w).Store(true)
			for range 3 {
				if got := submit(); got != "LINEARIZER_UNAVAILABLE" {
					t.Fatal(got)
				}
			}
			wantAway(1)
			// Nothing is asked or written for the next ones. The linearizer may still see attempts of the first ones.
			before := contents(t, store)
			for range 20 {
				if got := submit(); got != "LINEARIZER_UNAVAILABLE" {
					t.Fatal(got)
				}
			}
			if after := contents(t, store); !maps.Equal(before, after) {
				t.Errorf("written: %v, before %v", after, before)
			}
			if n := c.counter(t, "lightmetrics_ingest_claim_changes_total", "failed"); n != failed+3 {
				t.Errorf("it was asked %v times", n)
			}
			// After a while one is asked about, and its failure holds back the others again.
			later.Add(int64(time.Second))
			for range 5 {
				if got := submit(); got != "LINEARIZER_UNAVAILABLE" {
					t.Fatal(got)
				}
			}
			if n := c.counter(t, "lightmetrics_ingest_claim_changes_total", "failed"); n != failed+4 {
				t.Errorf("it was asked %v times", n)
			}
			how(w).Store(false)
			if got := submit(); got != "LINEARIZER_UNAVAILABLE" {
				t.Errorf("asked before the time: %s", got)
			}
			eventually(t, "accepted", func() bool {
				later.Add(int64(time.Second))
				return submit() == "accepted"
			})
			wantAway(0)
			eventually(t, "accepted, at the same time", func() bool { return submit() == "accepted" })
		})
	}
}

// counter adds up the series of a counter with the outcome.
func (c *collector) counter(t testing.TB, name, outcome string) (sum float64) {
	t.Helper()
	mfs, err := c.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, mf := range mfs {
		for _, m := range mf.GetMetric() {
			for _, p := range m.GetLabel() {
				if mf.GetName() == name && p.GetName() == "outcome" && p.GetValue() == outcome {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}
