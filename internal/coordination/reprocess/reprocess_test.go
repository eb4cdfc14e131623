package reprocess

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	objmem "lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var acceptedFrom = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

// site is a bucket with accepted batches and a coordinator's pending work.
type site struct {
	*testing.T
	bucket *objmem.Store
	work   *mem.Store
	now    time.Time
	runs   int
}

// newSite has 30 batches of three agents, one each 10 minutes from acceptedFrom on.
func newSite(t *testing.T) *site {
	s := &site{T: t, bucket: objmem.New(nil), now: acceptedFrom.Add(100 * time.Hour)}
	s.work = mem.New(func() time.Time { return s.now }, mem.Options{})
	if err := journaltest.Complete(t.Context(), s.bucket, authority); err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		at := acceptedFrom.Add(time.Duration(i) * 10 * time.Minute)
		id := identity.Batch{Agent: fmt.Sprint("agent-", i%3), Boot: "boot", SeqStart: uint64(i * 10), SeqEnd: uint64(i*10 + 9)}
		d := identity.Sum([]byte(fmt.Sprint(i)))
		e := journal.Entry{ID: id, Outcome: journal.Accepted, SHA256: d, Bytes: 100, At: at.UnixNano(), MinTime: at.Add(-time.Minute).UnixNano(), MaxTime: at.Add(-time.Second).UnixNano()}
		if err := journaltest.Append(t.Context(), s.bucket, authority, e); err != nil {
			t.Fatal(err)
		}
		if i == 12 || i == 24 {
			s.fold()
		}
	}
	for id := range shard.ID(shards) {
		s.advance(id)
	}
	return s
}

const (
	authority = "authority"
	shards    = 4
)

