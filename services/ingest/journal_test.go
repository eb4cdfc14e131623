package ingest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// journalOf reads the journal of a store: the entries at each position, and the runs that are open.
func journalOf(t testing.TB, s *faulty) (map[string][]journal.Entry, []journal.Run) {
	t.Helper()
	a, err := accept.ReadAuthority(t.Context(), s.Store)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]journal.Entry{}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s.Store, Authority: a.AuthorityID,
		Segment: func(_ context.Context, seg *journal.Segment) error {
			got[seg.Position.String()] = seg.Entries
			return nil
		},
		Folded: func(context.Context, []journal.Entry) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return got, f.Runs()
}

func statusPage(t testing.TB, c *collector) string {
	t.Helper()
	resp, err := http.Get(c.HTTPURL() + "/status")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// count is how many entries the journal has.
func count(t testing.TB, s *faulty) (n int) {
	t.Helper()
	all, _ := journalOf(t, s)
	for _, es := range all {
		n += len(es)
	}
	return n
}

// Every answer with an outcome says where the outcome stands, on all three ways; others have no entry.
func TestAnswersSayWhereTheyStand(t *testing.T) {
	c := start(t, newStore(), nil)
	first, other := encode(t, boot, 0, 10, 0), encode(t, boot, 0, 10, 99)
	check := func(what, position string, want journal.Outcome) {
		t.Helper()
		all, _ := journalOf(t, c.store)
		for _, e := range all[position] {
			if e.Outcome == want && e.ID.SeqEnd == 9 {
				return
			}
		}
		t.Errorf("%s: no %s entry at %q", what, want, position)
	}
	s, _ := c.mustOpen(t, boot, 0)
	check("stream", s.ask(first).GetAcceptance().GetJournalPosition(), journal.Accepted)
	check("stream", s.ask(first).GetAcceptance().GetJournalPosition(), journal.Duplicate)
	check("stream", s.ask(other).GetConflict().GetJournalPosition(), journal.Conflict)
	r, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: first, SpoolId: "spool-1"})
	if err != nil {
		t.Fatal(err)
	}
	check("unary", r.GetAcceptance().GetJournalPosition(), journal.Duplicate)
	_, err = c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: other, SpoolId: "spool-1"})
	check("unary", errorInfo(err)["journal_position"], journal.Conflict)
	spool := func(r *http.Request) { r.Header.Set(ingest.SpoolIDHeader, "spool-1") }
	check("HTTP", c.post(t, first, spool).body["journal_position"].(string), journal.Duplicate)
	check("HTTP", c.post(t, other, spool).body["journal_position"].(string), journal.Conflict)

	n := count(t, c.store)
	if r := s.ask([]byte("no frame")); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_REJECTED {
		t.Fatalf("%v", r)
	}
	s.done()
	if again := count(t, c.store); again != n {
		t.Errorf("a rejected frame has %d entries", again-n)
	}
	c.stop()
	if _, runs := journalOf(t, c.store); len(runs) != 0 {
		t.Errorf("%d runs are open after the end", len(runs))
	}
}

// No answer before the segment is durable; meanwhile the entries of other batches gather for the next one.
func TestAnswersWaitForTheJournal(t *testing.T) {
	c := start(t, newStore(), nil)
	s, _ := c.mustOpen(t, boot, 0)
	s.ask(encode(t, boot, 0, 10, 0)) // the boot is claimed, and the run open
	before := map[string]int64{}
	for _, family := range []string{"raw-blobs", "accepted", "journal"} {
		before[family] = c.store.created(family)
	}
	release := c.store.blockJournal()
	const n = 20
	for i := range uint64(n) {
		s.send(encode(t, boot, 10+i*10, 10, 0))
	}
	eventually(t, "all are accepted and wait", func() bool {
		return len(manifests(t, c.store.Store)) == n+1 && c.store.journalHeld.Load() == 1
	})
	if answered := c.batches(t, "accepted", ""); answered != 1 {
		t.Errorf("%v batches were answered, and nothing of the journal is durable", answered)
	}
	release()
	for range n {
		r := s.recv()
		if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
			t.Fatalf("%v", r)
		}
		if all, _ := journalOf(t, c.store); len(all[r.GetAcceptance().GetJournalPosition()]) == 0 {
			t.Fatalf("answered before its entry was durable: %v", r)
		}
	}
	s.done()
	// What the batches cost: a blob and a manifest each, and two segments for all.
	for family, want := range map[string]int64{"raw-blobs": n, "accepted": n, "journal": 2} {
		if got := c.store.created(family) - before[family]; got != want && !(family == "journal" && got <= want+1) {
			t.Errorf("%d creates of %s, want %d", got, family, want)
		}
	}
}

