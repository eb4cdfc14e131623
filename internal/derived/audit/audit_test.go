package audit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const authority = "authority"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, s objstore.Creator, key string, b []byte) {
	t.Helper()
	_, err := s.Create(context.Background(), key, b, objstore.PutOptions{})
	must(t, err)
}

func manifest(agent string, n uint64, of string) accept.Manifest {
	id := identity.Batch{Agent: agent, Boot: "boot", SeqStart: n * 10, SeqEnd: n*10 + 9}
	d := identity.Sum([]byte(id.String()))
	return accept.Manifest{
		AuthorityID: of, Identity: id, FrameSHA256: d, FrameBytes: 9, RawBlobKey: layout.Blob(d, 0),
		AcceptedAt: int64(1e18 + n), CollectorID: "c1", WireVersion: 1, FrameVersion: 1,
		AttemptID: fmt.Sprintf("%032x", n), RecordCount: 10, MinTime: 1, MaxTime: 2,
	}
}

func plant(t testing.TB, s objstore.Creator, agent string, n uint64) accept.Manifest {
	m := manifest(agent, n, authority)
	put(t, s, layout.Accepted(m.Identity), m.Marshal())
	return m
}

func conflict(t testing.TB, s objstore.Creator, agent string, n uint64) {
	m := manifest(agent, n, authority)
	d := identity.Sum(fmt.Appendf(nil, "other %s %d", agent, n))
	c := accept.ConflictRecord{
		AuthorityID: authority, Identity: m.Identity, SubmittedSHA256: d, SubmittedBlobKey: layout.Blob(d, 0),
		AcceptedSHA256: m.FrameSHA256, AcceptedBlobKey: m.RawBlobKey, AcceptedManifestKey: layout.Accepted(m.Identity), ObservedAt: 5, CollectorID: "c1",
	}
	put(t, s, layout.Quarantine(m.Identity, d), c.Marshal())
}

func auditor(t testing.TB, s Store, seed byte) *Auditor {
	t.Helper()
	rnd := rand.NewChaCha8([32]byte{seed})
	w, err := journal.NewWriter(journal.WriterConfig{
		Store: s, Rand: rnd, Clock: func() int64 { return 1 },
		Opening: journal.Opening{Writer: fmt.Sprint("auditor ", seed), Role: journal.RoleReconciler, Authority: authority},
	})
	must(t, err)
	return &Auditor{Store: s, Rand: rnd, Authority: authority, By: fmt.Sprint("r", seed), Writer: w}
}

// resume goes on with the newest full audit if it has not finished, else it begins one; it works until nothing is left.
func resume(ctx context.Context, a *Auditor) (Stored, error) {
	history, err := History(ctx, a.Store, Full, 1)
	if err != nil {
		return Stored{}, err
	}
	var r Stored
	if len(history) > 0 && !history[0].Finished() {
		r = history[0]
	} else if r, err = a.Begin(ctx, 0); err != nil {
		return r, err
	}
	_, err = a.Work(ctx, &r)
	return r, err
}

// journalled reads everything that the journal has: how often each batch, and each conflict, stands in it.
func journalled(t testing.TB, s journal.FollowerStore) (batches, conflicts map[identity.Batch]int) {
	t.Helper()
	batches, conflicts = map[identity.Batch]int{}, map[identity.Batch]int{}
	count := func(es []journal.Entry) error {
		for i := range es {
			if es[i].Outcome.Conflict() {
				conflicts[es[i].ID]++
			} else {
				batches[es[i].ID]++
			}
		}
		return nil
	}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: authority,
		Segment: func(_ context.Context, seg *journal.Segment) error { return count(seg.Entries) },
		Folded:  func(_ context.Context, es []journal.Entry) error { return count(es) },
	})
	must(t, err)
	_, err = f.Poll(context.Background())
	must(t, err)
	return batches, conflicts
}

// counting counts requests, and fails all from a number on.
type counting struct {
	objstore.Store
	calls, accepted, lists int
	failFrom               int
	after                  bool // the request that fails first is applied
}

func (c *counting) fails() (bool, bool) {
	c.calls++
	return c.failFrom > 0 && c.calls >= c.failFrom, c.after && c.calls == c.failFrom
}

var errKilled = errors.New("killed")

