package reconciler

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/derived/inventory"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// following reads, folds and saves all the time, and keeps nothing.
func following() Config {
	c := quiet()
	c.Derived = DerivedSegments
	c.Journal.Polling.Interval, c.Journal.IdleInterval = 5*time.Millisecond, 5*time.Millisecond
	c.Journal.Folding.Interval, c.Journal.Retention = 5*time.Millisecond, 0
	c.Ledgers.SaveInterval = 5 * time.Millisecond
	c.Audit.Rate = 1e6
	return c
}

// collector writes a run of the journal.
func collector(t testing.TB, s journal.WriterStore, role journal.Role) *journal.Writer {
	t.Helper()
	w, err := journal.NewWriter(journal.WriterConfig{
		Store: s, Rand: rand.Reader, Clock: func() int64 { return 1 },
		Opening: journal.Opening{Writer: "collector", Role: role, Authority: testAuthority},
	})
	must(t, err)
	return w
}

// entryOf is the entry of a batch that has no manifest: whoever follows the journal reads none.
func entryOf(id identity.Batch) journal.Entry {
	m, _ := manifest(id)
	return m.Entry(journal.Accepted)
}

func journalled(t testing.TB, w *journal.Writer, entries ...journal.Entry) journal.Position {
	t.Helper()
	for _, e := range entries {
		_, err := w.Add(e)
		must(t, err)
	}
	at, _, err := w.Flush(bg)
	must(t, err)
	return at
}

// saved is the number of records of an agent's boot in the checkpoint.
func saved(t testing.TB, s objstore.Getter, agent string) uint64 {
	t.Helper()
	l, err := ledgers.LoadCheckpoint(bg, s, nil)
	must(t, err)
	if got := l.Set.Get(identity.Boot{Agent: agent, Boot: "boot"}); got != nil {
		return got.RecordCount()
	}
	return 0
}

func count(t testing.TB, s objstore.Lister, prefix string) (n int) {
	t.Helper()
	must(t, storetest.Each(bg, s, prefix, func(objstore.Info) error { n++; return nil }))
	return n
}

// Segments are folded and deleted, and the ledgers of their batches are saved; a restart has them again.
func TestJournalIsFoldedAndTheLedgersAreSaved(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	r := start(t, following(), s)
	w := collector(t, s, journal.RoleCollector)
	for i := range uint64(20) {
		journalled(t, w, entryOf(batch("a", 10*i, 10*i+9)), entryOf(batch(fmt.Sprint("b", i), 0, 9)))
	}
	must(t, w.Close(bg))
	eventually(t, "the ledgers are saved", func() bool { return saved(t, s, "a") == 200 && saved(t, s, "b19") == 10 })
	eventually(t, "the segments are gone", func() bool {
		return count(t, s, layout.JournalOpenPrefix)+count(t, s, layout.JournalPrefix+"run=") == 0
	})
	must(t, r.stop())
	r = start(t, following(), s)
	eventually(t, "the journal is read", func() bool { _, _, ready := r.journal.status(); return ready })
	if set, through, _ := r.journal.status(); set.Boots() != 21 || through.IsZero() {
		t.Errorf("%d boots, through %v", set.Boots(), through)
	}
}

// The journal's files have everything that a lost checkpoint had.
func TestLostCheckpointIsRebuilt(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	r := start(t, following(), s)
	w := collector(t, s, journal.RoleCollector)
	for i := range uint64(5) {
		journalled(t, w, entryOf(batch(fmt.Sprint("a", i), 0, 9)))
	}
	must(t, w.Close(bg))
	eventually(t, "the segments are gone", func() bool {
		return count(t, s, layout.JournalOpenPrefix)+count(t, s, layout.JournalPrefix+"run=") == 0
	})
	must(t, r.stop())
	must(t, s.Delete(bg, layout.LedgersKey))
	r = start(t, following(), s)
	eventually(t, "the journal is read", func() bool { _, _, ready := r.journal.status(); return ready })
	if set, _, _ := r.journal.status(); set.Boots() != 5 {
		t.Errorf("%d boots", set.Boots())
	}
}