// While a manifest is being created its batch is in no journal: another frame may win.
func TestNoEntryBeforeTheManifest(t *testing.T) {
	c := start(t, newStore(), nil)
	s, _ := c.mustOpen(t, boot, 0)
	release := c.store.block()
	s.send(encode(t, boot, 0, 10, 0))
	eventually(t, "the manifest is being created", func() bool { return c.store.held.Load() == 1 })
	c.others(t, 20) // time for a collector that does not wait
	if n := count(t, c.store); n != 0 {
		t.Errorf("%d entries, and no manifest", n)
	}
	release()
	if r := s.recv(); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Errorf("%v", r)
	}
	s.done()
}

// A journal that can't be written: RETRY with its own reason, not ready after a while, and nothing is lost.
func TestTheJournalIsDown(t *testing.T) {
	var mu sync.Mutex
	ahead := time.Duration(0)
	c := launchAt(t, newStore(), rpc.ClientConfig{}, telemetry.Discard(), func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().Add(ahead)
	}, func(c *ingest.Config) { c.AcceptTimeout = 200 * time.Millisecond })
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	s, _ := c.mustOpen(t, boot, 0)
	c.store.journalDown.Store(true)
	f := encode(t, boot, 0, 10, 0)
	if r := s.ask(f); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY || r.GetReason() != string(accept.ReasonJournalUnavailable) {
		t.Errorf("stream: %v", r)
	}
	_, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: f, SpoolId: "spool-1"})
	if status.Code(err) != codes.Unavailable || rpc.Reason(err) != string(accept.ReasonJournalUnavailable) || rpc.RetryAfter(err) <= 0 {
		t.Errorf("unary: %v", err)
	}
	if a := c.post(t, f, func(r *http.Request) { r.Header.Set(ingest.SpoolIDHeader, "spool-1") }); a.code != 503 || a.body["error"] != "journal_unavailable" {
		t.Errorf("HTTP: %+v", a)
	}
	if err := c.Readiness().Err(); err != nil {
		t.Errorf("not ready at once: %v", err)
	}
	if page := statusPage(t, c); !strings.Contains(page, "it fails since") {
		t.Errorf("the status page does not say that the journal fails: %s", page)
	}
	mu.Lock()
	ahead = time.Minute
	mu.Unlock()
	if err := c.Readiness().Err(); err == nil {
		t.Error("still ready after a minute")
	}
	c.store.journalDown.Store(false)
	eventually(t, "answered", func() bool {
		return s.ask(f).GetStatus() == ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE
	})
	s.done()
	if err := c.Readiness().Err(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	if n := count(t, c.store); n == 0 {
		t.Error("answered, and not in the journal")
	}
}

// A duplicate has an entry of its own: the collector that created the manifest may have died before it could
// write one, so the welcome never lets a sender skip a batch either.
func TestADeadCollectorsBatchIsJournalledByTheNext(t *testing.T) {
	store := newStore()
	a := start(t, store, func(c *ingest.Config) { c.AcceptTimeout = 200 * time.Millisecond })
	store.journalDown.Store(true)
	s, _ := a.mustOpen(t, boot, 0)
	f := encode(t, boot, 0, 10, 0)
	if r := s.ask(f); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY {
		t.Fatalf("%v", r)
	}
	if n := len(manifests(t, store.Store)); n != 1 {
		t.Fatalf("%d manifests", n)
	}
	b := start(t, &faulty{Store: store.Store}, func(c *ingest.Config) { c.ID = "collector-b" })
	sb, w := b.mustOpen(t, boot, 10)
	if w.GetNumbersTaken() {
		t.Errorf("welcome: %v", w)
	}
	r := sb.ask(f)
	if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE || count(t, store) != 1 {
		t.Errorf("%v, %d entries", r, count(t, store))
	}
	sb.done()
	s.done()
	store.journalDown.Store(false)
}