func (c *counting) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if f, _ := c.fails(); f {
		return nil, objstore.Info{}, errKilled
	}
	if strings.HasPrefix(key, layout.AcceptedPrefix) || strings.HasPrefix(key, layout.QuarantinePrefix) {
		c.accepted++
	}
	return c.Store.Get(ctx, key, o)
}

func (c *counting) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if f, _ := c.fails(); f {
		return objstore.Page{}, errKilled
	}
	if strings.HasPrefix(o.Prefix, layout.AcceptedPrefix) {
		c.lists++
	}
	return c.Store.List(ctx, o)
}

func (c *counting) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	f, applied := c.fails()
	if applied {
		_, _ = c.Store.Create(ctx, key, b, o)
	}
	if f {
		return objstore.Info{}, errKilled
	}
	return c.Store.Create(ctx, key, b, o)
}

func (c *counting) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	f, applied := c.fails()
	if applied {
		_, _ = c.Store.Replace(ctx, key, b, etag, o)
	}
	if f {
		return objstore.Info{}, errKilled
	}
	return c.Store.Replace(ctx, key, b, etag, o)
}

// former is a bucket of the layout before the journal.
func former(t testing.TB) (s *mem.Store, batches, conflicts int) { return formerAt(t, time.Now) }

func formerAt(t testing.TB, clock func() time.Time) (s *mem.Store, batches, conflicts int) {
	s = mem.New(clock)
	for a := range 7 {
		// One name is the beginning of another.
		agent := strings.Repeat("host", 1+a%2) + fmt.Sprint(a)
		for n := range uint64(5) {
			plant(t, s, agent, n)
			batches++
		}
		conflict(t, s, agent, 1)
		conflicts++
	}
	return s, batches, conflicts
}

func check(t testing.TB, s journal.FollowerStore, batches, conflicts int) {
	t.Helper()
	b, c := journalled(t, s)
	if len(b) != batches || len(c) != conflicts {
		t.Fatalf("%d batches and %d conflicts in the journal, want %d and %d", len(b), len(c), batches, conflicts)
	}
}

func TestFirstAuditOfAFormerBucket(t *testing.T) {
	ctx := t.Context()
	s, batches, conflicts := former(t)
	put(t, s, layout.AcceptedPrefix+"agent=zz/what.json", nil)
	bad := manifest("x", 1, authority)
	put(t, s, layout.Accepted(bad.Identity), []byte("damaged"))
	foreign := manifest("x", 2, "another")
	put(t, s, layout.Accepted(foreign.Identity), foreign.Marshal())
	store := &counting{Store: s}
	a := auditor(t, store, 1)
	var unusable []string
	a.Unusable = func(key string) { unusable = append(unusable, key) }
	r, err := resume(ctx, a)
	must(t, err)
	check(t, s, batches, conflicts)
	if !r.Finished() || r.Journalled != uint64(batches+conflicts) || r.Manifests != uint64(batches)+2 || r.Conflicts != uint64(conflicts) ||
		r.Unusable != 2 || len(unusable) != 2 || r.Foreign != 1 {
		t.Errorf("%+v", r.Record)
	}
	begun, err := journal.IsComplete(ctx, s)
	if err != nil || !begun {
		t.Errorf("the journal is not complete: %v", err)
	}
	// What the journal has costs no request but the listing.
	*store = counting{Store: s}
	again, err := resume(ctx, auditor(t, store, 2))
	must(t, err)
	if store.accepted != 2 || store.lists != 1 {
		t.Errorf("%d records read and %d pages listed, want the two that can't be used and 1", store.accepted, store.lists)
	}
	if again.Key == r.Key || again.Journalled != 0 || again.Digest != r.Digest {
		t.Errorf("%+v", again.Record)
	}
	history, err := History(ctx, s, Full, 10)
	if err != nil || len(history) != 2 || Due(history, time.Unix(again.StartedAt, 0), time.Hour) || !Due(history, time.Unix(again.StartedAt+3600, 0), time.Hour) {
		t.Errorf("%d in the history, %v", len(history), err)
	}
}

// A batch that is in the journal by its collector gets no second entry.
func TestWhatIsJournalledStays(t *testing.T) {
	ctx := t.Context()
	s, batches, conflicts := former(t)
	m := plant(t, s, "live", 1)
	must(t, journaltest.Append(ctx, s, authority, m.Entry(journal.Accepted)))
	_, err := resume(ctx, auditor(t, s, 1))
	must(t, err)
	check(t, s, batches+1, conflicts)
	if b, _ := journalled(t, s); b[m.Identity] != 1 {
		t.Errorf("%d entries of a batch that its collector had journalled", b[m.Identity])
	}
}

