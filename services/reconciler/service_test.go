package reconciler

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

func (r *running) get(path string) (int, string) {
	r.t.Helper()
	res, err := httpClient.Get(r.url(path))
	must(r.t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(r.t, err)
	return res.StatusCode, string(b)
}

// A batch of the journal is indexed, counted and shown.
func TestJournalToLedgers(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	r := start(t, quiet(), s)
	c := r.client()
	eventually(t, "ready", func() bool { code, _ := r.get("/-/ready"); return code == 200 })
	m := acceptBatch(t, s, batch("a", 1, 10))
	eventually(t, "indexed", func() bool { return indexed(t, s, m) })
	if diff := cmp.Diff(wanted(m), derived(t, s)); diff != "" {
		t.Error(diff)
	}
	eventually(t, "counted", func() bool { return r.ledgerOf(c, "a").BatchCount == 1 })
	l := r.ledgerOf(c, "a")
	if l.FirstSeq != 1 || l.LastSeq != 10 || l.AcceptedThrough != 10 || l.RecordCount != 10 || l.LastAcceptedAtUnixNs != m.AcceptedAt {
		t.Errorf("%v", l)
	}
	code, body := r.get("/v1/ledgers?agent_id=a")
	if code != 200 || !strings.Contains(body, `"accepted_through":"10"`) {
		t.Errorf("%d %s", code, body)
	}
	eventually(t, "status", func() bool {
		code, body = r.get("/v1/status")
		return code == 200 && strings.Contains(body, `"reconciled":"1"`)
	})
	if _, body = r.get("/metrics"); !strings.Contains(body, `lightmetrics_reconciler_lag_seconds_count 1`) ||
		!strings.Contains(body, `lightmetrics_reconciler_items_total{source="journal"} 1`) {
		t.Errorf("metrics: %s", body)
	}
}

// With derived keys in the journal's files a batch costs no request, and no key.
func TestDerivedKeysInSegments(t *testing.T) {
	s := storetest.Count(newStore())
	must(t, journaltest.Complete(bg, s, testAuthority))
	cfg := quiet()
	cfg.Derived = DerivedSegments
	r := start(t, cfg, s)
	for i := range uint64(20) {
		acceptBatch(t, s, batch("a", i*10, i*10+9))
	}
	eventually(t, "counted", func() bool { return r.ledgerOf(r.client(), "a").BatchCount == 20 })
	must(t, r.stop())
	d := derived(t, s)
	if n := s.Of("get", layout.AcceptedPrefix) + s.Of("get", layout.RawBlobsPrefix); len(d) != 0 || n != 0 {
		t.Errorf("%d derived keys, %d reads of manifests and frames", len(d), n)
	}
}

// The setting may change at any restart: an audit writes the keys of what was accepted under the other one.
func TestDerivedKeysAreSwitched(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority))
	var ms []accept.Manifest
	counted := func(r *running) {
		eventually(t, "counted", func() bool { return r.ledgerOf(r.client(), "a").BatchCount == uint64(len(ms)) })
	}
	next := func() accept.Manifest {
		n := uint64(len(ms))
		ms = append(ms, acceptBatch(t, s, batch("a", n*10, n*10+9)))
		return ms[n]
	}
	cfg := quiet()
	cfg.Derived = DerivedSegments
	r := start(t, cfg, s)
	next()
	counted(r)
	must(t, r.stop())

	cfg.Derived = DerivedObjects
	r = start(t, cfg, s)
	since := next()
	eventually(t, "keys from now on", func() bool { return indexed(t, s, since) })
	must(t, r.stop())

	cfg.Audit.AtStart = true
	r = start(t, cfg, s)
	eventually(t, "keys of the past", func() bool { return cmp.Equal(wanted(ms...), derived(t, s)) })
	must(t, r.stop())

	had := wanted(ms...)
	cfg.Derived = DerivedSegments
	r = start(t, cfg, s)
	next()
	counted(r)
	must(t, r.stop())
	if diff := cmp.Diff(had, derived(t, s)); diff != "" {
		t.Error(diff)
	}
}

