package gc_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

var storeTime = time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC) // two days after mem's first write

// clock never waits.
type clock struct{}

func (c *clock) Now() time.Time { return time.Unix(1_700_000_000, 0) }

func (c *clock) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// faulty answers with an error before or after a request takes effect.
type faulty struct {
	*mem.Store
	before, after func(op, key string) error
}

func (f faulty) around(op, key string, do func() error) error {
	if f.before != nil {
		if err := f.before(op, key); err != nil {
			return &objstore.Error{Op: op, Key: key, Err: err}
		}
	}
	err := do()
	if f.after != nil {
		if e := f.after(op, key); e != nil {
			return &objstore.Error{Op: op, Key: key, Err: e}
		}
	}
	return err
}

func (f faulty) Get(ctx context.Context, key string, o objstore.GetOptions) (b []byte, i objstore.Info, err error) {
	err = f.around("get", key, func() (e error) { b, i, e = f.Store.Get(ctx, key, o); return })
	return b, i, err
}

func (f faulty) List(ctx context.Context, o objstore.ListOptions) (p objstore.Page, err error) {
	err = f.around("list", o.Prefix, func() (e error) { p, e = f.Store.List(ctx, o); return })
	return p, err
}

func (f faulty) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (i objstore.Info, err error) {
	err = f.around("create", key, func() (e error) { i, e = f.Store.Create(ctx, key, b, o); return })
	return i, err
}

func (f faulty) Delete(ctx context.Context, key string) error {
	return f.around("delete", key, func() error { return f.Store.Delete(ctx, key) })
}