// A bucket whose journal was restored from an older copy than its ledgers: what the ledgers say of batches that are gone is
// forgotten, so that they show a gap there, and a manifest that is there and in no run is found by an audit of news.
func TestLedgersThatAreAheadOfTheJournal(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	r := start(t, following(), s)
	acceptBatch(t, s, batch("a", 0, 9))
	eventually(t, "the journal is folded", func() bool { h, _, err := journal.ReadHead(bg, s); return err == nil && len(h.Files) > 0 })
	must(t, r.stop())
	old := map[string][]byte{}
	must(t, storetest.Each(bg, s, layout.JournalPrefix, func(o objstore.Info) error {
		b, _, err := s.Get(bg, o.Key, objstore.GetOptions{})
		old[o.Key] = b
		return err
	}))

	r = start(t, following(), s)
	lost := acceptBatch(t, s, batch("a", 10, 19))
	acceptBatch(t, s, batch("a", 20, 29))
	before, _, err := journal.ReadHead(bg, s)
	must(t, err)
	eventually(t, "the ledgers are saved behind a later head", func() bool {
		l, err := ledgers.LoadCheckpoint(bg, s, nil)
		return err == nil && saved(t, s, "a") == 30 && l.Positions.Head > before.Number
	})
	must(t, r.stop())

	// The journal as it was, and one manifest less: the ledgers are what is newest.
	must(t, storetest.Each(bg, s, layout.JournalPrefix, func(o objstore.Info) error { return s.Delete(bg, o.Key) }))
	for key, b := range old {
		_, err := s.Put(bg, key, b, objstore.PutOptions{})
		must(t, err)
	}
	must(t, s.Delete(bg, layout.Accepted(lost.Identity)))

	r = start(t, following(), s)
	eventually(t, "the journal is read", func() bool { _, _, ready := r.journal.status(); return ready })
	set, _, _ := r.journal.status()
	if l := set.Get(identity.Boot{Agent: "a", Boot: "boot"}); l == nil || l.RecordCount() != 10 {
		t.Errorf("the ledger has %v, the journal 10 records", l)
	}
	a := audit.Auditor{Store: s, Rand: rand.Reader, Authority: testAuthority, By: "test", Writer: collector(t, s, journal.RoleReconciler), Ledgers: set}
	news, err := a.BeginNews(bg)
	must(t, err)
	done, err := a.Work(bg, &news)
	must(t, err)
	if !done || news.Journalled != 1 {
		t.Errorf("an audit of news: done %v, %+v", done, news.Record)
	}
	eventually(t, "the ledgers have what is there", func() bool { return saved(t, s, "a") == 20 })
}

// Two reconcilers on a store that loses answers do the work of one.
func TestTwoReconcilersFold(t *testing.T) {
	good := newStore()
	must(t, journaltest.Complete(bg, good, testAuthority))
	s := newFlaky(t, good, 10)
	for range 2 {
		start(t, following(), s)
	}
	for n := range uint64(5) {
		w := collector(t, good, journal.RoleCollector)
		for i := range uint64(10) {
			journalled(t, w, entryOf(batch(fmt.Sprint("a", n), 10*i, 10*i+9)))
			time.Sleep(time.Millisecond)
		}
		must(t, w.Close(bg))
	}
	eventually(t, "the ledgers are saved", func() bool {
		for n := range 5 {
			if saved(t, good, fmt.Sprint("a", n)) != 100 {
				return false
			}
		}
		return true
	})
	s.on.Store(false)
	eventually(t, "the segments are gone", func() bool {
		return count(t, good, layout.JournalOpenPrefix)+count(t, good, layout.JournalPrefix+"run=") == 0
	})
}