// What is new is found at the start and later, and complete_through follows.
func TestWhatIsNewIsFound(t *testing.T) {
	s := newStore()
	var ms []accept.Manifest
	for i := range uint64(20) {
		ms = append(ms, acceptBatch(t, s, batch(fmt.Sprint("agent", i%3), i*10, i*10+9)))
	}
	r := start(t, busy(), s)
	eventually(t, "indexed", func() bool { return indexed(t, s, ms...) })
	ms = append(ms, acceptBatch(t, s, batch("agent0", 1000, 1009)), acceptBatch(t, s, batch("new", 0, 9)))
	eventually(t, "indexed", func() bool { return indexed(t, s, ms...) })
	if diff := cmp.Diff(wanted(ms...), derived(t, s)); diff != "" {
		t.Error(diff)
	}
	after := time.Now()
	eventually(t, "complete through the last", func() bool {
		st, err := server{s: r.Service}.GetStatus(bg, nil)
		must(t, err)
		return st.CompleteThroughUnixNs >= after.Truncate(time.Second).UnixNano()
	})
}

// Batches that stand in several runs, and a store that fails all the time: the end is the same.
func TestDuplicatesOverAFailingStore(t *testing.T) {
	s := newStore()
	f := newFlaky(t, s, 10)
	r := start(t, busy(), f)
	var ms []accept.Manifest
	for i := range uint64(100) {
		m := acceptBatch(t, s, batch(fmt.Sprint("agent", i%4), i*10, i*10+9))
		ms = append(ms, m)
		if i%3 == 0 {
			must(t, journaltest.Append(bg, s, testAuthority, m.Entry(journal.Duplicate)))
		}
	}
	eventually(t, "indexed", func() bool { return indexed(t, s, ms...) })
	c := r.client()
	for i := range 4 {
		eventually(t, "ledger", func() bool { return r.ledgerOf(c, fmt.Sprint("agent", i)).BatchCount == 25 })
	}
	eventually(t, "a listing failed", func() bool { return f.lists.Load() > 0 })
	must(t, r.stop())
	if diff := cmp.Diff(wanted(ms...), derived(t, s)); diff != "" {
		t.Error(diff)
	}
}

// A failed listing is never an empty one: nothing is complete, and the service is not ready.
func TestListFailure(t *testing.T) {
	s := newStore()
	m := acceptBatch(t, s, batch("a", 0, 9))
	f := newFlaky(t, s, 100)
	r := start(t, busy(), f)
	eventually(t, "sweeps fail", func() bool {
		_, b := r.get("/metrics")
		return strings.Contains(b, `audits_total{kind="repair_sweep",result="failed"}`)
	})
	if code, _ := r.get("/-/ready"); code != 503 {
		t.Errorf("ready: %d", code)
	}
	if code, _ := r.get("/-/healthy"); code != 200 {
		t.Errorf("healthy: %d", code)
	}
	if st, _ := (server{s: r.Service}).GetStatus(bg, nil); st.CompleteThroughUnixNs != 0 || st.GetJournal().GetPollError() == "" {
		t.Errorf("complete through %d, journal %v", st.CompleteThroughUnixNs, st.GetJournal())
	}
	if _, err := r.client().ListLedgers(bg, &reconcilerv1.ListLedgersRequest{}); rpc.Reason(err) != rpc.ReasonNotReady {
		t.Errorf("ledgers: %v", err)
	}
	f.on.Store(false)
	eventually(t, "indexed", func() bool { return indexed(t, s, m) })
	eventually(t, "ready", func() bool { code, _ := r.get("/-/ready"); return code == 200 })
}

// Two at once, over the same store.
func TestTwoReconcilers(t *testing.T) {
	s := newStore()
	a, b := start(t, busy(), s), start(t, busy(), s)
	var ms []accept.Manifest
	for i := range uint64(200) {
		m := acceptBatch(t, s, batch(fmt.Sprint("agent", i%2), i/2*10, i/2*10+9))
		ms = append(ms, m)
	}
	eventually(t, "indexed", func() bool { return indexed(t, s, ms...) })
	for _, r := range []*running{a, b} {
		c := r.client()
		for i := range 2 {
			eventually(t, "ledger", func() bool {
				l := r.ledgerOf(c, fmt.Sprint("agent", i))
				return l.BatchCount == 100 && l.RecordCount == 1000 && len(l.Gaps) == 0 && len(l.Overlaps) == 0
			})
		}
	}
	must(t, a.stop())
	must(t, b.stop())
	if diff := cmp.Diff(wanted(ms...), derived(t, s)); diff != "" {
		t.Error(diff)
	}
	for i := range 2 {
		if n := saved(t, s, fmt.Sprint("agent", i)); n != 1000 {
			t.Errorf("the checkpoint has %d records", n)
		}
	}
}

