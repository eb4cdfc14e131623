package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	objmem "lightmetrics.dev/lightmetrics/internal/objstore/mem"
	rollupprogress "lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const journalAuthority = "authority"

// journalWorld is a journal that a test writes, folds and reads, over a clock of its own.
type journalWorld struct {
	t     *testing.T
	store *objmem.Store
	now   time.Time
	n     uint64
}

func newJournalWorld(t *testing.T) *journalWorld {
	w := &journalWorld{t: t, now: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)}
	w.store = objmem.New(func() time.Time { return w.now })
	if _, err := accept.EnsureAuthority(t.Context(), w.store, journalAuthority, true); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *journalWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *journalWorld) writer(name string, role journal.Role) *journal.Writer {
	w.t.Helper()
	jw, err := journal.NewWriter(journal.WriterConfig{
		Store: w.store, Rand: rand.Reader, Clock: func() int64 { return w.now.UnixNano() },
		Opening: journal.Opening{Writer: name, Role: role, Authority: journalAuthority},
	})
	w.must(err)
	return jw
}

// write makes a segment with an entry for each agent, and returns its position.
func (w *journalWorld) write(jw *journal.Writer, agents ...string) journal.Position {
	w.t.Helper()
	for _, a := range agents {
		w.n++
		_, err := jw.Add(journal.Entry{
			ID: identity.Batch{Agent: a, Boot: "b", SeqStart: w.n * 10, SeqEnd: w.n*10 + 9}, Outcome: journal.Accepted, SHA256: identity.Sum([]byte{byte(w.n)}),
			Bytes: 100, At: w.now.UnixNano(), MinTime: w.now.UnixNano() - 1000, MaxTime: w.now.UnixNano(),
		})
		w.must(err)
	}
	at, _, err := jw.Flush(w.t.Context())
	w.must(err)
	return at
}

// fold folds everything, and deletes what was folded before.
func (w *journalWorld) fold() {
	w.t.Helper()
	f, err := journal.NewFolder(journal.FolderConfig{Store: w.store, Rand: rand.Reader})
	w.must(err)
	from, err := f.Load(w.t.Context())
	w.must(err)
	r, err := journal.NewFollower(journal.FollowerConfig{Store: w.store, Authority: journalAuthority, From: from,
		Segment: func(_ context.Context, s *journal.Segment) error { return f.Add(s) }, Folded: func(context.Context, []journal.Entry) error { return nil }})
	w.must(err)
	_, err = r.Poll(w.t.Context())
	w.must(err)
	for now := int64(1); now < 4; now++ {
		_, err = f.Fold(w.t.Context(), now)
		w.must(err)
	}
}

// positions are those of somebody who has read everything.
func (w *journalWorld) positions() journal.Positions {
	w.t.Helper()
	r, err := journal.NewFollower(journal.FollowerConfig{Store: w.store, Authority: journalAuthority,
		Segment: func(context.Context, *journal.Segment) error { return nil }, Folded: func(context.Context, []journal.Entry) error { return nil }})
	w.must(err)
	p, err := r.Poll(w.t.Context())
	w.must(err)
	return p.Positions
}

func (w *journalWorld) saveLedgers() {
	w.t.Helper()
	loaded, err := ledgers.LoadCheckpoint(w.t.Context(), w.store, nil)
	w.must(err)
	w.n++
	loaded.Set.Apply([]journal.Entry{{ID: identity.Batch{Agent: "x", Boot: "b", SeqStart: w.n, SeqEnd: w.n}, Outcome: journal.Accepted}}, func(ledgers.Change) {})
	_, err = ledgers.NewSaver(w.store, rand.Reader, 0, loaded).Save(w.t.Context(), w.positions(), 0)
	w.must(err)
}

func (w *journalWorld) survey(all bool) journalView {
	w.t.Helper()
	v, err := surveyJournal(w.t.Context(), w.store, all, time.Hour)
	w.must(err)
	return v
}