// Killed before and after every request, an audit goes on in the next process, and finds as much.
func TestKilledAuditGoesOn(t *testing.T) {
	ctx := t.Context()
	want := Record{}
	for n := 1; ; n++ {
		for _, after := range []bool{false, true} {
			s, batches, conflicts := former(t)
			store := &counting{Store: s, failFrom: n, after: after}
			a := auditor(t, store, 1)
			a.MaxInMemory = 12
			a.Shards = 3
			r, err := resume(ctx, a)
			if err == nil {
				if n < 10 {
					t.Errorf("an audit with %d requests", n)
				}
				return
			}
			begun, _ := journal.IsComplete(ctx, s)
			if b, c := journalled(t, s); begun && (len(b) != batches || len(c) != conflicts) {
				t.Fatalf("request %d: the journal is said to be complete", n)
			}
			b := auditor(t, s, 2)
			b.MaxInMemory = 12
			b.Shards = 3
			r, err = resume(ctx, b)
			must(t, err)
			check(t, s, batches, conflicts)
			if want.Digest.IsZero() {
				want = r.Record
			}
			if r.Digest != want.Digest || r.Manifests != want.Manifests || r.Conflicts != want.Conflicts {
				t.Errorf("request %d: %+v", n, r.Record)
			}
			if begun, err := journal.IsComplete(ctx, s); err != nil || !begun {
				t.Errorf("request %d: the journal is not complete: %v", n, err)
			}
		}
	}
}

// Two reconcilers that take one shard for dead: one goes on, the other learns that, and neither lists it twice for the sums.
func TestTwoAuditorsOfOneShard(t *testing.T) {
	ctx := t.Context()
	s, batches, conflicts := former(t)
	first := auditor(t, s, 1)
	r, err := first.Begin(ctx, 0)
	must(t, err)
	done := false
	first.Pace = func() func(context.Context) error {
		n := 0
		return func(context.Context) error {
			if n++; n == 6 {
				second := r
				done, err = auditor(t, s, 2).Work(ctx, &second)
				must(t, err)
			}
			return nil
		}
	}()
	mine := r
	if ok, err := first.Work(ctx, &mine); err != nil || ok || !done {
		t.Errorf("%v, %v; the second: %v", ok, err, done)
	}
	check(t, s, batches, conflicts)
	got, err := Read(ctx, s, r.Key)
	if err != nil || !got.Finished() || got.Manifests != uint64(batches) || got.Conflicts != uint64(conflicts) {
		t.Errorf("%+v, %v", got.Record, err)
	}
}

// While a shard's lease lasts nobody else takes it, and the others are taken. Each shard is listed by one process, and the sums
// are those of one audit without shards.
func TestShardsAreSharedOut(t *testing.T) {
	ctx := t.Context()
	at := time.Unix(1_700_000_000, 0)
	s, batches, conflicts := formerAt(t, func() time.Time { return at })
	a, b := auditor(t, s, 1), auditor(t, s, 2)
	a.Shards, b.Shards = 4, 4
	a.Lease, b.Lease = time.Hour, time.Hour
	r, err := a.Begin(ctx, 0)
	must(t, err)
	if r.ShardCount() != 4 {
		t.Fatalf("%d shards", r.ShardCount())
	}
	other := r
	a.claim = "first"
	for i := range 2 {
		_, mine, err := a.take(ctx, &r, layout.AuditShard(r.Key, i), at)
		if err != nil || !mine {
			t.Fatal(mine, err)
		}
	}
	if done, err := b.Work(ctx, &other); done || err != nil {
		t.Fatalf("%v, %v: two shards are the first one's", done, err)
	}
	shards, err := Progress(ctx, s, &r)
	must(t, err)
	for i, sh := range shards {
		if sh.Finished() != (i >= 2) || i >= 2 && sh.By != "r2" || i < 2 && sh.By != "r1" {
			t.Errorf("shard %d: %+v", i, sh.Record)
		}
	}
	// The first one is killed. Its shards are taken when their leases are over.
	at = at.Add(2 * time.Hour)
	if done, err := b.Work(ctx, &other); !done || err != nil {
		t.Fatal(done, err)
	}
	check(t, s, batches, conflicts)
	whole, err := resume(ctx, auditor(t, s, 3))
	must(t, err)
	if whole.ShardCount() != 1 || whole.Digest != other.Digest || whole.Manifests != other.Manifests || whole.Conflicts != other.Conflicts {
		t.Errorf("%+v\n%+v", whole.Record, other.Record)
	}
	if b, c := journalled(t, s); b[manifest("host0", 1, authority).Identity] != 1 || len(c) != conflicts {
		t.Error("entries were written twice")
	}
}