// A spooling collector opens a run before it accepts anything, tells watchers of what has not landed, and its
// batches leave the spool only once they stand in the journal.
func TestASpoolIsVisible(t *testing.T) {
	store, dir := newStore(), t.TempDir()
	spooled := func(c *ingest.Config) {
		c.Acceptance, c.Spool.Dir, c.Spool.LandingIntervalMS = "local_spool", dir, 10
		c.Journal.Idle = time.Millisecond // not of a spooler
	}
	c := start(t, store, spooled)
	_, runs := journalOf(t, store)
	if len(runs) != 1 || runs[0].Opening.Role != journal.RoleSpooler || runs[0].Opening.Writer != "collector-a" {
		t.Fatalf("runs: %+v", runs)
	}
	watch, err := journalv1.NewJournalServiceClient(c.conn).WatchJournal(bound(t), &journalv1.WatchJournalRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func() *journalv1.WatchJournalResponse {
		t.Helper()
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m := next(); m.GetPosition() != "" || m.GetUnlanded() != 0 || m.GetWriter() != "collector-a" {
		t.Errorf("first message: %v", m)
	}
	store.journalDown.Store(true)
	s, _ := c.mustOpen(t, boot, 0)
	r := s.ask(encode(t, boot, 0, 10, 0))
	if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED || r.GetAcceptance().GetJournalPosition() != "" {
		t.Fatalf("%v", r)
	}
	if m := next(); m.GetPosition() != "" || m.GetUnlanded() != 1 {
		t.Errorf("after a batch: %v", m)
	}
	// A conflict names no record that does not exist yet.
	lost := s.ask(encode(t, boot, 0, 10, 99))
	if lost.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT || lost.GetConflict().GetQuarantineKey() != "" {
		t.Errorf("%v", lost)
	}
	_, err = c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: encode(t, boot, 0, 10, 99), SpoolId: "spool-1"})
	if _, named := errorInfo(err)["quarantine_key"]; named || rpc.Reason(err) != ingest.ReasonIdentityConflict {
		t.Errorf("%v: %v", err, errorInfo(err))
	}
	s.done()
	eventually(t, "the manifest", func() bool { return len(manifests(t, store.Store)) == 1 })

	// The journal is down: the batch stays in the spool, and the run stays open after the end.
	c.stop()
	if _, runs := journalOf(t, store); len(runs) != 1 {
		t.Errorf("%d runs are open, and a batch is in the spool", len(runs))
	}
	if n := count(t, store); n != 0 {
		t.Errorf("%d entries", n)
	}
	store.journalDown.Store(false)
	c = start(t, store, spooled)
	// The conflict comes with the batch that holds the identity.
	eventually(t, "both have landed", func() bool { return count(t, store) == 3 })
	if _, err := store.Head(t.Context(), layout.Quarantine(identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqEnd: 9}, identity.Sum(encode(t, boot, 0, 10, 99)))); err != nil {
		t.Errorf("quarantine record: %v", err)
	}
	// The run of the first life is ended, because all that it had accepted is in the bucket.
	eventually(t, "one run is open", func() bool { _, runs := journalOf(t, store); return len(runs) == 1 })
	c.stop()
	if _, runs := journalOf(t, store); len(runs) != 0 {
		t.Errorf("%d runs are open after the end of both", len(runs))
	}
}