// fold moves what the journal has into files.
func (s *site) fold() {
	s.Helper()
	folder, err := journal.NewFolder(journal.FolderConfig{Store: s.bucket, Rand: rand.Reader, Retention: 1 << 60})
	if err != nil {
		s.Fatal(err)
	}
	from, err := folder.Load(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.follow(from, folder.Add, nil)
	if _, err := folder.Fold(s.Context(), 1); err != nil {
		s.Fatal(err)
	}
}

// follow reads the journal from positions on.
func (s *site) follow(from journal.Positions, segment func(*journal.Segment) error, folded func([]journal.Entry)) journal.Positions {
	s.Helper()
	f, err := journal.NewFollower(journal.FollowerConfig{Store: s.bucket, Authority: authority, From: from,
		Segment: func(_ context.Context, g *journal.Segment) error {
			if segment == nil {
				return nil
			}
			return segment(g)
		},
		Folded: func(_ context.Context, es []journal.Entry) error {
			if folded != nil {
				folded(es)
			}
			return nil
		}})
	if err != nil {
		s.Fatal(err)
	}
	p, err := f.Poll(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return p.Positions
}

// advance is an owner that has rolled up everything.
func (s *site) advance(id shard.ID) {
	s.Helper()
	p, etag, err := progress.Read(s.Context(), s.bucket, authority, id, shards)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		s.Fatal(err)
	}
	p.AuthorityID, p.Shard, p.Shards, p.Positions = authority, id, shards, s.follow(p.Positions, nil, nil)
	if _, err := p.Write(s.Context(), s.bucket, etag); err != nil {
		s.Fatal(err)
	}
}

// worker is one process that does orders.
func (s *site) worker(q work.Queue, t work.Table, store objstore.Store, limit time.Duration) *work.Worker {
	s.Helper()
	s.runs++
	run := fmt.Sprintf("%016x", s.runs)
	w, err := work.NewWorker(q, t, NewHandler(store, authority, shards), work.Config{Topic: Topic, Owner: run, Hold: time.Minute, TimeLimit: limit}, func() time.Time { return s.now })
	if err != nil {
		s.Fatal(err)
	}
	return w
}

// submit gives an order.
func (s *site) submit(o Request, want bool) work.Key {
	s.Helper()
	k, found, err := Submit(s.Context(), s.work, s.work, o)
	if err != nil || found != want {
		s.Fatalf("submit: %s, %t, %v", k, found, err)
	}
	return k
}

// result is what the log keeps of a job that is done.
func (s *site) result(k work.Key) (p Progress) {
	s.Helper()
	l, err := s.work.Log(s.Context(), k.Log)
	if err != nil || l.Last != k.Number {
		s.Fatalf("%s is not done: %+v, %v", k, l, err)
	}
	p, err = ParseProgress(l.Result)
	if err != nil {
		s.Fatal(err)
	}
	return p
}

// given gives the batches that the owners of the shards read after their positions.
func (s *site) given() map[string]int {
	s.Helper()
	got := map[string]int{}
	for id := range shard.ID(shards) {
		p, _, err := progress.Read(s.Context(), s.bucket, authority, id, shards)
		if err != nil {
			s.Fatal(err)
		}
		add := func(es []journal.Entry) {
			for _, e := range es {
				if shard.Of(e.ID.Agent, shards) == id {
					got[e.ID.String()] = 1
				}
			}
		}
		s.follow(p.Positions, func(g *journal.Segment) error { add(g.Entries); return nil }, add)
	}
	return got
}

func TestOrder(t *testing.T) {
	s := newSite(t)
	order := Request{From: acceptedFrom.Add(time.Hour), To: acceptedFrom.Add(3 * time.Hour), Agent: "agent-1"}
	count, err := NewHandler(s.bucket, authority, shards).Count(t.Context(), order)
	if err != nil || count.Batches != 4 || len(s.given()) != 0 {
		t.Fatalf("dry run: %+v, %v; %d are given", count, err, len(s.given()))
	}
	for again := range 2 { // the same order again, when it is done, is a new job
		k := s.submit(order, false)
		if again := s.submit(order, true); again != k {
			t.Fatalf("an equal order is another job: %s, %s", again, k)
		}
		w := s.worker(s.work, s.work, s.bucket, 0)
		if o, err := w.Step(t.Context()); o != work.Completed || err != nil {
			t.Fatal(o, err)
		}
		got := s.result(k)
		if got.Batches != 4 || got.Shards != 1 || got.Hours != count.Hours || !got.Done || k.Number != uint64(again+1) {
			t.Fatalf("%s: %+v, counted were %+v", k, got, count)
		}
		if o, err := w.Step(t.Context()); o != work.Idle && o != work.Duplicate || err != nil {
			t.Fatal(o, err)
		}
		given := s.given()
		for i := range 30 {
			id := identity.Batch{Agent: fmt.Sprint("agent-", i%3), Boot: "boot", SeqStart: uint64(i * 10), SeqEnd: uint64(i*10 + 9)}
			at := acceptedFrom.Add(time.Duration(i) * 10 * time.Minute)
			if id.Agent == order.Agent && !at.Before(order.From) && at.Before(order.To) && given[id.String()] == 0 {
				t.Errorf("%s is not given", id)
			}
			if shard.Of(id.Agent, shards) != shard.Of(order.Agent, shards) && given[id.String()] > 0 {
				t.Errorf("%s is given", id)
			}
		}
		s.advance(shard.Of(order.Agent, shards))
	}
}

// Only what may have the batches is read again: what was folded before them is not.
func TestPositionsGoBackNoFurtherThanNeeded(t *testing.T) {
	s := newSite(t)
	s.submit(Request{From: acceptedFrom.Add(3 * time.Hour), To: acceptedFrom.Add(100 * time.Hour)}, false)
	if o, err := s.worker(s.work, s.work, s.bucket, 0).Step(t.Context()); o != work.Completed || err != nil {
		t.Fatal(o, err)
	}
	given := s.given()
	for i := range 30 {
		id := identity.Batch{Agent: fmt.Sprint("agent-", i%3), Boot: "boot", SeqStart: uint64(i * 10), SeqEnd: uint64(i*10 + 9)}
		if got, want := given[id.String()] > 0, i > 12; got != want {
			t.Errorf("batch %d is given: %v", i, got)
		}
	}
}

// A record that its owner writes at the same time is put back all the same, and one that was never written is at
// nothing anyhow.
func TestOwnersWriteMeanwhile(t *testing.T) {
	s := newSite(t)
	if err := s.bucket.Delete(t.Context(), layout.RollupProgress(2)); err != nil {
		t.Fatal(err)
	}
	busy := &busyStore{Store: s.bucket, left: 3, owner: func() { s.advance(shard.Of("agent-0", shards)) }}
	s.submit(Request{From: acceptedFrom, To: acceptedFrom.Add(24 * time.Hour)}, false)
	if o, err := s.worker(s.work, s.work, busy, 0).Step(t.Context()); o != work.Completed || err != nil {
		t.Fatal(o, err)
	}
	p, _, err := progress.Read(t.Context(), s.bucket, authority, shard.Of("agent-0", shards), shards)
	if err != nil || !p.Positions.IsZero() {
		t.Errorf("%+v, %v", p, err)
	}
	if _, _, err := progress.Read(t.Context(), s.bucket, authority, 2, shards); shard.Of("agent-0", shards) != 2 && !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
}

// busyStore has an owner that writes before each replace.
type busyStore struct {
	objstore.Store
	left  int
	owner func()
}

func (b *busyStore) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	if b.left > 0 {
		b.left--
		b.owner()
	}
	return b.Store.Replace(ctx, key, body, etag, o)
}

