package fsck

import (
	"context"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// journalled is a bucket whose journal has two folded files, a run that is open with two segments, and one that
// was fenced.
type journalled struct {
	*testing.T
	store     *mem.Store
	now       time.Time
	manifests []accept.Manifest
	open      *journal.Writer
	opened    journal.RunID // of open
	fenced    journal.RunID
}

func newJournalled(t *testing.T) *journalled {
	w := &journalled{T: t, now: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}
	w.store = mem.New(func() time.Time { return w.now })
	w.must(journaltest.Complete(t.Context(), w.store, "auth"))
	for range 2 {
		w.must(journaltest.Append(t.Context(), w.store, "auth", w.accept(), w.accept()))
		w.fold()
	}
	dead := w.writer(&w.fenced)
	w.write(dead)
	w.must(journal.Fence(t.Context(), w.store, journal.Position{Run: w.fenced, Segment: 1}))
	w.open = w.writer(&w.opened)
	w.write(w.open)
	w.write(w.open)
	return w
}

func (w *journalled) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *journalled) writer(run *journal.RunID) *journal.Writer {
	wr, err := journal.NewWriter(journal.WriterConfig{
		Store: w.store, Rand: rand.Reader, Clock: func() int64 { return 1 }, Events: journal.WriterEvents{Opened: func(r journal.RunID) { *run = r }},
		Opening: journal.Opening{Writer: "c", Role: journal.RoleCollector, Authority: "auth"},
	})
	w.must(err)
	return wr
}

// accept lays down the next batch, and returns its entry.
func (w *journalled) accept() journal.Entry {
	n := uint64(len(w.manifests))
	f, id := encode(w.T, 1+5*n, 5, 0)
	w.manifests = append(w.manifests, accepted(w.T, w.store, f, id, 5))
	return w.manifests[n].Entry(journal.Accepted)
}

// write has a writer journal the next batch.
func (w *journalled) write(to *journal.Writer) {
	_, err := to.Add(w.accept())
	w.must(err)
	_, _, err = to.Flush(w.Context())
	w.must(err)
}

func (w *journalled) fold() {
	folder, err := journal.NewFolder(journal.FolderConfig{Store: w.store, Rand: rand.Reader, Retention: 1 << 60})
	w.must(err)
	from, err := folder.Load(w.Context())
	w.must(err)
	f, err := journal.NewFollower(journal.FollowerConfig{Store: w.store, Authority: "auth", From: from,
		Segment: func(_ context.Context, s *journal.Segment) error { return folder.Add(s) },
		Folded:  func(context.Context, []journal.Entry) error { return nil }})
	w.must(err)
	_, err = f.Poll(w.Context())
	w.must(err)
	_, err = folder.Fold(w.Context(), 1)
	w.must(err)
}

func (w *journalled) head() journal.Head {
	h, _, err := journal.ReadHead(w.Context(), w.store)
	w.must(err)
	return h
}

func (w *journalled) put(key string, body []byte, err error) {
	w.Helper()
	w.must(err)
	put(w.T, w.store, key, body)
}

func (w *journalled) delete(key string) { w.must(w.store.Delete(w.Context(), key)) }

func (w *journalled) check(o Options) *Report {
	w.Helper()
	o.AuthorityID = "auth"
	r, err := Run(w.Context(), w.store, o)
	w.must(err)
	return r
}