// A run without news is ended, so that nobody asks for its next segment for ever. A spooler's is not: it
// says that there may be batches that nobody has read.
func TestRunsWithoutNewsAreEnded(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	cfg := following()
	cfg.Journal.FenceAfter = 50 * time.Millisecond
	r := start(t, cfg, s)
	dead := collector(t, s, journal.RoleCollector)
	first := journalled(t, dead, entryOf(batch("a", 0, 9)))
	spooler := collector(t, s, journal.RoleSpooler)
	open, err := spooler.Begin(bg)
	must(t, err)
	eventually(t, "one run is left", func() bool {
		r.journal.mu.Lock()
		defer r.journal.mu.Unlock()
		if r.journal.tail == nil {
			return false
		}
		runs := r.journal.tail.Runs()
		return len(runs) == 1 && runs[0].Run == open.Run
	})
	// Its writer lives after all, and goes on in a new run.
	if second := journalled(t, dead, entryOf(batch("a", 10, 19))); second.Run == first.Run {
		t.Error("the run goes on")
	}
	eventually(t, "the ledger is saved", func() bool { return saved(t, s, "a") == 20 })
	eventually(t, "the fence is counted", func() bool {
		_, m := r.get("/metrics")
		return strings.Contains(m, "lightmetrics_reconciler_journal_fenced_total 1\n") && strings.Contains(m, `lightmetrics_reconciler_journal_head{what="fences"} 1`)
	})
}

// The metrics say what waits to be folded, and what the head names afterwards.
func TestMetricsOfTheJournal(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	w := collector(t, s, journal.RoleCollector)
	for i := range uint64(3) {
		journalled(t, w, entryOf(batch("a", 10*i, 10*i+9)))
	}
	cfg := following()
	cfg.Journal.Folding.Interval = time.Hour
	r := start(t, cfg, s)
	has := func(r *running, line string) bool {
		_, m := r.get("/metrics")
		return strings.Contains(m, "lightmetrics_reconciler_journal_"+line)
	}
	// The first round of folding may have come before the first poll, or between two segments.
	eventually(t, "the journal is read", func() bool { return has(r, "segments_total 3\n") && has(r, "complete 1\n") })
	for i := range uint64(2) {
		journalled(t, w, entryOf(batch("b", 10*i, 10*i+9)), entryOf(batch("c", 10*i, 10*i+9)))
	}
	eventually(t, "entries wait", func() bool {
		return has(r, "segments_total 5\n") && !has(r, "waiting_entries 0\n") && !has(r, "waiting_seconds 0\n")
	})
	must(t, r.stop())
	r = start(t, following(), s)
	eventually(t, "all is folded", func() bool {
		return has(r, "waiting_entries 0\n") && has(r, "waiting_seconds 0\n") && has(r, `head{what="open"} 1`) && !has(r, `head{what="files"} 0`) && !has(r, "head_bytes 0\n")
	})
	eventually(t, "the status says so", func() bool {
		st, err := server{s: r.Service}.GetStatus(bg, nil)
		must(t, err)
		j := st.GetJournal()
		return j.GetComplete() && j.GetHead() > 0 && j.GetOpenRuns() == 1 && j.GetWaitingEntries() == 0 && j.GetPollError() == ""
	})
}

// A bucket of the former layout: nobody can say that the journal is complete until an audit has written
// what is missing, and the reconciler starts it by itself.
func TestFormerBucketIsAudited(t *testing.T) {
	s := newStore()
	var ms []accept.Manifest
	for i := range uint64(30) {
		ms = append(ms, plantBatch(t, s, batch(fmt.Sprint("a", i%3), 10*i, 10*i+9)))
	}
	start(t, following(), s)
	eventually(t, "the journal is complete", func() bool { ok, err := journal.IsComplete(bg, s); return err == nil && ok })
	eventually(t, "the ledgers are saved", func() bool { return saved(t, s, "a0") == 100 && saved(t, s, "a2") == 100 })
	history, err := audit.History(bg, s, audit.Full, 10)
	must(t, err)
	if len(history) == 0 || !history[len(history)-1].Finished() || history[len(history)-1].Journalled != uint64(len(ms)) {
		t.Errorf("%+v", history)
	}
	eventually(t, "the auditor's run has ended and is folded", func() bool { return count(t, s, layout.JournalOpenPrefix) == 0 })
}