func (v journalView) reader(t *testing.T, name string) readerView {
	t.Helper()
	for _, r := range v.Readers {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("no reader %s among %+v", name, v.Readers)
	return readerView{}
}

// The status counts what was written, folded and read, whoever has read how much.
func TestJournalStatus(t *testing.T) {
	w := newJournalWorld(t)
	w.must(w.store.Delete(t.Context(), layout.JournalBeginKey))
	if v := w.survey(false); len(v.Findings) != 1 || !strings.Contains(v.Findings[0], "not known to be complete") || v.Head.Number != 0 || v.reader(t, "ledgers").Segments != 0 {
		t.Errorf("an empty journal: %+v", v)
	}
	w.must(journaltest.Complete(t.Context(), w.store, journalAuthority))
	a, b, s := w.writer("collector-a", journal.RoleCollector), w.writer("collector-b", journal.RoleCollector), w.writer("spooler", journal.RoleSpooler)
	first := w.write(a, "h1", "h2", "h3")
	w.write(a, "h4")
	_, err := s.Begin(t.Context())
	w.must(err)
	w.write(b, "h5")
	w.must(b.Close(t.Context()))
	w.saveLedgers()
	before := w.positions()
	w.fold()
	w.now = w.now.Add(10 * time.Minute)
	w.write(a, "h6", "h7")
	w.now = w.now.Add(20 * time.Minute)
	_, err = w.store.Create(t.Context(), layout.RollupConfigKey, shards.Marshal(2), objstore.PutOptions{})
	w.must(err)
	_, err = rollupprogress.Progress{AuthorityID: journalAuthority, Shard: 1, Shards: 2, Fence: 1, Positions: w.positions()}.Write(t.Context(), w.store, "")
	w.must(err)

	v := w.survey(false)
	if len(v.Findings) != 0 || v.Begun != journal.ByAuthority || v.Through == "" {
		t.Errorf("%+v", v)
	}
	if v.OpenRuns != 2 || v.EndedRuns != 1 || len(v.Runs) != 2 || len(w.survey(true).Runs) != 3 {
		t.Errorf("runs: %+v", v)
	}
	if v.Waiting != (waitingView{1, 2, "2026-03-01T10:10:00Z"}) || v.Head.Number == 0 || v.Head.Entries != 5 || v.Head.Files == 0 || v.Head.FileBytes == 0 || v.Head.Bytes == 0 || v.Head.Fences != 0 {
		t.Errorf("%+v, %+v", v.Waiting, v.Head)
	}
	for _, r := range v.Runs {
		want := runView{Run: r.Run, Writer: "spooler", Role: "spooler", State: "open", Segments: 1, Folded: 1, Deleted: 1}
		if r.Writer == "collector-a" {
			want = runView{Run: first.Run.String(), Writer: "collector-a", Role: "collector", State: "open", Segments: 3, Folded: 2, Deleted: 2,
				WaitingEntries: 2, LastAt: "2026-03-01T10:10:00Z", Age: "20m0s"}
		}
		if r != want {
			t.Errorf("got %+v\nwant %+v", r, want)
		}
	}
	// The ledgers had everything before the fold, so what was folded they know.
	if r := v.reader(t, "ledgers"); r.Head != before.Head || r.Segments != 1 || r.Entries != 2 || r.Moves == 0 || r.Oldest != "2026-03-01T10:10:00Z" || r.WrittenAt == "" {
		t.Errorf("%+v", r)
	}
	if r := v.reader(t, "rollups 0000"); r.Head != 0 || r.Segments != 6 || r.Entries != 7 || r.Oldest != "2026-03-01T10:00:00Z" || r.WrittenAt != "" {
		t.Errorf("%+v", r)
	}
	if r := v.reader(t, "rollups 0001"); r.Moves != 0 || r.Segments != 0 || r.Entries != 0 || r.Oldest != "" {
		t.Errorf("%+v", r)
	}

	var table bytes.Buffer
	cmd, out := &cobra.Command{}, format("")
	cmd.SetOut(&table)
	w.must(writeJournal(cmd, &out, v))
	for _, line := range []string{"waits to be folded       1 segments, 2 entries, oldest 2026-03-01T10:10:00Z", "collector-a   collector   open", "rollups 0000   0 "} {
		if !strings.Contains(table.String(), line) {
			t.Errorf("no %q in\n%s", line, &table)
		}
	}

	// Nobody folds, and nobody ends the run of a collector that is gone; a spooler may be silent for ever.
	w.now = w.now.Add(2 * time.Hour)
	if v := w.survey(false); len(v.Findings) != 2 || !strings.Contains(v.Findings[0], "collector-a") || !strings.Contains(v.Findings[1], "folded") {
		t.Errorf("%q", v.Findings)
	}
}

// A reader that is ahead of the head read a bucket that was replaced by an older copy.
func TestJournalStatusOfARestoredBucket(t *testing.T) {
	w := newJournalWorld(t)
	w.must(journaltest.Complete(t.Context(), w.store, journalAuthority))
	w.write(w.writer("a", journal.RoleCollector), "h1")
	w.fold()
	w.saveLedgers()
	w.must(w.store.Delete(t.Context(), layout.JournalHeadKey))
	if v := w.survey(false); len(v.Findings) == 0 || !strings.Contains(strings.Join(v.Findings, "\n"), "ledgers is at head") {
		t.Errorf("%q", v.Findings)
	}
}

// An operator ends a dead run; a writer that lives loses nothing by it.
func TestJournalFence(t *testing.T) {
	w := newJournalWorld(t)
	a, s := w.writer("collector-a", journal.RoleCollector), w.writer("spooler", journal.RoleSpooler)
	first := w.write(a, "h1")
	w.fold()
	w.write(a, "h2")
	got, err := fenceRun(t.Context(), w.store, first.Run, false)
	if err != nil || got.State != stateFenced || got.Writer != "collector-a" || got.Segments != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	fence := journal.Position{Run: first.Run, Segment: 2}
	v, err := showObject(t.Context(), w.store, fence.Key(), "")
	if err != nil || !v.Fenced || len(v.Entries) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	// The writer finds out with its next segment, and goes on in another run.
	if next := w.write(a, "h3"); next.Run == first.Run || next.Segment != 0 {
		t.Errorf("it goes on at %s", next)
	}
	if n := w.survey(false).Waiting.Entries; n != 2 {
		t.Errorf("%d entries wait", n)
	}
	// Again: it has ended already. Folded, too, and forgotten it is unknown.
	if got, err := fenceRun(t.Context(), w.store, first.Run, false); err != nil || got.State != stateFenced {
		t.Errorf("%+v, %v", got, err)
	}
	w.fold()
	if got, err := fenceRun(t.Context(), w.store, first.Run, false); err != nil || got.State != stateFenced || got.Folded != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if v := w.survey(false); v.Head.Fences != 1 {
		t.Errorf("%+v", v.Head)
	}

	spooled, err := s.Begin(t.Context())
	w.must(err)
	var exit *cli.ExitError
	if _, err := fenceRun(t.Context(), w.store, spooled.Run, false); !errors.As(err, &exit) || exit.Code != cli.ExitUsage || !strings.Contains(err.Error(), "spooler") {
		t.Errorf("the run of a spooler: %v", err)
	}
	if got, err := fenceRun(t.Context(), w.store, spooled.Run, true); err != nil || got.State != stateFenced {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := fenceRun(t.Context(), w.store, journal.RunID{1}, false); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("an unknown run: %v", err)
	}
}

func TestJournalShow(t *testing.T) {
	w := newJournalWorld(t)
	w.must(journaltest.Complete(t.Context(), w.store, journalAuthority))
	a := w.writer("collector-a", journal.RoleCollector)
	first := w.write(a, "h1", "h2")
	show := func(what, agent string) (segmentView, error) {
		t.Helper()
		key, err := journalKey(what)
		w.must(err)
		return showObject(t.Context(), w.store, key, agent)
	}
	v, err := show(first.String(), "")
	if err != nil || v.Writer != "collector-a" || v.Role != "collector" || v.Authority != journalAuthority || v.Position != first.String() || len(v.Entries) != 2 {
		t.Fatalf("%+v, %v", v, err)
	}
	e := v.Entries[0]
	if e.AgentID != "h1" || e.BootID != "b" || e.SeqStart != 10 || e.SeqEnd != 19 || e.Outcome != "accepted" || e.AcceptedAt != "2026-03-01T10:00:00Z" ||
		e.MinTime != "2026-03-01T09:59:59.999999Z" || e.Key != layout.Blob(identity.Sum([]byte{1}), 0) {
		t.Errorf("%+v", e)
	}
	if v, err := show(first.Run.String(), "h2"); err != nil || len(v.Entries) != 1 || v.Entries[0].AgentID != "h2" {
		t.Errorf("one agent: %+v, %v", v, err)
	}
	w.fold()
	if _, err := show(first.String(), ""); !errors.Is(err, objstore.ErrNotFound) || !strings.Contains(err.Error(), "folded") {
		t.Errorf("a folded segment: %v", err)
	}
	if _, err := show(fmt.Sprint(first.Run, ":9"), ""); !errors.Is(err, objstore.ErrNotFound) || !strings.Contains(err.Error(), "up to segment 1") {
		t.Errorf("one that is not there yet: %v", err)
	}
	head, _, err := journal.ReadHead(t.Context(), w.store)
	w.must(err)
	if v, err := show(head.Files[0].Key, ""); err != nil || len(v.Entries) != 2 {
		t.Errorf("%+v, %v", v, err)
	}
	for _, key := range []string{layout.JournalHeadKey, layout.JournalBeginKey} {
		v, err := show(key, "")
		if err != nil || v.Record == nil {
			t.Errorf("%+v, %v", v, err)
		}
		var b bytes.Buffer
		f := format("json")
		if err := f.write(&b, v, table{}); err != nil || !strings.Contains(b.String(), `"record"`) {
			t.Errorf("%v: %s", err, &b)
		}
	}
	for _, bad := range []string{"", "x", first.Run.String() + ":", "accepted/v1/x"} {
		if _, err := journalKey(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// The commands over a store, with their exit status.
func TestJournalCommands(t *testing.T) {
	p := newPlant(t)
	w, err := journal.NewWriter(journal.WriterConfig{Store: p.store, Rand: rand.Reader, Clock: func() int64 { return time.Now().UnixNano() },
		Opening: journal.Opening{Writer: "spooler", Role: journal.RoleSpooler, Authority: "authority"}})
	p.must(err)
	at, err := w.Begin(t.Context())
	p.must(err)
	run := at.Run.String()
	var v journalView
	if code := p.lmctl(&v, "journal", "status", p.url); code != cli.ExitOK || v.OpenRuns != 1 || len(v.Runs) != 1 || v.Runs[0].Writer != "spooler" || v.Begun == "" || v.Through == "" || len(v.Readers) != 2 {
		t.Errorf("%d, %+v", code, v)
	}
	var shown segmentView
	if code := p.lmctl(&shown, "journal", "show", p.url, run); code != cli.ExitOK || shown.Role != "spooler" || shown.At == "" {
		t.Errorf("%d, %+v", code, shown)
	}
	var ended runView
	for _, c := range []struct {
		code int
		args []string
	}{
		{cli.ExitUsage, []string{"show", p.url, "nothing"}},
		{cli.ExitFailed, []string{"show", p.url, run + ":7"}},
		{cli.ExitUsage, []string{"fence", p.url, "nothing"}},
		{cli.ExitUsage, []string{"fence", p.url, run}}, // a spooler's, without --yes
		{cli.ExitFailed, []string{"fence", p.url, strings.Repeat("0", 32)}},
		{cli.ExitOK, []string{"fence", p.url, run, "--yes"}},
		{cli.ExitOK, []string{"fence", p.url, run}}, // it has ended
	} {
		if code := p.lmctl(&ended, append([]string{"journal"}, c.args...)...); code != c.code {
			t.Errorf("%q: exit status %d, want %d", c.args, code, c.code)
		}
	}
	if ended.State != stateFenced || ended.Segments != 1 {
		t.Errorf("%+v", ended)
	}
	p.must(p.store.Delete(t.Context(), layout.JournalBeginKey))
	if code := p.lmctl(&v, "journal", "status", p.url, "--all"); code != cli.ExitFindings || v.OpenRuns != 0 || len(v.Runs) != 1 || len(v.Findings) != 1 {
		t.Errorf("%d, %+v", code, v)
	}
}

// The way out of a lost file: refused until it is lost, and with the exit status that says why not.
func TestJournalDrop(t *testing.T) {
	p := newPlant(t)
	p.must(journaltest.Append(t.Context(), p.store, "authority", journal.Entry{
		ID: identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 9}, Outcome: journal.Accepted, SHA256: identity.Sum([]byte("x")), Bytes: 100,
		At: time.Now().UnixNano(), MinTime: 1, MaxTime: 2}))
	head, err := journaltest.Fold(t.Context(), p.store, "authority")
	p.must(err)
	key := head.Files[0].Key
	var v dropView
	drop := func(args ...string) int {
		v = dropView{}
		return p.lmctl(&v, append([]string{"journal", "drop", p.url}, args...)...)
	}
	for _, c := range []struct {
		code int
		args []string
	}{
		{cli.ExitUsage, []string{key}},
		{cli.ExitUsage, []string{key, "--yes", "--dry-run"}},
		{cli.ExitFailed, []string{key, "--yes"}}, // it can be read
		{cli.ExitFailed, []string{key + "x", "--yes"}},
	} {
		if code := drop(c.args...); code != c.code {
			t.Errorf("%q: exit status %d, want %d", c.args, code, c.code)
		}
	}
	p.must(p.store.Delete(t.Context(), key))
	if code := drop(key, "--dry-run"); code != cli.ExitOK || !v.DryRun || v.Head != 0 || len(v.Files) != 1 || v.Files[0].Key != key || v.Files[0].Entries != 1 {
		t.Errorf("%d, %+v", code, v)
	}
	if now, _, err := journal.ReadHead(t.Context(), p.store); err != nil || now.Number != head.Number {
		t.Errorf("a dry run moves the head: %+v, %v", now, err)
	}
	if code := drop(key, "--yes"); code != cli.ExitOK || v.DryRun || v.Head != head.Number+1 || len(v.Files) != 1 {
		t.Errorf("%d, %+v", code, v)
	}
	if code := drop(key, "--yes"); code != cli.ExitFailed {
		t.Errorf("again: %d", code)
	}
	var st journalView
	if code := p.lmctl(&st, "journal", "status", p.url); code != cli.ExitFindings || st.Begun != "" || st.Head.Lost != head.Number+1 || !strings.Contains(strings.Join(st.Findings, ""), "dropped by move") {
		t.Errorf("%d, %+v", code, st)
	}
}

// TestJournalShowsWhatIsElsewhere: such a file has a version of its own; its entry names the home, and no frame of this bucket.
func TestJournalShowsWhatIsElsewhere(t *testing.T) {
	w := newJournalWorld(t)
	w.must(journaltest.Complete(t.Context(), w.store, journalAuthority))
	a := w.writer("collector-a", journal.RoleCollector)
	_, err := a.Add(journal.Entry{ID: identity.Batch{Agent: "h1", Boot: "b", SeqEnd: 9}, Outcome: journal.Elsewhere, SHA256: identity.Sum([]byte{1}), Bytes: 100,
		At: w.now.UnixNano(), MinTime: w.now.UnixNano(), MaxTime: w.now.UnixNano(), HomeRegion: "west", ClaimEpoch: 4})
	w.must(err)
	at := w.write(a, "h2")
	check := func(what, key string) {
		t.Helper()
		v, err := showObject(t.Context(), w.store, key, "h1")
		if err != nil || len(v.Entries) != 1 || v.Entries[0].Outcome != "elsewhere" || v.Entries[0].HomeRegion != "west" || v.Entries[0].ClaimEpoch != 4 || v.Entries[0].Key != "" {
			t.Errorf("%s: %+v, %v", what, v, err)
		}
	}
	check("the segment", at.Key())
	w.fold()
	head, _, err := journal.ReadHead(t.Context(), w.store)
	w.must(err)
	check("the folded file", head.Files[0].Key)
}