// calls ends a process at its n-th call of store, table or queue: after it, or instead of it.
type calls struct {
	left  int
	after bool
}

type killed struct{}

func call[T any](c *calls, fn func() (T, error)) (T, error) {
	if c.left--; c.left == 0 {
		if c.after {
			_, _ = fn()
		}
		panic(killed{})
	}
	return fn()
}

func change(c *calls, fn func() error) error {
	_, err := call(c, func() (struct{}, error) { return struct{}{}, fn() })
	return err
}

type mortalTable struct {
	work.Table
	*calls
}

func (m mortalTable) Create(ctx context.Context, r work.Row, c *work.Claim) (work.Row, error) {
	return call(m.calls, func() (work.Row, error) { return m.Table.Create(ctx, r, c) })
}

func (m mortalTable) Claim(ctx context.Context, r work.Row, c work.Claim) (work.Row, error) {
	return call(m.calls, func() (work.Row, error) { return m.Table.Claim(ctx, r, c) })
}

func (m mortalTable) Checkpoint(ctx context.Context, r work.Row, state []byte, hold time.Duration) (work.Row, error) {
	return call(m.calls, func() (work.Row, error) { return m.Table.Checkpoint(ctx, r, state, hold) })
}

func (m mortalTable) Done(ctx context.Context, r work.Row) error {
	return change(m.calls, func() error { return m.Table.Done(ctx, r) })
}

type mortalQueue struct {
	work.Queue
	*calls
}

func (m mortalQueue) Receive(ctx context.Context, topic string, n int, d time.Duration) ([]work.Message, error) {
	return call(m.calls, func() ([]work.Message, error) { return m.Queue.Receive(ctx, topic, n, d) })
}

func (m mortalQueue) Delete(ctx context.Context, msg work.Message) error {
	return change(m.calls, func() error { return m.Queue.Delete(ctx, msg) })
}

type mortalStore struct {
	objstore.Store
	*calls
}

func (m mortalStore) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return call(m.calls, func() (objstore.Info, error) { return m.Store.Replace(ctx, key, b, etag, o) })
}

func (m mortalStore) Get(ctx context.Context, key string, o objstore.GetOptions) (b []byte, info objstore.Info, err error) {
	b, err = call(m.calls, func() ([]byte, error) { b, info, err = m.Store.Get(ctx, key, o); return b, err })
	return b, info, err
}

func (m mortalStore) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	return call(m.calls, func() (objstore.Page, error) { return m.Store.List(ctx, o) })
}