// problems are the kinds of a report's findings.
func problems(r *Report) (out []Problem) {
	for _, f := range r.Findings {
		out = append(out, f.Problem)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestAWholeJournalIsHealthy(t *testing.T) {
	w := newJournalled(t)
	if r := w.check(Options{}); !r.Healthy() || !r.Journal.Complete || r.Journal.Entries != 7 || r.Journal.NotJournalled != 0 {
		t.Errorf("%+v, %v", r.Journal, r.Findings)
	}
	// A fence that came late stands where a segment was folded and deleted. Segments below the head wait for their delete.
	run := w.head().Runs[0].Run
	w.delete(layout.JournalSegment(run, 0))
	b, err := (&journal.Segment{Position: journal.Position{Run: w.opened, Segment: 2}, Fenced: true}).Marshal()
	w.put(layout.JournalSegment(w.opened, 2), b, err)
	if r := w.check(Options{}); !r.Healthy() {
		t.Error(r.Findings)
	}
}

func TestEveryProblemOfTheJournalIsFound(t *testing.T) {
	rewrite := func(w *journalled, change func(*journal.Head)) {
		h := w.head()
		change(&h)
		b, err := h.Marshal()
		w.put(layout.JournalHeadKey, b, err)
	}
	segment := func(w *journalled, run journal.RunID, n uint64, e journal.Entry) {
		b, err := (&journal.Segment{Position: journal.Position{Run: run, Segment: n}, Entries: []journal.Entry{e}}).Marshal()
		w.put(layout.JournalSegment(run, n), b, err)
	}
	root := func(w *journalled, p journal.Positions) {
		w.put(layout.LedgersKey, ledgers.Root{Number: 1, Positions: p, Parts: []ledgers.Part{{}}}.Marshal(), nil)
	}
	for name, c := range map[string]struct {
		want   Problem
		damage func(*journalled)
		o      Options
	}{
		"head damaged":    {JournalUnreadable, func(w *journalled) { w.put(layout.JournalHeadKey, []byte("{}"), nil) }, Options{}},
		"begin damaged":   {JournalUnreadable, func(w *journalled) { w.put(layout.JournalBeginKey, []byte("{}"), nil) }, Options{}},
		"file gone":       {JournalUnreadable, func(w *journalled) { w.delete(w.head().Files[0].Key) }, Options{}},
		"file damaged":    {JournalUnreadable, func(w *journalled) { w.put(w.head().Files[1].Key, []byte("x"), nil) }, Options{}},
		"segment damaged": {JournalUnreadable, func(w *journalled) { w.put(layout.JournalSegment(w.opened, 1), []byte("x"), nil) }, Options{}},
		"another's run": {JournalUnreadable, func(w *journalled) {
			e := w.accept()
			w.must(journaltest.Append(w.Context(), w.store, "another", e))
		}, Options{}},
		"span of a file": {JournalSpan, func(w *journalled) {
			rewrite(w, func(h *journal.Head) { h.Files[0].MinTime = h.Files[0].MaxTime })
		}, Options{}},
		"span of a list": {JournalSpan, func(w *journalled) {
			rewrite(w, func(h *journal.Head) {
				b, err := journal.MarshalList(h.Files[:1])
				l := journal.FileList{Span: h.Files[0].Span}
				l.Key, l.MaxTime = layout.JournalList(1, journal.RunID{7}), l.MinTime
				w.put(l.Key, b, err)
				h.Lists, h.Files = []journal.FileList{l}, h.Files[1:]
			})
		}, Options{}},
		"gap":            {JournalGap, func(w *journalled) { segment(w, w.opened, 3, w.accept()) }, Options{}},
		"no opening":     {JournalGap, func(w *journalled) { w.delete(layout.JournalSegment(w.opened, 0)) }, Options{}},
		"past a fence":   {JournalPastEnd, func(w *journalled) { segment(w, w.fenced, 2, w.accept()) }, Options{}},
		"past the end":   {JournalPastEnd, func(w *journalled) { segment(w, w.head().Runs[0].Run, 1, w.accept()) }, Options{}},
		"no manifest":    {EntryWrong, func(w *journalled) { w.delete(layout.Accepted(w.manifests[0].Identity)) }, Options{}},
		"another frame":  {EntryWrong, func(w *journalled) { e := w.accept(); e.SHA256[0] ^= 1; segment(w, w.opened, 2, e) }, Options{}},
		"not in there":   {NotJournalled, func(w *journalled) { w.accept(); w.now = w.now.Add(DefaultUnjournalled + time.Second) }, Options{}},
		"ledgers behind": {PositionsAhead, func(w *journalled) { root(w, journal.Positions{Head: 3}) }, Options{}},
		"ledgers ahead": {PositionsAhead, func(w *journalled) {
			root(w, journal.Positions{Head: 2, Runs: []journal.RunPosition{{Run: w.opened, Next: 3}}})
		}, Options{}},
		"an unknown run": {PositionsAhead, func(w *journalled) {
			root(w, journal.Positions{Head: 2, Runs: []journal.RunPosition{{Run: journal.RunID{1}, Next: 3}}})
		}, Options{}},
		"ledgers damaged": {BadLedgers, func(w *journalled) { w.put(layout.LedgersKey, []byte("{}"), nil) }, Options{}},
		"a shard ahead": {PositionsAhead, func(*journalled) {}, Options{Positions: func(context.Context) (map[string]journal.Positions, error) {
			return map[string]journal.Positions{layout.RollupProgress(0): {Head: 9}}, nil
		}}},
		"no derived keys": {DerivedMissing, func(*journalled) {}, Options{DerivedKeys: true}},
	} {
		w := newJournalled(t)
		c.damage(w)
		if r := w.check(c.o); !slices.Contains(problems(r), c.want) {
			t.Errorf("%s: want %s, found %v", name, c.want, r.Findings)
		}
	}
}

// TestWhatIsNoProblemOfTheJournal: what a live bucket has at any moment, and what an audit has still to find.
func TestWhatIsNoProblemOfTheJournal(t *testing.T) {
	w := newJournalled(t)
	w.accept()
	if r := w.check(Options{}); !r.Healthy() || r.Journal.NotJournalled != 1 || r.Journal.Entries != 7 {
		t.Errorf("a collector died before its segment: %+v, %v", r.Journal, r.Findings)
	}
	w.delete(layout.JournalBeginKey)
	w.now = w.now.Add(2 * DefaultUnjournalled)
	if r := w.check(Options{}); !r.Healthy() || r.Journal.Complete || r.Journal.NotJournalled != 0 {
		t.Errorf("before the journal: %+v, %v", r.Journal, r.Findings)
	}
	// Derived keys are written by reconcilers with that setting alone.
	for _, m := range w.manifests {
		for _, d := range reconcile.DerivedOf(m, m.Marshal()) {
			w.put(d.Key, d.Body, nil)
		}
	}
	if r := w.check(Options{DerivedKeys: true}); !r.Healthy() {
		t.Error(r.Findings)
	}
	at := []journal.RunPosition{{Run: w.opened, Next: 2}, {Run: w.fenced, Next: 1, Ended: true}}
	slices.SortFunc(at, func(a, b journal.RunPosition) int { return a.Run.Compare(b.Run) })
	w.put(layout.LedgersKey, ledgers.Root{Number: 1, Positions: journal.Positions{Head: 2, Runs: at}, Parts: []ledgers.Part{{}}}.Marshal(), nil)
	if r := w.check(Options{}); !r.Healthy() {
		t.Error(r.Findings)
	}
}

// meanwhile runs what others do between two requests of a check.
type meanwhile struct {
	*mem.Store
	before func(op, key string)
}

func (s meanwhile) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	s.before("get", key)
	return s.Store.Get(ctx, key, o)
}

func (s meanwhile) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	s.before("list", o.Prefix)
	return s.Store.List(ctx, o)
}

