package gc_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/epochs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

// namer is a collector that reads no markers: a run of the journal that names epochs.
type namer struct {
	g   *garden
	log *epochs.Log
	w   *journal.Writer
}

func (n *namer) Held() (journal.Condemned, uint64) {
	set, reading := n.log.Held()
	if set == nil {
		return nil, 0
	}
	return set, reading
}

func (n *namer) Readings() uint64 { return n.log.Readings() }

func (g *garden) namer() *namer {
	n := &namer{g: g, log: epochs.NewLog(g.Store, "authority-1")}
	var err error
	n.w, err = journal.NewWriter(journal.WriterConfig{
		Store: g.Store, Rand: rand.NewChaCha8([32]byte{1}), Clock: func() int64 { return 1 }, Epochs: n,
		Opening: journal.Opening{Writer: "namer", Role: journal.RoleCollector, Authority: "authority-1"},
	})
	g.must(err)
	return n
}

// enters accepts a batch and enters it, and reports whether it is spared the marker.
func (n *namer) enters(sub accept.Submission) bool {
	n.g.t.Helper()
	res := submit(n.g.t, n.g.Store, sub)
	no, err := n.w.Add(res.Manifest.Entry(journal.Accepted))
	n.g.must(err)
	_, _, err = n.w.Flush(n.g.t.Context())
	n.g.must(err)
	return n.w.Spared(no)
}

func (n *namer) reads() { n.g.must(n.log.Read(n.g.t.Context())) }

// TestTheLogOfEpochsBegins: first earlier releases refuse the state, and after an hour the log begins, with what was condemned before.
func TestTheLogOfEpochsBegins(t *testing.T) {
	g := newGarden(t)
	g.accepted(3)
	before := g.orphans(1)
	g.now = g.now.Add(25 * time.Hour)
	old := g.runner("a", limits(), nil)
	g.run(old)
	g.now = g.now.Add(25 * time.Hour)
	g.run(old)
	g.check(false, before...)
	if st := g.state(); st.EpochsAt != 0 || !bytes.Contains(st.Marshal(), []byte(gc.StateKind.Schema)) {
		t.Fatalf("epochs since %d", st.EpochsAt)
	}
	l := limits()
	l.Epochs, l.DryRun = true, true
	g.run(g.runner("dry", l, nil))
	if st := g.state(); st.EpochsAt != 0 {
		t.Fatalf("a dry run: epochs since %d", st.EpochsAt)
	}
	l.DryRun = false
	r := g.runner("b", l, nil)
	g.run(r)
	if st := g.state(); st.EpochsAt != g.now.Unix() || !bytes.Contains(st.Marshal(), []byte(gc.EpochsStateKind.Schema)) {
		t.Fatalf("epochs since %d", st.EpochsAt)
	}
	if keys := g.keys(layout.CondemnedEpochsPrefix); len(keys) != 0 {
		t.Fatalf("the log begins at once: %q", keys)
	}
	g.now = g.now.Add(59 * time.Minute)
	if g.run(r); len(g.keys(layout.CondemnedEpochsPrefix)) != 0 {
		t.Fatal("the log begins within the hour")
	}
	g.now = g.now.Add(time.Minute)
	g.run(r)
	if keys := g.keys(layout.CondemnedEpochsPrefix); len(keys) != 2 {
		t.Fatalf("the log is %q", keys)
	}
	n := g.namer()
	n.reads()
	if set, _ := n.log.Held(); !set.Has(before[0].SHA256) {
		t.Error("what was condemned before is in no epoch")
	}
	// The state is lost: it must be one that earlier releases refuse, whatever the setting.
	g.must(g.Store.Delete(t.Context(), layout.GCStateKey))
	g.run(g.runner("c", limits(), nil))
	if g.state().EpochsAt == 0 {
		t.Error("earlier releases could collect again")
	}
}