// A run that was left open ends only when the batches of its life have landed, whatever else does.
func TestARunEndsAfterItsBatches(t *testing.T) {
	store, dir := newStore(), t.TempDir()
	spooled := func(c *ingest.Config) {
		c.Acceptance, c.Spool.Dir, c.Spool.LandingIntervalMS = "local_spool", dir, 10
	}
	c := start(t, store, spooled)
	tries := atomic.Int64{}
	noBlob := func([]byte) { tries.Add(1) }
	store.keep.Store(&noBlob) // nothing lands
	s, _ := c.mustOpen(t, boot, 0)
	s.ask(encode(t, boot, 0, 10, 0))
	s.done()
	c.stop()
	_, runs := journalOf(t, store)
	if len(runs) != 1 {
		t.Fatalf("%d runs", len(runs))
	}
	first := runs[0].Run
	isOpen := func() bool {
		_, runs := journalOf(t, store)
		for _, r := range runs {
			if r.Run == first {
				return true
			}
		}
		return false
	}
	c = start(t, store, spooled)
	tries.Store(0)
	eventually(t, "landing", func() bool { return tries.Load() > 0 })
	time.Sleep(500 * time.Millisecond) // time for a collector that does not wait
	if !isOpen() {
		t.Error("the run was ended, and its batch has not landed")
	}
	store.keep.Store(nil)
	eventually(t, "the run ends", func() bool { return !isOpen() })
	c.stop()
}

// The run of a spooler stays open over its end while the spool has batches, and is closed without.
func TestARunStaysOpenOverASpool(t *testing.T) {
	for _, batches := range []int{1, 0} {
		store, dir := newStore(), t.TempDir()
		c := start(t, store, func(c *ingest.Config) {
			c.Acceptance, c.Spool.Dir, c.Spool.LandingIntervalMS = "local_spool", dir, 10
		})
		release := store.block()
		s, _ := c.mustOpen(t, boot, 0)
		for range batches {
			s.ask(encode(t, boot, 0, 10, 0))
		}
		s.done()
		c.stop()
		release()
		if _, runs := journalOf(t, store); len(runs) != batches {
			t.Errorf("%d runs are open, and %d batches are in the spool", len(runs), batches)
		}
	}
}

func TestWatchJournal(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) { c.Journal.Idle = time.Hour })
	client := journalv1.NewJournalServiceClient(c.conn)
	watch, err := client.WatchJournal(bound(t), &journalv1.WatchJournalRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := watch.Recv(); err != nil || m.GetPosition() != "" {
		t.Fatalf("%v, %v", m, err)
	}
	s, _ := c.mustOpen(t, boot, 0)
	for i := range uint64(5) {
		want := s.ask(encode(t, boot, i*10, 10, 0)).GetAcceptance().GetJournalPosition()
		if m, err := watch.Recv(); err != nil || m.GetPosition() != want || m.GetUnlanded() != 0 || m.GetWriter() != "collector-a" {
			t.Errorf("%v, %v, want %s", m, err, want)
		}
	}
	s.done()
	hints, err := client.NotifyJournal(bound(t))
	if err == nil {
		_, err = hints.CloseAndRecv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("a collector took hints: %v", err)
	}
	c.stop()
	if _, err := watch.Recv(); rpc.Reason(err) != rpc.ReasonDraining {
		t.Errorf("end of a watch: %v", err)
	}
}

// reconciler takes hints about the journal.
type reconciler struct {
	journalv1.UnimplementedJournalServiceServer
	got chan string
}

func (r *reconciler) NotifyJournal(s grpc.ClientStreamingServer[journalv1.NotifyJournalRequest, journalv1.NotifyJournalResponse]) error {
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		r.got <- m.GetPosition()
	}
}

// Reconcilers get a hint at every segment; one that is down delays nothing.
func TestReconcilersAreToldOfSegments(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	g := grpc.NewServer()
	r := &reconciler{got: make(chan string, 100)}
	journalv1.RegisterJournalServiceServer(g, r)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	defer func() {
		g.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	}()
	c := start(t, newStore(), func(c *ingest.Config) {
		c.Notify.Addresses = []string{dead.Addr().String(), l.Addr().String()}
		c.Notify.Queue = 8
	})
	s, _ := c.mustOpen(t, boot, 0)
	for i := range uint64(20) {
		f := encode(t, boot, i*10, 10, 0)
		for range 2 { // a duplicate has an entry, too
			if want := s.ask(f).GetAcceptance().GetJournalPosition(); <-r.got != want {
				t.Fatalf("another position than %s", want)
			}
		}
	}
	s.done()
}