// TestABucketInUseIsHealthy: collectors write and a folder folds and deletes before every request of the check.
func TestABucketInUseIsHealthy(t *testing.T) {
	w := newJournalled(t)
	folder, err := journal.NewFolder(journal.FolderConfig{Store: w.store, Rand: rand.Reader})
	w.must(err)
	from, err := folder.Load(t.Context())
	w.must(err)
	f, err := journal.NewFollower(journal.FollowerConfig{Store: w.store, Authority: "auth", From: from,
		Segment: func(_ context.Context, s *journal.Segment) error { return folder.Add(s) },
		Folded:  func(context.Context, []journal.Entry) error { return nil }})
	w.must(err)
	n := int64(0)
	busy := meanwhile{w.store, func(string, string) {
		if n++; n > 200 {
			return
		}
		w.write(w.open)
		if n%3 == 0 {
			_, err := f.Poll(t.Context())
			w.must(err)
			_, err = folder.Fold(t.Context(), n)
			w.must(err)
		}
	}}
	r, err := Run(t.Context(), busy, Options{AuthorityID: "auth"})
	if w.must(err); !r.Healthy() {
		t.Error(r.Findings)
	}
	if r.Manifests < 15 || w.head().Number < 15 {
		t.Errorf("%d manifests, %d moves", r.Manifests, w.head().Number)
	}
}