// A restart reads the checkpoint, and of the journal only what came after it.
func TestRestartListsNoHistory(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority)) // so no full audit is due
	for i := range uint64(300) {
		acceptBatch(t, s, batch("a", i*10, i*10+9))
	}
	cfg := quiet()
	cfg.Journal.Folding.Interval, cfg.Journal.Retention = 5*time.Millisecond, 0
	r := start(t, cfg, s)
	c := r.client()
	eventually(t, "ledger", func() bool { return r.ledgerOf(c, "a").BatchCount == 300 })
	eventually(t, "saved", func() bool { return saved(t, s, "a") == 3000 })
	eventually(t, "folded, and the checkpoint says so", func() bool {
		head, _, err := journal.ReadHead(bg, s)
		must(t, err)
		l, err := ledgers.LoadCheckpoint(bg, s, nil)
		must(t, err)
		return count(t, s, layout.JournalOpenPrefix) == 0 && l.Positions.Head == head.Number
	})
	must(t, r.stop())

	counted := storetest.Count(s)
	r = start(t, quiet(), counted)
	c = r.client()
	eventually(t, "ledger", func() bool { return r.ledgerOf(c, "a").BatchCount == 300 })
	if n := counted.Of("list", layout.AcceptedPrefix) + counted.Of("get", layout.AcceptedPrefix) + counted.Of("list", layout.BootsPrefix); n > 100 {
		t.Errorf("%d requests for manifests and boots of 300 batches", n)
	}
	a := &audit.Auditor{Store: counted, Rand: rand.Reader, Authority: testAuthority, By: "r"}
	if begun, err := r.journal.beginAudits(bg, a, nil, nil, true); err != nil || len(begun) > 0 {
		t.Errorf("a full audit is due at the start: %v", err)
	}
	if n := counted.Of("get", layout.JournalPrefix); n > 20 {
		t.Errorf("%d reads of the journal, of which the checkpoint has everything", n)
	}
}

// More than the queue holds waits in the journal, and what was given up is read again.
func TestSmallQueue(t *testing.T) {
	s := newStore()
	f := newFlaky(t, s, 100) // nothing gets through: the queue fills
	f.on.Store(false)
	cfg := quiet()
	cfg.Queue.Capacity, cfg.Queue.MaxRetries = 4, 2
	r := start(t, cfg, f)
	eventually(t, "ready", func() bool { code, _ := r.get("/-/ready"); return code == 200 })
	var ms []accept.Manifest
	for i := range uint64(50) {
		ms = append(ms, acceptBatch(t, s, batch("a", i*10, i*10+9)))
		f.on.Store(i%10 < 5)
	}
	f.on.Store(false)
	eventually(t, "indexed", func() bool { return indexed(t, s, ms...) })
	if n, _ := r.queue.length(); n > cfg.Queue.Capacity {
		t.Errorf("%d manifests in a queue of %d", n, cfg.Queue.Capacity)
	}
}

// The scrub finds a frame that is gone, also where nothing else reads the manifest.
func TestRepairRecordOpensAndHeals(t *testing.T) {
	for _, where := range []string{DerivedSegments, DerivedObjects} {
		s := newStore()
		m := acceptBatch(t, s, batch("a", 0, 9))
		_, frame := manifest(m.Identity)
		cfg := busy()
		cfg.Derived = where
		r := start(t, cfg, s)
		eventually(t, "counted", func() bool { return r.ledgerOf(r.client(), "a").BatchCount == 1 })
		must(t, s.Delete(bg, m.RawBlobKey))
		repair := layout.Repair(m.Identity)
		eventually(t, "repair record", func() bool { _, err := s.Head(bg, repair); return err == nil })
		eventually(t, "status says so", func() bool {
			st, err := server{s: r.Service}.GetStatus(bg, nil)
			return err == nil && st.OpenRepairs == 1
		})
		create(t, s, layout.Blob(m.FrameSHA256, 1), frame)
		eventually(t, "record removed", func() bool { _, err := s.Head(bg, repair); return err != nil })
		eventually(t, "status says so", func() bool {
			st, err := server{s: r.Service}.GetStatus(bg, nil)
			return err == nil && st.OpenRepairs == 0
		})
	}
}