// A rolling audit begins its shards one after the other over its time.
func TestShardsBeginOverTheirTime(t *testing.T) {
	ctx := t.Context()
	at := time.Unix(1_700_000_000, 0)
	s, batches, _ := formerAt(t, func() time.Time { return at })
	store := &counting{Store: s}
	a := auditor(t, store, 1)
	a.Shards = 7
	r, err := a.Begin(ctx, 7*24*time.Hour)
	must(t, err)
	for day := range 7 {
		for range 3 {
			store.lists = 0
			done, err := a.Work(ctx, &r)
			if err != nil || done != (day == 6) {
				t.Fatal(day, done, err)
			}
			at = at.Add(time.Hour)
		}
		if got, err := Progress(ctx, s, &r); err != nil || day < 6 && (!got[day].Finished() || got[day+1].StartedAt != 0) {
			t.Errorf("day %d: %v, %v", day, got[day], err)
		}
		if store.lists != 0 {
			t.Errorf("day %d: %d pages for shards that have finished", day, store.lists)
		}
		at = at.Add(21 * time.Hour)
	}
	if r.Manifests != uint64(batches) || r.Journalled == 0 {
		t.Errorf("%+v", r.Record)
	}
}

// A collector that writes its entry while the audit runs is read before anything is written for it.
func TestLateEntryIsNotDoubled(t *testing.T) {
	ctx := t.Context()
	s, _, _ := former(t)
	m := plant(t, s, "live", 1)
	a := auditor(t, onList{s, layout.AcceptedPrefix, func() { must(t, journaltest.Append(ctx, s, authority, m.Entry(journal.Accepted))) }}, 1)
	r, err := a.Begin(ctx, 0)
	must(t, err)
	_, err = a.Work(ctx, &r)
	must(t, err)
	if b, _ := journalled(t, s); b[m.Identity] != 1 {
		t.Errorf("%d entries of a batch that its collector journals during the audit", b[m.Identity])
	}
}

// onList calls do before each listing of a prefix.
type onList struct {
	objstore.Store
	prefix string
	do     func()
}

func (o onList) List(ctx context.Context, l objstore.ListOptions) (objstore.Page, error) {
	if l.Prefix == o.prefix {
		o.do()
	}
	return o.Store.List(ctx, l)
}

// As long as one shard has not finished, the journal is not called complete, whoever adds up.
func TestFinishWaitsForEveryShard(t *testing.T) {
	ctx := t.Context()
	s, _, _ := former(t)
	a, b := auditor(t, s, 1), auditor(t, s, 2)
	a.Shards, a.Lease, b.Lease = 4, time.Hour, time.Hour
	r, err := a.Begin(ctx, 0)
	must(t, err)
	a.claim = "first"
	_, _, err = a.take(ctx, &r, layout.AuditShard(r.Key, 2), time.Now())
	must(t, err)
	done, err := b.Work(ctx, &r)
	must(t, err)
	finished, err := b.finish(ctx, &r)
	must(t, err)
	if begun, err := journal.IsComplete(ctx, s); done || finished || begun || err != nil {
		t.Errorf("%v, %v, %v, %v", done, finished, begun, err)
	}
}

// What does not fit into memory is read in passes, each over its agents.
func TestPassesCoverEverything(t *testing.T) {
	ctx := t.Context()
	s, batches, conflicts := former(t)
	_, err := resume(ctx, auditor(t, s, 1))
	must(t, err)
	store := &counting{Store: s}
	a := auditor(t, store, 2)
	a.MaxInMemory = 12
	r, err := resume(ctx, a)
	must(t, err)
	if r.Manifests != uint64(batches) || r.Conflicts != uint64(conflicts) || r.Journalled != 0 || store.accepted != 0 || store.lists < 3 {
		t.Errorf("%+v, %d records read in %d passes", r.Record, store.accepted, store.lists)
	}
}