// TestCopiesOfOtherRegionsAreNoProblem: an entry of what is elsewhere needs no record, and a manifest that was written under a claim may
// have no entry.
func TestCopiesOfOtherRegionsAreNoProblem(t *testing.T) {
	w := newJournalled(t)
	w.accept()
	m := w.manifests[len(w.manifests)-1]
	w.delete(layout.Accepted(m.Identity))
	m.HomeRegion, m.ClaimEpoch, m.ClaimFence = "west", 1, 2
	w.put(layout.Accepted(m.Identity), m.Marshal(), nil)
	w.now = w.now.Add(2 * DefaultUnjournalled)
	before := w.check(Options{}).Journal.Entries
	if r := w.check(Options{}); !r.Healthy() || r.Journal.Unasked != 1 || r.Journal.NotJournalled != 0 {
		t.Errorf("%+v, %v", r.Journal, r.Findings)
	}
	e := m.Entry(journal.Elsewhere)
	e.ID.SeqStart, e.ID.SeqEnd, e.Generation = 1<<40, 1<<40+9, 0
	if err := journaltest.Append(context.Background(), w.store, m.AuthorityID, e); err != nil {
		t.Fatal(err)
	}
	if r := w.check(Options{}); !r.Healthy() || r.Journal.Entries != before {
		t.Errorf("%+v, %v", r.Journal, r.Findings)
	}
}

// TestWhatARegionDoesNotCount: the journal decides which manifests of a region count, and not what a manifest says. Each batch has 5
// records.
func TestWhatARegionDoesNotCount(t *testing.T) {
	stamp := func(w *journalled) accept.Manifest {
		w.accept()
		m := &w.manifests[len(w.manifests)-1]
		m.HomeRegion, m.ClaimEpoch, m.ClaimFence = "east", 1, 2
		w.put(layout.Accepted(m.Identity), m.Marshal(), nil)
		return *m
	}
	checked := func(w *journalled, s objstore.Reader) (*Report, int) {
		t.Helper()
		given := 0
		r, err := Run(t.Context(), s, Options{AuthorityID: "auth", OnBatch: func(accept.Manifest, *frame.Batch) { given++ }})
		w.must(err)
		if !r.Healthy() {
			t.Error(r.Findings)
		}
		return r, given
	}
	same := func(name string, r *Report, given, batches, copies int) {
		t.Helper()
		ledger := r.Ledgers[boot]
		if r.Manifests != uint64(batches+copies) || r.Records != uint64(5*batches) || r.Samples != r.Records || r.Journal.Unasked != uint64(copies) || ledger.BatchCount() != uint64(batches) {
			t.Errorf("%s: %+v, %d batches in the ledger; want %d and %d copies", name, r, ledger.BatchCount(), batches, copies)
		}
		if given != batches {
			t.Errorf("%s: %d batches were given", name, given)
		}
	}
	w := newJournalled(t)
	w.put(layout.RegionsKey, []byte("{}"), nil)
	r, given := checked(w, w.store)
	same("all count", r, given, 7, 0)

	ours, copied := stamp(w), stamp(w)
	w.must(journaltest.Append(t.Context(), w.store, "auth", ours.Entry(journal.AuditedAccepted)))
	elsewhere := copied.Entry(journal.Elsewhere)
	elsewhere.HomeRegion, elsewhere.Generation = "west", 0
	w.must(journaltest.Append(t.Context(), w.store, "auth", elsewhere))
	w.accept() // from before there were regions: another region's by the first recovery, so no audit enters it
	w.now = w.now.Add(2 * DefaultUnjournalled)
	r, given = checked(w, w.store)
	same("a copy, and one that lost", r, given, 8, 2)

	// A frame that retention removed.
	b, err := (&framelog.Log{AuthorityID: "auth", By: "test", Before: 1, RemovedAt: 2, Frames: []framelog.Frame{
		{Identity: copied.Identity, FrameSHA256: copied.FrameSHA256, FrameBytes: copied.FrameBytes, Keys: []string{copied.RawBlobKey}}}}).Marshal()
	w.put((&framelog.Log{Before: 1}).Key(b), b, err)
	w.delete(copied.RawBlobKey)
	r, given = checked(w, w.store)
	same("a copy without its frame", r, given, 8, 2)
	if r.Removed != 0 {
		t.Errorf("%d frames of batches that count are removed", r.Removed)
	}

	// Its entry comes while the manifests are read.
	late, once := stamp(w), false
	busy := meanwhile{w.store, func(op, key string) {
		if op == "list" && key == layout.AcceptedPrefix && !once {
			once = true
			w.must(journaltest.Append(t.Context(), w.store, "auth", late.Entry(journal.Accepted)))
		}
	}}
	r, given = checked(w, busy)
	same("an entry that came meanwhile", r, given+1, 9, 2) // whose frame is gone from memory by then

	// Without the record the bucket is that of no region: manifests with stamps are what they were.
	w.delete(layout.RegionsKey)
	w.now = w.now.Add(-2 * DefaultUnjournalled)
	r, given = checked(w, w.store)
	same("no region", r, given, 10, 1)
}