// alive reports whether the process survives fn.
func alive(fn func()) (ok bool) {
	defer func() {
		if r := recover(); r != nil && r != any(killed{}) {
			panic(r)
		} else if r != nil {
			ok = false
		}
	}()
	fn()
	return true
}

// TestKilledAtEveryCall: killed before and after each call, the next worker continues when the
// message is visible again, counts each batch once, and nothing is left behind.
func TestKilledAtEveryCall(t *testing.T) {
	order := Request{From: acceptedFrom, To: acceptedFrom.Add(24 * time.Hour)}
	for at := 1; ; at++ {
		for _, after := range []bool{false, true} {
			s := newSite(t)
			k := s.submit(order, false)
			c := &calls{left: at, after: after}
			first := s.worker(mortalQueue{s.work, c}, mortalTable{s.work, c}, mortalStore{s.bucket, c}, 0)
			survived := alive(func() {
				if o, err := first.Step(t.Context()); o != work.Completed || err != nil {
					t.Fatal(o, err)
				}
			})
			if survived && at < 30 {
				t.Fatalf("only %d calls", at)
			}
			second := s.worker(s.work, s.work, s.bucket, 0)
			for n := 0; ; n++ {
				o, err := second.Step(t.Context())
				if err != nil || n > 10 {
					t.Fatalf("killed at %d, after %v: then %s, %v", at, after, o, err)
				}
				if o == work.Completed || o == work.Duplicate || survived {
					break
				}
				s.now = s.now.Add(time.Minute)
				if l, err := s.work.Log(t.Context(), k.Log); err == nil && l.Last == k.Number && n > 3 {
					break // its last call had deleted the message
				}
			}
			if p := s.result(k); p.Batches != 30 || !p.Done {
				t.Fatalf("killed at %d, after %v: %+v", at, after, p)
			}
			if got := s.given(); len(got) != 30 {
				t.Fatalf("killed at %d, after %v: %d batches", at, after, len(got))
			}
			rows, _, err := s.work.Rows(t.Context(), "", "", 10)
			if d, derr := s.work.Depth(t.Context(), Topic); err != nil || derr != nil || len(rows) > 0 || d != (work.Depth{}) {
				t.Fatalf("killed at %d, after %v: left are %v, %+v, %v, %v", at, after, rows, d, err, derr)
			}
			if survived {
				return
			}
		}
	}
}

// slow is a store whose reads take a while.
type slow struct {
	objstore.Store
	s *site
}

func (s slow) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	s.s.now = s.s.now.Add(20 * time.Second)
	return s.Store.Get(ctx, key, o)
}

// TestHandOver: a worker near its time limit leaves the order to the next one, which continues
// at once from where it was; no file is counted twice.
func TestHandOver(t *testing.T) {
	s := newSite(t)
	s.fold()
	k := s.submit(Request{From: acceptedFrom, To: acceptedFrom.Add(24 * time.Hour)}, false)
	over, batches := 0, uint64(0)
	for {
		w := s.worker(s.work, s.work, slow{s.bucket, s}, 2*time.Minute)
		o, err := w.Step(t.Context())
		if err != nil || over > 20 {
			t.Fatal(o, err)
		}
		if o == work.Completed {
			break
		}
		over++
		row, err := s.work.Get(t.Context(), k)
		p, perr := ParseProgress(row.State)
		if err != nil || row.Live || perr != nil || p.Batches < batches || o != work.HandedOver {
			t.Fatalf("%s: %+v, %v", o, row, err)
		}
		batches = p.Batches
	}
	if over < 2 {
		t.Errorf("handed over %d times", over)
	}
	got := s.given()
	if p := s.result(k); len(got) != 30 || p.Batches != 30 {
		t.Errorf("%d batches, %+v", len(got), p)
	}
}