// A folded file is lost while nobody has read it, and dropped: the reconciler, which stood still, goes on, begins an audit by
// itself, enters what the file had, and says only then that the journal is complete.
func TestADroppedFileIsAudited(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	acceptBatch(t, s, batch("a", 0, 9))
	acceptBatch(t, s, batch("a", 10, 19))
	head, err := journaltest.Fold(bg, s, testAuthority)
	must(t, err)
	key := head.Files[0].Key
	must(t, s.Delete(bg, key))
	r := start(t, following(), s)
	eventually(t, "it says what to do", func() bool {
		st, err := server{s: r.Service}.GetStatus(bg, nil)
		must(t, err)
		return strings.Contains(st.GetJournal().GetPollError(), "lmctl journal drop URL "+key)
	})
	// An audit that is under way may have read the file, so it does not count. Another reconciler works on it.
	early := audit.Record{Scope: audit.Full, By: "r0", StartedAt: time.Now().Unix(), UpdatedAt: time.Now().Unix(), Through: head.Number}
	earlyKey := layout.Audit(audit.Full, time.Now(), [16]byte{1})
	create(t, s, earlyKey, early.Marshal())
	early.Claim = "another"
	create(t, s, layout.AuditShard(earlyKey, 0), early.Marshal())
	d, err := journal.Drop(bg, s, rand.Reader, []string{key})
	must(t, err)
	eventually(t, "it reads on", func() bool {
		st, err := server{s: r.Service}.GetStatus(bg, nil)
		must(t, err)
		return st.GetJournal().GetPollError() == "" && st.GetJournal().GetHead() >= d.Head
	})
	must(t, r.stop())
	start(t, following(), s) // it need not wait until it asks again what there is to audit
	eventually(t, "the journal is complete", func() bool { ok, err := journal.IsComplete(bg, s); return err == nil && ok })
	eventually(t, "the ledgers have the batches", func() bool { return saved(t, s, "a") == 20 })
	begin, err := journal.ReadBegin(bg, s)
	must(t, err)
	if begin.By != journal.ByAudit || begin.Head < d.Head {
		t.Errorf("%+v", begin)
	}
}

// TestAnAuditThatCantReadManifests keeps the journal from being complete after a drop. The next one begins hours later by itself,
// not each time that somebody asks what is due; one that is of another journal is not waited for.
func TestAnAuditThatCantReadManifests(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	acceptBatch(t, s, batch("a", 0, 9))
	head, err := journaltest.Fold(bg, s, testAuthority)
	must(t, err)
	must(t, s.Delete(bg, head.Files[0].Key))
	d, err := journal.Drop(bg, s, rand.Reader, []string{head.Files[0].Key})
	must(t, err)
	now := time.Now().Unix()
	unread := audit.Record{Scope: audit.Full, By: "r0", StartedAt: now, UpdatedAt: now, FinishedAt: now, Through: d.Head, Unusable: 1, Unread: 1}
	create(t, s, layout.Audit(audit.Full, time.Unix(now, 0), [16]byte{1}), unread.Marshal())
	r := start(t, following(), s)
	eventually(t, "the journal is read", func() bool { _, through, ready := r.journal.status(); return ready && !through.IsZero() })
	full, err := audit.History(bg, s, audit.Full, 3)
	must(t, err)
	if len(full) != 1 {
		t.Fatalf("%+v", full)
	}
	a := &audit.Auditor{Store: s, Rand: rand.Reader, Authority: testAuthority, By: "r"}
	begins := func(change func(*audit.Stored)) int {
		one := full[0]
		change(&one)
		begun, err := r.journal.beginAudits(bg, a, []audit.Stored{one}, nil, false)
		must(t, err)
		return len(begun)
	}
	for name, c := range map[string]struct {
		change func(*audit.Stored)
		want   int
	}{
		"just finished":        {func(*audit.Stored) {}, 0},
		"long ago":             {func(r *audit.Stored) { r.FinishedAt -= 7 * 3600 }, 1},
		"it read everything":   {func(r *audit.Stored) { r.Unread = 0 }, 1}, // it died before it said that the journal is complete
		"under way":            {func(r *audit.Stored) { r.FinishedAt = 0 }, 0},
		"of another journal":   {func(r *audit.Stored) { r.FinishedAt, r.Through = 0, d.Head+50 }, 1},
		"from before the drop": {func(r *audit.Stored) { r.FinishedAt, r.Through = 0, d.Head-1 }, 1},
	} {
		if got := begins(c.change); got != c.want {
			t.Errorf("%s: %d audits begin, want %d", name, got, c.want)
		}
	}
}