func collector(t *testing.T, s gc.Store) *gc.Collector {
	t.Helper()
	c, err := gc.New(gc.Config{Store: tried(s), AuthorityID: "authority-1", Clock: &clock{}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tried is s behind the attempts that a collector's store makes.
func tried(s gc.Store) gc.Store {
	type rest interface { // collection has neither
		objstore.Replacer
		objstore.Putter
	}
	return objstore.Retry(struct {
		gc.Store
		rest
	}{Store: s}, retry.Retrier{Policy: retry.Policy{Attempts: 4, Base: 1, Cap: 1}, Clock: &clock{}}, nil)
}

func encode(t *testing.T, seq uint64, value float64) accept.Submission {
	t.Helper()
	b := frame.NewBuilder()
	s, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "m"}}, series.Gauge, "", 0)
	if err == nil {
		err = b.Append(s, 1, value)
	}
	if err != nil {
		t.Fatal(err)
	}
	batch, err := b.Build(identity.Boot{Agent: "a", Boot: "b"}, seq)
	if err != nil {
		t.Fatal(err)
	}
	f, err := frame.Encode(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	return accept.Submission{
		Frame: f, SHA256: identity.Sum(f), Identity: batch.Identity, Records: 1, MinTime: 1, MaxTime: 1,
		WireVersion: 1, FrameVersion: 1, SpoolID: "spool",
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// submit accepts or quarantines for real.
func submit(t *testing.T, s *mem.Store, sub accept.Submission) accept.Result {
	t.Helper()
	return submitInline(t, s, sub, 0)
}

func submitInline(t *testing.T, s *mem.Store, sub accept.Submission, below int) accept.Result {
	t.Helper()
	p, err := accept.New(accept.Config{InlineBelow: below, Store: s, AuthorityID: "authority-1", CollectorID: "c", Clock: &clock{}, Rand: zeros{}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Accept(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func put(t *testing.T, s *mem.Store, key string, body []byte) {
	t.Helper()
	if _, err := s.Put(t.Context(), key, body, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

// newStore has a journal that names everything.
func newStore(t *testing.T, now func() time.Time) *mem.Store {
	t.Helper()
	s := mem.New(now)
	if err := journaltest.Complete(t.Context(), s, "authority-1"); err != nil {
		t.Fatal(err)
	}
	return s
}

// journals puts entries of submissions into the journal.
func journals(t *testing.T, s *mem.Store, o journal.Outcome, subs ...accept.Submission) {
	t.Helper()
	var entries []journal.Entry
	for _, sub := range subs {
		entries = append(entries, journal.Entry{ID: sub.Identity, Outcome: o, SHA256: sub.SHA256, Bytes: uint64(len(sub.Frame)), MinTime: sub.MinTime, MaxTime: sub.MaxTime})
	}
	if err := journaltest.Append(t.Context(), s, "authority-1", entries...); err != nil {
		t.Fatal(err)
	}
}

func has(t *testing.T, s *mem.Store, key string) bool {
	t.Helper()
	_, err := s.Head(t.Context(), key)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

func plan(t *testing.T, s gc.Store) gc.Plan {
	t.Helper()
	p, err := collector(t, s).Plan(t.Context(), gc.PlanOptions{ID: "plan-1", Now: storeTime})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEachBlobHasItsVerdict(t *testing.T) {
	s := newStore(t, nil)
	accepted, loser, orphan, rotten, short, stranger, doubtful := encode(t, 1, 1), encode(t, 1, 2), encode(t, 2, 3),
		encode(t, 3, 4), encode(t, 4, 5), encode(t, 5, 6), encode(t, 6, 7)
	submit(t, s, accepted)
	if r := submit(t, s, loser); r.Outcome != accept.Conflict {
		t.Fatalf("outcome is %s", r.Outcome)
	}
	put(t, s, layout.Blob(orphan.SHA256, 0), orphan.Frame)
	put(t, s, layout.Blob(orphan.SHA256, 3), orphan.Frame)
	put(t, s, layout.Blob(rotten.SHA256, 0), []byte("not a frame"))
	put(t, s, layout.Blob(short.SHA256, 0), short.Frame[:len(short.Frame)-1])
	put(t, s, layout.Blob(stranger.SHA256, 0), stranger.Frame)
	foreign, err := accept.ParseManifest(submit(t, mem.New(nil), stranger).ManifestBytes)
	if err != nil {
		t.Fatal(err)
	}
	foreign.AuthorityID = "authority-2"
	put(t, s, layout.Accepted(stranger.Identity), foreign.Marshal())
	put(t, s, layout.Blob(doubtful.SHA256, 0), doubtful.Frame)
	put(t, s, layout.Accepted(doubtful.Identity), []byte("{}"))
	put(t, s, layout.RawBlobsPrefix+"notes.txt", []byte("whose is this?"))

	p := plan(t, s)
	if p.Listed != 9 || len(p.Candidates) != 8 || len(p.Kept) != 1 || p.Kept[0].Reason != gc.Foreign {
		t.Fatalf("plan: %+v", p)
	}
	var logged []gc.Entry
	r, err := collector(t, s).Execute(t.Context(), p, gc.ExecuteOptions{Log: func(_ context.Context, es []gc.Entry) error {
		e := es[0]
		if e.Action == gc.Condemned && !has(t, s, e.Key) {
			t.Errorf("%s is gone before its entry", e.Key)
		}
		logged = append(logged, e)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(logged, r.Entries) || r.Deleted != 2 || r.Kept != 6 || r.Unknown != 0 {
		t.Errorf("report: %+v", r)
	}
	want := map[string]gc.Reason{
		layout.Blob(accepted.SHA256, 0): gc.Accepted, layout.Blob(loser.SHA256, 0): gc.Quarantined,
		layout.Blob(rotten.SHA256, 0): gc.FrameUnreadable, layout.Blob(short.SHA256, 0): gc.FrameUnreadable,
		layout.Blob(stranger.SHA256, 0): gc.RecordUnreadable, layout.Blob(doubtful.SHA256, 0): gc.RecordUnreadable,
	}
	for _, e := range r.Entries {
		if e.Action == gc.KeptBlob && want[e.Key] != e.Reason {
			t.Errorf("%s is kept: %s (%s), want %s", e.Key, e.Reason, e.Detail, want[e.Key])
		}
		if (e.Action == gc.KeptBlob) != has(t, s, e.Key) {
			t.Errorf("%s: %s", e.Key, e.Action)
		}
	}
	for _, d := range []identity.Digest{accepted.SHA256, loser.SHA256, rotten.SHA256} {
		if has(t, s, layout.Condemned(d, 0)) {
			t.Errorf("%s is condemned for nothing", d)
		}
	}
	m, _, err := s.Get(t.Context(), layout.Condemned(orphan.SHA256, 3), objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var c accept.CondemnedMarker
	if err := accept.CondemnedKind.Unmarshal(m, &c); err != nil || c.Generation != 3 || c.PlanID != "plan-1" || c.FrameSHA256 != orphan.SHA256 {
		t.Errorf("marker %+v: %v", c, err)
	}
	// A repeat finds only what is doubtful, and changes nothing.
	r, err = collector(t, s).Execute(t.Context(), p, gc.ExecuteOptions{})
	if err != nil || r.Deleted != 0 || r.Kept != 8 {
		t.Errorf("repeat: %+v, %v", r, err)
	}
}

func TestPlanSelectsByAgeAndHint(t *testing.T) {
	now := storeTime
	s := newStore(t, func() time.Time { return now })
	old, young, hinted, lost := encode(t, 1, 1), encode(t, 2, 2), encode(t, 3, 3), encode(t, 4, 4)
	for _, sub := range []accept.Submission{old, hinted, lost} {
		put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
	}
	put(t, s, layout.Blob(hinted.SHA256, 1), hinted.Frame)
	journals(t, s, journal.AuditedAccepted, hinted)
	journals(t, s, journal.Conflict, lost)
	now = now.Add(24 * time.Hour)
	put(t, s, layout.Blob(young.SHA256, 0), young.Frame)

	p, err := collector(t, s).Plan(t.Context(), gc.PlanOptions{ID: "p", Now: now})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Candidates) != 1 || p.Candidates[0].SHA256 != old.SHA256 || p.Listed != 5 || p.Next != "" {
		t.Errorf("plan: %+v", p)
	}
	reasons := map[gc.Reason]int{}
	for _, k := range p.Kept {
		reasons[k.Reason]++
	}
	if reasons[gc.Young] != 1 || reasons[gc.Named] != 3 {
		t.Errorf("kept: %v", reasons)
	}
	// In parts, the same.
	var parts []gc.Candidate
	listed, next := 0, ""
	for range 10 {
		q, err := collector(t, s).Plan(t.Context(), gc.PlanOptions{ID: "p", Now: now, MaxListed: 1, StartAfter: next})
		if err != nil {
			t.Fatal(err)
		}
		parts, listed, next = append(parts, q.Candidates...), listed+q.Listed, q.Next
		if next == "" {
			break
		}
	}
	if !slices.Equal(parts, p.Candidates) || listed != p.Listed {
		t.Errorf("in parts: %d listed, %+v", listed, parts)
	}
	keys := []string{layout.Blob(old.SHA256, 0), layout.Blob(young.SHA256, 0), layout.Blob(old.SHA256, 9)}
	q, err := collector(t, s).PlanKeys(t.Context(), keys, 1000, gc.PlanOptions{ID: "p", Now: now})
	if err != nil || len(q.Candidates) != 1 || len(q.Kept) != 2 || q.Kept[1].Reason != gc.Gone || q.Listed != 1000 {
		t.Errorf("of keys: %+v, %v", q, err)
	}
}

func TestFailedReadingIsNoPlan(t *testing.T) {
	for _, key := range []string{layout.RawBlobsPrefix, layout.JournalOpenPrefix, layout.JournalHeadKey, layout.JournalBeginKey} {
		s := newStore(t, nil)
		sub := encode(t, 1, 1)
		put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
		f := faulty{Store: s, before: func(_, k string) error {
			if k == key {
				return objstore.ErrUnavailable
			}
			return nil
		}}
		p, err := collector(t, f).Plan(t.Context(), gc.PlanOptions{ID: "p", Now: storeTime})
		if !errors.Is(err, objstore.ErrUnavailable) || len(p.Candidates) != 0 {
			t.Errorf("%s: %+v, %v", key, p, err)
		}
	}
}

// What a dropped file named would look like orphans, until an audit has entered it again.
func TestALostFileOfTheJournalIsNoPlan(t *testing.T) {
	s := newStore(t, nil)
	sub := encode(t, 1, 1)
	submit(t, s, sub)
	if err := journaltest.Manifests(t.Context(), s, "authority-1"); err != nil {
		t.Fatal(err)
	}
	head, err := journaltest.Fold(t.Context(), s, "authority-1")
	if err != nil {
		t.Fatal(err)
	}
	key := head.Files[0].Key
	if err := s.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if _, err = journal.Drop(t.Context(), s, rand.Reader, []string{key}); err != nil {
		t.Fatal(err)
	}
	if p, err := collector(t, s).Plan(t.Context(), gc.PlanOptions{ID: "p", Now: storeTime}); !errors.Is(err, gc.ErrJournalIncomplete) {
		t.Errorf("%+v, %v", p, err)
	}
}

// A bucket from before the journal: every frame would look like an orphan until it is proved.
func TestAnIncompleteJournalIsNoPlan(t *testing.T) {
	s := mem.New(nil)
	sub := encode(t, 1, 1)
	submit(t, s, sub)
	p, err := collector(t, s).Plan(t.Context(), gc.PlanOptions{ID: "p", Now: storeTime})
	if !errors.Is(err, gc.ErrJournalIncomplete) || len(p.Candidates) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	// What is given by key needs no references, only the proof.
	q, err := collector(t, s).PlanKeys(t.Context(), []string{layout.Blob(sub.SHA256, 0)}, 0, gc.PlanOptions{ID: "p", Now: storeTime, MinAge: -1})
	if err != nil || len(q.Candidates) != 1 {
		t.Fatalf("%+v, %v", q, err)
	}
	r, err := collector(t, s).Execute(t.Context(), q, gc.ExecuteOptions{})
	if err != nil || r.Deleted != 0 || !has(t, s, layout.Blob(sub.SHA256, 0)) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestBreaker(t *testing.T) {
	for _, c := range []struct {
		candidates, listed int
		tripped            bool
	}{{50, 50, false}, {51, 510, false}, {51, 509, true}, {1000, 100_000, false}} {
		p := gc.Plan{ID: "p", Listed: c.listed, Candidates: make([]gc.Candidate, c.candidates)}
		if p.Tripped() != c.tripped {
			t.Errorf("%+v: tripped is %v", c, p.Tripped())
		}
	}
	s := newStore(t, nil)
	for i := range 51 {
		sub := encode(t, uint64(i), 1)
		put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
	}
	p, n := plan(t, s), s.Len()
	if _, err := collector(t, s).Execute(t.Context(), p, gc.ExecuteOptions{}); !errors.Is(err, gc.ErrBreaker) || s.Len() != n {
		t.Errorf("%v, %d objects", err, s.Len())
	}
	r, err := collector(t, s).Execute(t.Context(), p, gc.ExecuteOptions{DryRun: true})
	if err != nil || r.Kept != 51 || r.Entries[0].Reason != gc.DryRun || s.Len() != n {
		t.Errorf("dry run: %v, %+v", err, r)
	}
	if r, err := collector(t, s).Execute(t.Context(), p, gc.ExecuteOptions{Force: true}); err != nil || r.Deleted != 51 {
		t.Errorf("forced: %v, %+v", err, r)
	}
}

func TestLogThatFailsStopsBeforeTheDelete(t *testing.T) {
	s := newStore(t, nil)
	sub := encode(t, 1, 1)
	put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
	full := errors.New("disk full")
	_, err := collector(t, s).Execute(t.Context(), plan(t, s), gc.ExecuteOptions{Log: func(context.Context, []gc.Entry) error { return full }})
	if !errors.Is(err, full) || !has(t, s, layout.Blob(sub.SHA256, 0)) {
		t.Errorf("%v", err)
	}
}

// TestDoubtKeeps: a request that goes on failing keeps the blob, but for the delete itself.
func TestDoubtKeeps(t *testing.T) {
	sub := encode(t, 1, 1)
	blob, marker := layout.Blob(sub.SHA256, 0), layout.Condemned(sub.SHA256, 0)
	for _, c := range []struct {
		op, key string
		err     error
		want    gc.Reason
		action  gc.Action
	}{
		{"get", blob, objstore.ErrUnavailable, gc.StoreFailed, gc.KeptBlob},
		{"get", blob, objstore.ErrChecksum, gc.FrameUnreadable, gc.KeptBlob},
		{"get", layout.Accepted(sub.Identity), objstore.ErrUnavailable, gc.StoreFailed, gc.KeptBlob},
		{"get", layout.Accepted(sub.Identity), objstore.ErrChecksum, gc.RecordUnreadable, gc.KeptBlob},
		{"get", layout.Quarantine(sub.Identity, sub.SHA256), objstore.ErrDenied, gc.StoreFailed, gc.KeptBlob},
		{"get", layout.Quarantine(sub.Identity, sub.SHA256), objstore.ErrChecksum, gc.Quarantined, gc.KeptBlob},
		{"create", marker, objstore.ErrConflict, gc.MarkerUnknown, gc.KeptBlob},
		{"create", marker, objstore.ErrUnknown, gc.MarkerUnknown, gc.KeptBlob},
		{"create", marker, objstore.ErrDenied, gc.MarkerUnknown, gc.KeptBlob},
		{"delete", blob, objstore.ErrUnknown, "", gc.DeleteUnknown},
	} {
		t.Run(fmt.Sprintf("%s %s %v", c.op, objstore.Family(c.key), c.err), func(t *testing.T) {
			s := newStore(t, nil)
			put(t, s, blob, sub.Frame)
			f := faulty{Store: s, before: func(op, key string) error {
				if op == c.op && key == c.key {
					return c.err
				}
				return nil
			}}
			r, err := collector(t, f).Execute(t.Context(), plan(t, s), gc.ExecuteOptions{})
			last := r.Entries[len(r.Entries)-1]
			if err != nil || last.Action != c.action || last.Reason != c.want || !has(t, s, blob) {
				t.Errorf("%v, %+v", err, r)
			}
		})
	}
}

// TestReferenceBetweenMarkerAndProof: the second proof is the one that counts.
func TestReferenceBetweenMarkerAndProof(t *testing.T) {
	s := newStore(t, nil)
	sub := encode(t, 1, 1)
	put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
	f := faulty{Store: s, after: func(op, key string) error {
		if op == "create" {
			submit(t, s, sub)
		}
		return nil
	}}
	r, err := collector(t, f).Execute(t.Context(), plan(t, s), gc.ExecuteOptions{})
	if err != nil || r.Deleted != 0 || r.Entries[1].Reason != gc.Accepted || !has(t, s, layout.Blob(sub.SHA256, 0)) {
		t.Errorf("%v, %+v", err, r)
	}
	if !has(t, s, layout.Blob(sub.SHA256, 1)) {
		t.Error("the acceptance relied on a condemned generation")
	}
}

// A delete without an answer is sent again; with none in the end it is told as unknown.
func TestDeleteIsTriedAgain(t *testing.T) {
	for fails, want := range map[int]gc.Action{1: gc.Deleted, 1 << 30: gc.DeleteUnknown} {
		s := newStore(t, nil)
		sub := encode(t, 1, 1)
		put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
		left := fails
		f := faulty{Store: s, before: func(op, _ string) error {
			if op == "delete" && left > 0 {
				left--
				return objstore.ErrUnavailable
			}
			return nil
		}}
		r, err := collector(t, f).Execute(t.Context(), plan(t, s), gc.ExecuteOptions{})
		if err != nil || len(r.Entries) != 2 || r.Entries[0].Action != gc.Condemned || r.Entries[1].Action != want {
			t.Errorf("%d failures: %+v, %v", fails, r, err)
		}
		if has(t, s, layout.Blob(sub.SHA256, 0)) != (want == gc.DeleteUnknown) {
			t.Errorf("%d failures: is the blob there?", fails)
		}
	}
}

// Every kind of entry names its frame. One that is named nowhere is the only candidate.
func TestPlanByTheJournal(t *testing.T) {
	s := newStore(t, nil)
	one, loser, again, audited, quarantined, orphan := encode(t, 1, 1), encode(t, 1, 2), encode(t, 2, 3), encode(t, 3, 4), encode(t, 3, 5), encode(t, 4, 6)
	all := []accept.Submission{one, loser, again, audited, quarantined}
	for i, o := range []journal.Outcome{journal.Accepted, journal.Conflict, journal.Duplicate, journal.AuditedAccepted, journal.AuditedConflict} {
		put(t, s, layout.Blob(all[i].SHA256, 0), all[i].Frame)
		journals(t, s, o, all[i])
	}
	put(t, s, layout.Blob(one.SHA256, 1), one.Frame)
	put(t, s, layout.Blob(orphan.SHA256, 0), orphan.Frame)
	put(t, s, layout.RawBlobsPrefix+"notes.txt", nil)
	p := plan(t, s)
	if len(p.Candidates) != 1 || p.Candidates[0].SHA256 != orphan.SHA256 || len(p.Kept) != 7 {
		t.Errorf("%+v", p)
	}
}

// A manifest that carries the frame keeps no blob of it: nobody who found it relies on one. A quarantine record keeps the blob of its
// hash whatever it says, and a manifest whose frame is damaged is in doubt, as is one that is cut.
func TestManifestsThatCarryTheirFrame(t *testing.T) {
	s := newStore(t, nil)
	accepted, loser, damaged, cut := encode(t, 1, 1), encode(t, 1, 2), encode(t, 2, 3), encode(t, 3, 4)
	for _, sub := range []accept.Submission{accepted, loser, damaged, cut} {
		submitInline(t, s, sub, accept.MaxInlineFrame)
		put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
	}
	change := func(sub accept.Submission, f func([]byte) []byte) {
		b, _, err := s.Get(t.Context(), layout.Accepted(sub.Identity), objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, layout.Accepted(sub.Identity), f(slices.Clone(b)))
	}
	change(damaged, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	change(cut, func(b []byte) []byte { return b[:len(b)-1] })
	// The journal's entries are about the manifests, and name no blob; that of the conflict does.
	for _, sub := range []accept.Submission{accepted, damaged, cut} {
		e := journal.Entry{ID: sub.Identity, Outcome: journal.Accepted, SHA256: sub.SHA256, Bytes: uint64(len(sub.Frame)), Inline: true, MinTime: 1, MaxTime: 1}
		if err := journaltest.Append(t.Context(), s, "authority-1", e); err != nil {
			t.Fatal(err)
		}
	}
	p := plan(t, s)
	if len(p.Candidates) != 4 {
		t.Fatalf("%+v", p)
	}
	r, err := collector(t, s).Execute(t.Context(), p, gc.ExecuteOptions{})
	if err != nil || r.Deleted != 1 || r.Kept != 3 || has(t, s, layout.Blob(accepted.SHA256, 0)) {
		t.Errorf("%+v, %v", r, err)
	}
	want := map[string]gc.Reason{
		layout.Blob(loser.SHA256, 0): gc.Quarantined, layout.Blob(damaged.SHA256, 0): gc.RecordUnreadable, layout.Blob(cut.SHA256, 0): gc.RecordUnreadable,
	}
	for _, e := range r.Entries {
		if e.Action == gc.KeptBlob && e.Reason != want[e.Key] {
			t.Errorf("%s is kept: %s (%s)", e.Key, e.Reason, e.Detail)
		}
	}
	// What was collected is no loss.
	key := layout.Accepted(accepted.Identity)
	if _, err := accept.ReadFrame(t.Context(), s, key, accepted.SHA256, uint64(len(accepted.Frame))); err != nil {
		t.Error(err)
	}
	e := journal.Entry{ID: loser.Identity, Outcome: journal.Conflict, SHA256: loser.SHA256, Bytes: 1, Inline: true}
	if err := journaltest.Append(t.Context(), s, "authority-1", e); err != nil {
		t.Fatal(err)
	}
	if p := plan(t, s); len(p.Candidates) != 2 {
		t.Errorf("an entry of a conflict names no blob: %+v", p)
	}
}

// A store that says "exists" of a marker that is not there, as one whose other create came to nothing, is not believed.
func TestAMarkerThatIsSaidToExistIsRead(t *testing.T) {
	s := newStore(t, nil)
	sub := encode(t, 1, 1)
	put(t, s, layout.Blob(sub.SHA256, 0), sub.Frame)
	journals(t, s, journal.Accepted)
	c := collector(t, faulty{Store: s, before: func(op, key string) error {
		if op == "create" && strings.HasPrefix(key, layout.CondemnedPrefix) {
			return objstore.ErrExists
		}
		return nil
	}})
	p, err := c.Plan(t.Context(), gc.PlanOptions{ID: "p", Now: storeTime, MinAge: -1})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := c.Execute(t.Context(), p, gc.ExecuteOptions{})
	if err != nil || rep.Deleted != 0 || rep.Condemned != 0 || rep.Kept != 1 || rep.Entries[0].Reason != gc.MarkerUnknown || !has(t, s, layout.Blob(sub.SHA256, 0)) {
		t.Errorf("%+v, %v", rep, err)
	}
}

// On a versioned bucket the version goes whose header was read; on another one the object.
func TestTheVersionThatWasReadIsDeleted(t *testing.T) {
	for _, versioned := range []bool{true, false} {
		s := newStore(t, nil)
		sub := encode(t, 1, 1)
		key := layout.Blob(sub.SHA256, 0)
		put(t, s, key, sub.Frame)
		journals(t, s, journal.Accepted)
		v := &versions{Store: s, on: versioned}
		c, err := gc.New(gc.Config{Store: v, AuthorityID: "authority-1", Clock: &clock{}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.Plan(t.Context(), gc.PlanOptions{ID: "p", Now: storeTime, MinAge: -1})
		if err != nil {
			t.Fatal(err)
		}
		rep, err := c.Execute(t.Context(), p, gc.ExecuteOptions{})
		want := key
		if versioned {
			want += "?v1"
		}
		if err != nil || rep.Deleted != 1 || !slices.Equal(v.deleted, []string{want}) {
			t.Errorf("%+v, %v, deleted %q, want %q", rep, err, v.deleted, want)
		}
	}
}

// versions is a store of a bucket whose objects have the version v1, or none.
type versions struct {
	*mem.Store
	on bool

	mu      sync.Mutex
	deleted []string
}

func (v *versions) info(i objstore.Info) objstore.Info {
	if v.on && i.Key != "" {
		i.Version = "v1"
	}
	return i
}

func (v *versions) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	b, i, err := v.Store.Get(ctx, key, o)
	return b, v.info(i), err
}

func (v *versions) Head(ctx context.Context, key string) (objstore.Info, error) {
	i, err := v.Store.Head(ctx, key)
	return v.info(i), err
}

func (v *versions) Delete(ctx context.Context, key string) error {
	v.mu.Lock()
	v.deleted = append(v.deleted, key)
	v.mu.Unlock()
	return v.Store.Delete(ctx, key)
}

func (v *versions) DeleteVersion(ctx context.Context, key, version string) error {
	v.mu.Lock()
	v.deleted = append(v.deleted, key+"?"+version)
	v.mu.Unlock()
	return v.Store.Delete(ctx, key)
}