// TestBadOrders are refused before anything is written, and their messages are buried.
func TestBadOrders(t *testing.T) {
	s := newSite(t)
	for _, o := range []Request{
		{},
		{From: acceptedFrom, To: acceptedFrom},
		{From: acceptedFrom, To: acceptedFrom.Add(-time.Hour)},
		{From: time.Unix(0, 0).UTC(), To: acceptedFrom},
		{From: acceptedFrom, To: acceptedFrom.Add(21 * 366 * 24 * time.Hour)},
	} {
		if _, _, err := Submit(t.Context(), s.work, s.work, o); !errors.Is(err, ErrRequest) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	w := s.worker(s.work, s.work, s.bucket, 0)
	for body, want := range map[string]error{
		"x": record.ErrCorrupt, "{}": record.ErrCorrupt,
		string(RequestKind.Marshal(message{Number: 1})):                                                             ErrRequest,
		string(RequestKind.Marshal(message{Request: Request{From: acceptedFrom, To: acceptedFrom.Add(time.Hour)}})): ErrRequest,
	} {
		if err := s.work.Send(t.Context(), Topic, []byte(body), work.SendOptions{}); err != nil {
			t.Fatal(err)
		}
		if o, err := w.Step(t.Context()); o != work.Buried || !errors.Is(err, want) {
			t.Errorf("%s: %s, %v", body, o, err)
		}
	}
	if n := len(s.given()); n > 0 {
		t.Errorf("%d batches are given", n)
	}
}

// A request of a newer release, of which this worker knows only a part, is neither done nor
// buried: a worker of that release takes it. So it is with a checkpoint.
func TestRequestsOfANewerReleaseWaitForIt(t *testing.T) {
	s := newSite(t)
	r := Request{From: acceptedFrom, To: acceptedFrom.Add(24 * time.Hour)}
	body := RequestKind.Marshal(message{1, r})
	version := bytes.Replace(body, []byte(".v1"), []byte(".v2"), 1)
	field := append(bytes.TrimSuffix(bytes.Clone(body), []byte("}")), `,"shard":3}`...)
	w := s.worker(s.work, s.work, s.bucket, 0)
	for _, newer := range [][]byte{version, field} {
		if err := s.work.Send(t.Context(), Topic, newer, work.SendOptions{}); err != nil {
			t.Fatal(err)
		}
		if o, err := w.Step(t.Context()); o != work.Deferred || err != nil {
			t.Errorf("%s: %s, %v", newer, o, err)
		}
	}
	if d, err := s.work.Depth(t.Context(), Topic); err != nil || d.Hidden != 2 || d.Dead != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if n := len(s.given()); n != 0 {
		t.Errorf("%d batches were given again", n)
	}

	k := s.submit(r, false)
	row, err := s.work.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	row, err = s.work.Claim(t.Context(), row, work.Claim{Owner: "newer", Hold: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	state := bytes.Replace(ProgressKind.Marshal(Progress{Shards: 1}), []byte(".v1"), []byte(".v2"), 1)
	if row, err = s.work.Checkpoint(t.Context(), row, state, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := s.work.Release(t.Context(), row, true); err != nil {
		t.Fatal(err)
	}
	if o, err := w.Step(t.Context()); o != work.Failed || !errors.Is(err, record.ErrNewerVersion) {
		t.Errorf("with a checkpoint of a newer release: %s, %v", o, err)
	}
	if row, err = s.work.Get(t.Context(), k); err != nil || !bytes.Equal(row.State, state) {
		t.Errorf("%+v, %v", row, err)
	}
}

// TestAnIncompleteJournalCountsNothing: a request would miss what was accepted before the journal began.
func TestAnIncompleteJournalCountsNothing(t *testing.T) {
	s := newSite(t)
	if err := s.bucket.Delete(t.Context(), layout.JournalBeginKey); err != nil {
		t.Fatal(err)
	}
	p, err := NewHandler(s.bucket, authority, shards).Count(t.Context(), Request{From: acceptedFrom, To: acceptedFrom.Add(time.Hour)})
	if !errors.Is(err, history.ErrIncomplete) || p.Batches != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}