// TestACollectionWaitsForRuns: nothing is deleted before each run that names epochs has named that of what is condemned.
func TestACollectionWaitsForRuns(t *testing.T) {
	g := newGarden(t)
	g.accepted(3)
	l := limits()
	l.Epochs = true
	r := g.runner("a", l, nil)
	g.run(r)
	g.now = g.now.Add(time.Hour)
	g.run(r)
	n := g.namer()
	n.reads()
	if n.enters(g.batch()) {
		t.Fatal("segment 0 spares")
	}
	n.reads()
	if !n.enters(g.batch()) {
		t.Fatal("a segment does not spare")
	}
	orphan, reused := g.orphans(1)[0], g.orphans(1)[0]
	g.now = g.now.Add(25 * time.Hour)
	p, err := r.Step(t.Context())
	g.must(err)
	if p.Awaited == 0 || p.Worked || len(g.keys(layout.CondemnedEpochsPrefix)) != 3 {
		t.Fatalf("%+v", p)
	}
	g.check(true, orphan, reused)
	// A call that does not know of the epoch is answered from an earlier one: its manifest is there before the proof.
	if !n.enters(reused) {
		t.Fatal("not spared")
	}
	// The wait goes on, and costs no plan.
	g.now = g.now.Add(time.Minute)
	if p, err = r.Step(t.Context()); err != nil || p.Awaited != 1 || len(g.keys(layout.CondemnedEpochsPrefix)) != 3 {
		t.Fatalf("%+v, %v", p, err)
	}
	g.check(true, orphan, reused)
	n.reads()
	if !n.w.Behind() {
		t.Fatal("the run is not behind")
	}
	g.must(n.w.Renew(t.Context()))
	g.run(r)
	g.check(false, orphan)
	g.check(true, reused)
	if n.enters(orphan) {
		t.Error("what is condemned is spared")
	}
	// A run that is gone is waited for until it is fenced; also by another process, after the markers are there.
	lost := g.orphans(1)[0]
	g.now = g.now.Add(8 * 24 * time.Hour)
	for _, by := range []string{"a", "b"} {
		other := g.runner(by, limits(), nil)
		if p, err = other.Step(t.Context()); err != nil || p.Awaited == 0 {
			t.Fatalf("%+v, %v", p, err)
		}
		r = other
	}
	g.check(true, lost)
	g.must(journal.End(t.Context(), g.Store, g.openRun()))
	g.run(r)
	g.check(false, lost)
}

// openRun is the run that names epochs.
func (g *garden) openRun() (run journal.RunID) {
	for _, key := range g.keys(layout.JournalOpenPrefix) {
		b, _, err := g.Store.Get(g.t.Context(), key, objstore.GetOptions{})
		g.must(err)
		s, err := journal.ParseSegment(b)
		g.must(err)
		if s.Epochs {
			run = s.Run
		}
	}
	return run
}

// TestAMarkerThatIsThereAlreadyIsNamed: whoever made it may have died before it named it.
func TestAMarkerThatIsThereAlreadyIsNamed(t *testing.T) {
	g := newGarden(t)
	g.accepted(3)
	l := limits()
	l.Epochs = true
	r := g.runner("a", l, nil)
	g.run(r)
	g.now = g.now.Add(time.Hour)
	g.run(r)
	orphan := g.orphans(1)[0]
	put(t, g.Store, layout.Condemned(orphan.SHA256, 0), []byte("{}"))
	g.now = g.now.Add(25 * time.Hour)
	g.run(r)
	g.check(false, orphan)
	n := g.namer()
	n.reads()
	if set, _ := n.log.Held(); !set.Has(orphan.SHA256) {
		t.Error("it is in no epoch")
	}
}

// TestTheLogBeginsBesideACollection: a collection that found no log before its marker was there asks again.
func TestTheLogBeginsBesideACollection(t *testing.T) {
	g := newGarden(t)
	g.accepted(3)
	orphan := g.orphans(1)[0]
	c := collector(t, &beginning{Store: g.Store, key: layout.Condemned(orphan.SHA256, 0), begin: func() {
		l, by := epochs.NewLog(g.Store, "authority-1"), epochs.Writer{Store: g.Store, By: "other"}
		g.must(l.Begin(t.Context(), by))
		_, err := l.Name(t.Context(), by, nil)
		g.must(err)
	}})
	p, err := c.PlanKeys(t.Context(), []string{layout.Blob(orphan.SHA256, 0)}, 100, gc.PlanOptions{ID: "p", MinAge: -1})
	g.must(err)
	if _, err := c.Execute(t.Context(), p, gc.ExecuteOptions{}); err != nil {
		t.Fatal(err)
	}
	g.check(false, orphan)
	n := g.namer()
	n.reads()
	if set, _ := n.log.Held(); !set.Has(orphan.SHA256) {
		t.Error("it was deleted, and is in no epoch")
	}
}

// beginning has the log begin just before a create.
type beginning struct {
	*mem.Store
	key   string
	begin func()
}

func (b *beginning) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if key == b.key {
		b.begin()
	}
	return b.Store.Create(ctx, key, body, o)
}