// Bad, foreign and unknown objects are reported, and hold up nothing.
func TestBadManifestsHoldUpNothing(t *testing.T) {
	s := newStore()
	bad := batch("a", 100, 109)
	create(t, s, layout.Accepted(bad), []byte("{}"))
	foreign, _ := manifest(batch("a", 200, 209))
	foreign.AuthorityID = "another"
	create(t, s, layout.Accepted(foreign.Identity), foreign.Marshal())
	create(t, s, layout.AcceptedBoot(bad.BootOf())+"stray.txt", nil)
	m := acceptBatch(t, s, batch("a", 300, 309))
	r := start(t, busy(), s)
	eventually(t, "indexed", func() bool { return indexed(t, s, m) })
	eventually(t, "complete", func() bool { ok, err := journal.IsComplete(bg, s); return err == nil && ok })
	eventually(t, "reported", func() bool {
		st, err := server{s: r.Service}.GetStatus(bg, nil)
		return err == nil && st.OpenRepairs == 2
	})
	for _, id := range []identity.Batch{bad, foreign.Identity} {
		if _, err := s.Head(bg, layout.Repair(id)); err != nil {
			t.Error(err)
		}
	}
	if l := r.ledgerOf(r.client(), "a"); l.BatchCount != 1 {
		t.Errorf("bad manifests were counted: %v", l)
	}
	if _, body := r.get("/metrics"); !strings.Contains(body, `foreign_keys_total{family="accepted"} 1`) {
		t.Errorf("stray keys were not reported: %s", body)
	}
}

func TestFullAuditFindsAndRepairs(t *testing.T) {
	s := newStore()
	var ms []accept.Manifest
	for i := range uint64(600) {
		ms = append(ms, acceptBatch(t, s, batch("a", i*10, i*10+9)))
	}
	first := quiet()
	first.Journal.Folding.Interval = 10 * time.Millisecond
	r := start(t, first, s)
	c := r.client()
	eventually(t, "ledger", func() bool { return r.ledgerOf(c, "a").BatchCount == 600 })
	// A restart reads again what is not folded, and would write the lost key by itself.
	eventually(t, "folded", func() bool {
		head, _, err := journal.ReadHead(bg, s)
		must(t, err)
		n := uint64(0)
		for _, f := range head.Files {
			n += f.Entries
		}
		return n == 600
	})
	// An audit that a stop interrupts goes on where it was, and would not list again what comes now.
	eventually(t, "audited", func() bool { ok, err := journal.IsComplete(bg, s); return err == nil && ok })
	// What the checkpoint has is not derived again at the next start, which goes through the files after the head that it
	// names.
	eventually(t, "saved", func() bool {
		head, _, err := journal.ReadHead(bg, s)
		must(t, err)
		l, err := ledgers.LoadCheckpoint(bg, s, nil)
		must(t, err)
		return saved(t, s, "a") == 6000 && l.Positions.Head == head.Number
	})
	must(t, r.stop())
	// A batch that its collector did not journal, over the newest ones; one without a boot record; a lost
	// derived key; a quarantine record.
	ms = append(ms, plantBatch(t, s, batch("a", 5985, 5994)))
	orphan, frame := manifest(batch("no boot record", 0, 9))
	create(t, s, orphan.RawBlobKey, frame)
	create(t, s, layout.Accepted(orphan.Identity), orphan.Marshal())
	ms = append(ms, orphan)
	must(t, s.Delete(bg, layout.AcceptedByBlob(ms[3].FrameSHA256, ms[3].Identity)))
	loser := []byte("loser")
	d := identity.Sum(loser)
	create(t, s, layout.Blob(d, 0), loser)
	rec := accept.ConflictRecord{AuthorityID: testAuthority, Identity: ms[0].Identity, AcceptedBlobKey: ms[0].RawBlobKey,
		AcceptedSHA256: ms[0].FrameSHA256, SubmittedBlobKey: layout.Blob(d, 0), SubmittedSHA256: d,
		AcceptedManifestKey: layout.Accepted(ms[0].Identity), ObservedAt: 1, CollectorID: "c"}
	create(t, s, layout.Quarantine(rec.Identity, d), rec.Marshal())

	cfg := quiet()
	cfg.Audit.AtStart = true
	r = start(t, cfg, s)
	c = r.client()
	eventually(t, "indexed", func() bool { return indexed(t, s, ms...) })
	eventually(t, "overlap", func() bool {
		l := r.ledgerOf(c, "a")
		return l.BatchCount == 601 && l.RecordCount == 6000 && len(l.Overlaps) == 1 && l.Overlaps[0].Start == 5985 && l.Overlaps[0].End == 5994
	})
	eventually(t, "quarantine-by-blob", func() bool {
		_, err := s.Head(bg, layout.QuarantineByBlob(d, rec.Identity))
		return err == nil
	})
	eventually(t, "repairs counted", func() bool {
		st, err := server{s: r.Service}.GetStatus(bg, nil)
		return err == nil && st.Repairs["accepted_by_blob"] >= 1
	})
}