// What is due is begun: an audit of what is new, which finds a batch that was created and never answered, and the next full
// one, spread over its period, which finds one that no news tell of.
func TestAuditsAreBegunWhenTheyAreDue(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	acceptBatch(t, s, batch("a", 0, 9))
	plantBatch(t, s, batch("a", 10, 19))
	long := audit.Record{Scope: audit.Full, By: "r0", StartedAt: 1000, UpdatedAt: 1000, FinishedAt: 1000}
	create(t, s, layout.Audit(audit.Full, time.Unix(1000, 0), [16]byte{1}), long.Marshal())
	cfg := following()
	cfg.Audit.Interval, cfg.Audit.Period = time.Hour, time.Hour
	r := start(t, cfg, s)
	eventually(t, "the batch without an answer is in the ledgers", func() bool { return saved(t, s, "a") == 20 })
	finished := func(scope string) bool {
		h, err := audit.History(bg, s, scope, 5)
		must(t, err)
		return len(h) > 0 && h[0].Finished() && h[0].StartedAt > 1000
	}
	eventually(t, "both audits have finished", func() bool { return finished(audit.News) && finished(audit.Full) })
	full, err := audit.History(bg, s, audit.Full, 5)
	must(t, err)
	if len(full) != 2 || full[0].Spread != 3600 || full[0].Manifests != 2 {
		t.Errorf("%+v", full)
	}
	must(t, r.stop())
	// Nothing is due again.
	r = start(t, cfg, s)
	eventually(t, "the journal is read", func() bool { _, _, ready := r.journal.status(); return ready })
	news, err := audit.History(bg, s, audit.News, 5)
	must(t, err)
	a := &audit.Auditor{Store: s, Rand: rand.Reader, Authority: testAuthority, By: "r"}
	if begun, err := r.journal.beginAudits(bg, a, full, news, true); err != nil || len(begun) > 0 {
		t.Errorf("%v, %v", begun, err)
	}
}

// A full audit takes its keys from the newest inventory; one from before the last audit proves nothing new, and one that
// can't be read is no reason to audit nothing.
func TestFullAuditsTakeInventories(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	r := start(t, following(), s)
	last := []audit.Stored{{Record: audit.Record{Scope: audit.Full, StartedAt: 1000, FinishedAt: 1000}}}
	for _, c := range []struct {
		at   int64
		err  error
		want string
	}{{2000, nil, "lists/manifest.json"}, {1000, nil, ""}, {2000, inventory.ErrUnusable, ""}} {
		a := &audit.Auditor{Store: s, Rand: rand.Reader, Authority: testAuthority, By: "r", Inventory: func(context.Context, string) (audit.Inventory, error) {
			return audit.Inventory{Key: "lists/manifest.json", At: time.Unix(c.at, 0), Files: 9}, c.err
		}}
		got, err := r.journal.beginFull(bg, a, last)
		must(t, err)
		if got.Inventory != c.want {
			t.Errorf("%+v: %+v", c, got.Record)
		}
	}
}

