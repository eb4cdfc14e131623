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
func former(t testing.TB) (s *mem.Store, batches, conflicts int) {
	s = mem.New(time.Now)
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
	r, err := a.Run(ctx)
	must(t, err)
	check(t, s, batches, conflicts)
	if !r.Finished() || r.Journalled != uint64(batches+conflicts) || r.Manifests != uint64(batches)+2 || r.Conflicts != uint64(conflicts) ||
		r.Unusable != 2 || len(unusable) != 2 || r.Foreign != 1 {
		t.Errorf("%+v", r.Record)
	}
	begun, err := journal.HasBegun(ctx, s)
	if err != nil || !begun {
		t.Errorf("the journal is not complete: %v", err)
	}
	// What the journal has costs no request but the listing.
	*store = counting{Store: s}
	again, err := auditor(t, store, 2).Run(ctx)
	must(t, err)
	if store.accepted != 2 || store.lists != 1 {
		t.Errorf("%d records read and %d pages listed, want the two that can't be used and 1", store.accepted, store.lists)
	}
	if again.Key == r.Key || again.Journalled != 0 || again.Digest != r.Digest {
		t.Errorf("%+v", again.Record)
	}
	history, err := History(ctx, s, 10)
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
	_, err := auditor(t, s, 1).Run(ctx)
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
			r, err := a.Run(ctx)
			if err == nil {
				if n < 10 {
					t.Errorf("an audit with %d requests", n)
				}
				return
			}
			begun, _ := journal.HasBegun(ctx, s)
			if b, c := journalled(t, s); begun && (len(b) != batches || len(c) != conflicts) {
				t.Fatalf("request %d: the journal is said to be complete", n)
			}
			b := auditor(t, s, 2)
			b.MaxInMemory = 12
			r, err = b.Run(ctx)
			must(t, err)
			check(t, s, batches, conflicts)
			if want.Digest.IsZero() {
				want = r.Record
			}
			if r.Digest != want.Digest || r.Manifests != want.Manifests || r.Conflicts != want.Conflicts {
				t.Errorf("request %d: %+v", n, r.Record)
			}
			if begun, err := journal.HasBegun(ctx, s); err != nil || !begun {
				t.Errorf("request %d: the journal is not complete: %v", n, err)
			}
		}
	}
}

// Two reconcilers that run one audit: one goes on, the other learns that.
func TestTwoAuditors(t *testing.T) {
	ctx := t.Context()
	s, batches, conflicts := former(t)
	first := auditor(t, s, 1)
	first.Pace = func() func(context.Context) error {
		n := 0
		return func(context.Context) error {
			if n++; n == 3 {
				_, err := auditor(t, s, 2).Run(ctx)
				must(t, err)
			}
			return nil
		}
	}()
	if _, err := first.Run(ctx); !errors.Is(err, ErrTakenOver) {
		t.Errorf("%v", err)
	}
	check(t, s, batches, conflicts)
}