func TestListLedgersPages(t *testing.T) {
	s := newStore()
	for i := range 25 {
		acceptBatch(t, s, batch(fmt.Sprintf("agent-%02d", i), 0, 9))
	}
	r := start(t, quiet(), s)
	c := r.client()
	eventually(t, "all counted", func() bool { return r.ledgerOf(c, "agent-24").BatchCount == 1 && r.reconciled.Load() >= 25 })
	var got []string
	req := &reconcilerv1.ListLedgersRequest{PageSize: 10}
	for pages := 0; ; pages++ {
		res, err := c.ListLedgers(bg, req)
		must(t, err)
		for _, l := range res.Ledgers {
			got = append(got, l.AgentId)
		}
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			if pages != 2 {
				t.Errorf("%d pages, want 3", pages+1)
			}
			break
		}
	}
	if len(got) != 25 || got[0] != "agent-00" || got[24] != "agent-24" {
		t.Errorf("%v", got)
	}
	for _, bad := range []*reconcilerv1.ListLedgersRequest{{PageSize: -1}, {PageToken: "x"}, {PageToken: "{}"}} {
		if _, err := c.ListLedgers(bg, bad); rpc.Reason(err) != rpc.ReasonInvalidArgument {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestWatcherLags(t *testing.T) {
	h := newRelay(1, 1)
	w, err := h.watch() // one that never reads
	must(t, err)
	if _, err := h.watch(); err != errManyWatchers {
		t.Errorf("second watcher: %v", err)
	}
	lagged := 0
	for i := range uint64(3) {
		lagged += h.publish(journal.Position{Segment: i})
	}
	if h.count() != 0 || lagged != 1 {
		t.Errorf("%d watchers, %d lagged", h.count(), lagged)
	}
	if p, ok := <-w.ch; !ok || p.Segment != 0 {
		t.Error("what was buffered is lost")
	}
	if _, ok := <-w.ch; ok || w.err != errLagged {
		t.Errorf("not told LAGGED: %v", w.err)
	}
}

// The scrub hashes bytes: a store whose checksum says that all is well does not heal, or hide, a frame that has rotted.
func TestRottenBytesAreFound(t *testing.T) {
	s := &metadataOnly{Store: newStore()}
	m := acceptBatch(t, s, batch("a", 0, 9))
	cfg := busy()
	cfg.Derived = DerivedSegments
	r := start(t, cfg, s)
	eventually(t, "hashed", func() bool {
		st, _ := server{s: r.Service}.GetStatus(bg, nil)
		return st.GetScrub().GetCheckedBytes() > 0
	})
	s.rotten.Store(&m.RawBlobKey)
	repair := layout.Repair(m.Identity)
	eventually(t, "repair record", func() bool { _, err := s.Head(bg, repair); return err == nil })
	eventually(t, "counted", func() bool {
		st, _ := server{s: r.Service}.GetStatus(bg, nil)
		return st.GetOpenRepairs() == 1 && r.scrubber.Suspects() > 0 && st.GetScrub().GetHashesBytes() && st.GetScrub().GetFrames() == 1
	})
	s.rotten.Store(new(string))
	eventually(t, "record removed", func() bool { _, err := s.Head(bg, repair); return err != nil })
}

// metadataOnly answers HEAD by what it noted of an object, and GET with what the disk has.
type metadataOnly struct {
	objstore.Store
	rotten atomic.Pointer[string] // key
}

func (s *metadataOnly) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	b, i, err := s.Store.Get(ctx, key, o)
	if k := s.rotten.Load(); err == nil && k != nil && *k == key {
		b = bytes.Clone(b)
		b[0] ^= 1
	}
	return b, i, err
}