// 2,000 batches a second are a segment of 2,000 entries each second: what is read of them is counted in segments.
func TestReadingCostsSegmentsNotBatches(t *testing.T) {
	inner := newStore()
	s := storetest.Count(inner)
	must(t, journaltest.Complete(bg, s, testAuthority))
	const segments, each = 10, 2000
	w := collector(t, inner, journal.RoleCollector)
	for n := range uint64(segments) {
		var es []journal.Entry
		for i := range uint64(each) {
			es = append(es, entryOf(batch(fmt.Sprint("a", i), 10*n, 10*n+9)))
		}
		journalled(t, w, es...)
	}
	must(t, w.Close(bg))
	cfg := following()
	cfg.Journal.Polling.Interval, cfg.Journal.IdleInterval = time.Hour, time.Hour
	cfg.Journal.Folding.Interval = time.Hour
	r := start(t, cfg, s)
	eventually(t, "the journal is read", func() bool { _, _, ready := r.journal.status(); return ready })
	if set, _, _ := r.journal.status(); set.Boots() != each {
		t.Errorf("%d boots", set.Boots())
	}
	if n := s.Of("get", layout.JournalPrefix); n > 2*segments+10 {
		t.Errorf("%d reads of the journal for %d segments", n, segments)
	}
	if n := s.Of("get", layout.AcceptedPrefix) + s.Of("get", layout.RawBlobsPrefix); n != 0 {
		t.Errorf("%d manifests and frames were read for %d entries", n, segments*each)
	}
}

// A hint brings a segment before the next poll, and goes on to watchers.
func TestHintsAtTheJournal(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	cfg := following()
	cfg.Journal.Polling.Interval, cfg.Journal.IdleInterval = time.Hour, time.Hour
	r := start(t, cfg, s)
	eventually(t, "the journal is read", func() bool { _, _, ready := r.journal.status(); return ready })
	conn, err := rpc.Dial(r.GRPCAddr(), rpc.ClientConfig{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	c := journalv1.NewJournalServiceClient(conn)
	watch, err := c.WatchJournal(bg, &journalv1.WatchJournalRequest{})
	must(t, err)
	if m, err := watch.Recv(); err != nil || m.GetPosition() != "" {
		t.Fatal(m, err)
	}
	hints, err := c.NotifyJournal(bg)
	must(t, err)
	w := collector(t, s, journal.RoleCollector)
	for i := range uint64(3) {
		at := journalled(t, w, entryOf(batch("a", 10*i, 10*i+9)))
		must(t, hints.Send(&journalv1.NotifyJournalRequest{Position: at.String()}))
		m, err := watch.Recv()
		must(t, err)
		if m.GetPosition() != at.String() {
			t.Errorf("%s, want %s", m.GetPosition(), at)
		}
	}
	res, err := hints.CloseAndRecv()
	if err != nil || res.GetQueued() != 3 {
		t.Errorf("%v, %v", res, err)
	}
	bad, err := c.NotifyJournal(bg)
	must(t, err)
	must(t, bad.Send(&journalv1.NotifyJournalRequest{Position: "somewhere"}))
	if _, err := bad.CloseAndRecv(); rpc.Reason(err) != rpc.ReasonInvalidArgument {
		t.Errorf("%v", err)
	}
}

// TestACollectorWithoutNewsIsConnected: polls are rare while a collector is connected, though it has nothing to tell.
func TestACollectorWithoutNewsIsConnected(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	r := start(t, following(), s)
	conn, err := rpc.Dial(r.GRPCAddr(), rpc.ClientConfig{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	stream, err := journalv1.NewJournalServiceClient(conn).NotifyJournal(bg)
	must(t, err)
	eventually(t, "the collector is connected", func() bool { return r.journal.hinting.Load() == 1 })
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Error(err)
	}
	eventually(t, "it is gone", func() bool { return r.journal.hinting.Load() == 0 })
}
