package gc_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// What was reported is collected once the report is old enough, without a sweep, and a batch that was sent again meanwhile stays.
func TestReportedOrphansAreCollected(t *testing.T) {
	g := newGarden(t)
	old := g.accepted(1)
	gone, again := g.orphans(3), g.orphans(1)
	key := g.report(old[0], 100, append(slices.Clone(gone), again...)...)
	g.report(old[0], 100, gone...) // the same, by another collector
	r := g.runner("r", limits(), nil)
	g.run(r)
	g.check(true, gone...)
	submit(t, g.Store, again[0])
	g.now = g.now.Add(5 * time.Minute)
	st := g.run(r)
	g.check(false, gone...)
	g.check(true, again[0], old[0])
	if has(t, g.Store, key) || len(g.keys(layout.OrphanReportsPrefix)) > 0 {
		t.Error("the report is still there")
	}
	if st.Deleted != 3 || st.Markers != 3 || st.Bytes == 0 || st.Last.BeganAt != 0 {
		t.Errorf("%+v", st)
	}
	// The log has each of them before its delete, and what became of it.
	actions := map[gc.Action]int{}
	for _, l := range g.logs() {
		for _, e := range l.Entries {
			actions[e.Action]++
			if l.Source != gc.FromReports || l.Plan == "" || e.Bytes == 0 {
				t.Errorf("%+v of %+v", e, l)
			}
		}
	}
	if actions[gc.Condemned] != 3 || actions[gc.Deleted] != 3 {
		t.Errorf("log: %v", actions)
	}
	// A repeat is harmless.
	g.report(old[0], 1, gone...)
	g.now = g.now.Add(time.Hour)
	if st := g.run(r); st.Deleted != 3 {
		t.Errorf("repeat: %+v", st)
	}
}

// Reports of a bucket of which nobody knows a manifest that must be there wait for the sweep.
func TestReportsWithoutAWitnessWait(t *testing.T) {
	g := newGarden(t)
	lost := g.orphans(1)
	key := g.report(accept.Submission{}, 1, lost...)
	g.now = g.now.Add(time.Hour)
	r := g.runner("r", limits(), nil)
	g.run(r)
	g.check(true, lost...)
	if !has(t, g.Store, key) {
		t.Error("the report is gone")
	}
}

// A sweep finds every orphan in parts, whatever its bounds are and whoever goes on with it, and leaves the rest alone.
func TestASweepInParts(t *testing.T) {
	for _, l := range []gc.Limits{{}, {MaxListed: 7}, {MaxNames: 9}, {MaxNames: 5, MaxListed: 3, Step: 1}} {
		g := newGarden(t)
		kept, lost := g.accepted(60), g.orphans(25)
		put(t, g.Store, layout.RawBlobsPrefix+"notes.txt", nil)
		put(t, g.Store, layout.RawBlobsPrefix+"sha256/7f/notes", nil)
		l.MinAge, l.Delay, l.Interval, l.Lease = 24*time.Hour, 5*time.Minute, 7*24*time.Hour, 10*time.Minute
		runners := []*gc.Runner{g.runner("a", l, nil), g.runner("b", l, nil)}
		g.run(runners[0]) // creates the state
		g.check(true, lost...)
		g.now = g.now.Add(24 * time.Hour)
		young := g.orphans(5)
		// They take turns: each gives the claim back, or is taken for dead.
		for i := 0; g.state().Last.BeganAt == 0; i++ {
			if i > 1000 {
				t.Fatalf("%+v: the sweep does not end: %+v", l, g.state())
			}
			_, err := runners[i%2].Step(t.Context())
			g.must(err)
			if i%4 < 2 {
				g.must(runners[i%2].Release(t.Context()))
			} else {
				g.now = g.now.Add(11 * time.Minute)
			}
		}
		g.check(true, kept...)
		g.check(true, young...)
		g.check(false, lost...)
		st := g.state()
		if w := st.Last; w.Deleted != 25 || w.Listed < 92 || w.Named < 60 || w.Young != 5 || w.Foreign != 2 || st.Deleted != 25 || w.Candidates != 25 {
			t.Errorf("%+v: %+v", l, st)
		}
		if !has(t, g.Store, layout.RawBlobsPrefix+"notes.txt") {
			t.Error("an unknown key was touched")
		}
	}
}

// Where the manifests are hidden everything looks like an orphan. Nothing is condemned until an operator says so.
func TestTheBreakerTripsWhereManifestsAreHidden(t *testing.T) {
	g := newGarden(t)
	all := g.accepted(80)
	// The journal's last entries are hidden as well, as where a restore has lost both.
	lost := g.orphans(2)
	hidden := true
	blind := blindfold{Store: g.Store, hidden: func(key string) bool { return hidden && strings.HasPrefix(key, layout.AcceptedPrefix) }}
	r := g.runner("r", limits(), blind)
	g.run(r)
	g.now = g.now.Add(24 * time.Hour)
	g.report(all[0], 10, append(slices.Clone(all[:5]), lost...)...)
	g.now = g.now.Add(10 * time.Minute)
	st := g.run(r)
	// The report waits, and is said to.
	g.now = g.now.Add(time.Hour)
	if p, err := r.Step(t.Context()); err != nil || !p.Looked || p.Waiting != 1 || p.Oldest < time.Hour+9*time.Minute || p.Oldest > 2*time.Hour {
		t.Errorf("%+v, %v", p, err)
	}
	if b := st.Breaker; b == nil || b.Cause != gc.Hidden || b.Key == "" || st.Markers != 0 || len(g.keys(layout.CondemnedPrefix)) > 0 {
		t.Fatalf("%+v", st)
	}
	g.check(true, all...)
	g.check(true, lost...)
	// An operator who has not mended it finds it tripped again.
	_, err := gc.ReleaseBreaker(t.Context(), g.Store, "authority-1", "op")
	g.must(err)
	// That one key is known to be missing now. Others are not.
	if st := g.run(r); !st.Holds() || len(g.keys(layout.CondemnedPrefix)) > 0 {
		t.Fatalf("%+v", st)
	}
	hidden = false
	_, err = gc.ReleaseBreaker(t.Context(), g.Store, "authority-1", "op")
	g.must(err)
	g.run(r)
	g.check(true, all...)
	g.check(false, lost...)
	if st := g.state(); len(st.Lost) > 0 {
		t.Errorf("nothing is lost: %q", st.Lost)
	}
	if _, err = gc.ReleaseBreaker(t.Context(), g.Store, "authority-1", "op"); !errors.Is(err, gc.ErrNotTripped) {
		t.Errorf("%v", err)
	}
}

// What is hidden in the middle of a plan trips the breaker before the next step, also where the plan was small enough to pass.
func TestManifestsAreHiddenInTheMiddleOfAPlan(t *testing.T) {
	g := newGarden(t)
	g.accepted(300)
	lost := g.orphans(20)
	hidden := false
	blind := blindfold{Store: g.Store, hidden: func(key string) bool { return hidden && strings.HasPrefix(key, layout.AcceptedPrefix) }}
	l := limits()
	l.Step = 4
	r := g.runner("r", l, deleting{blind, func() { hidden = true }})
	g.run(r)
	g.now = g.now.Add(24 * time.Hour)
	st := g.run(r)
	if !st.Holds() || st.Breaker.Cause != gc.Hidden || st.Deleted != 4 || st.Markers != 4 || st.Sweep.Deleted != 4 {
		t.Errorf("%+v, %+v", st, st.Breaker)
	}
	hidden = false
	_, err := gc.ReleaseBreaker(t.Context(), g.Store, "authority-1", "op")
	g.must(err)
	if st := g.run(g.runner("other", l, nil)); st.Deleted != 20 || st.Last.Deleted != 20 || len(st.Lost) > 0 {
		t.Errorf("%+v", st)
	}
	g.check(false, lost...)
}

// deleting is a store that tells of deletes.
type deleting struct {
	blindfold
	before func()
}

func (d deleting) Delete(ctx context.Context, key string) error {
	d.before()
	return d.Store.Delete(ctx, key)
}

// blindfold is a store that hides keys, as a wrong role or a replica does.
type blindfold struct {
	*mem.Store
	hidden func(key string) bool
}

func (b blindfold) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if b.hidden(key) {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrNotFound}
	}
	return b.Store.Get(ctx, key, o)
}

func (b blindfold) Head(ctx context.Context, key string) (objstore.Info, error) {
	if b.hidden(key) {
		return objstore.Info{}, &objstore.Error{Op: "head", Key: key, Err: objstore.ErrNotFound}
	}
	return b.Store.Head(ctx, key)
}

// Of too many orphans nothing is deleted until an operator says so, and then not more than the operator has seen.
func TestTheBreakerTripsOnTooMany(t *testing.T) {
	g := newGarden(t)
	g.accepted(20)
	lost := g.orphans(60)
	r := g.runner("r", limits(), nil)
	g.run(r)
	g.now = g.now.Add(24 * time.Hour)
	st := g.run(r)
	if b := st.Breaker; b == nil || b.Cause != gc.TooMany || b.Candidates != 60 || b.Listed != 80 {
		t.Fatalf("%+v", st)
	}
	g.check(true, lost...)
	_, err := gc.ReleaseBreaker(t.Context(), g.Store, "authority-1", "op")
	g.must(err)
	more := g.orphans(1)
	g.now = g.now.Add(24 * time.Hour)
	if st := g.run(r); !st.Holds() || st.Breaker.Candidates != 61 {
		t.Fatalf("%+v", st)
	}
	_, err = gc.ReleaseBreaker(t.Context(), g.Store, "authority-1", "op")
	g.must(err)
	if st := g.run(r); st.Breaker != nil || st.Deleted != 61 || st.Last.Deleted != 61 {
		t.Fatalf("%+v", st)
	}
	g.check(false, append(lost, more...)...)
}

// Of two processes one collects. One that was stopped in the middle and goes on after another has taken over condemns nothing
// more than the step that it was in.
func TestAStoppedProcessIsFenced(t *testing.T) {
	g := newGarden(t)
	g.accepted(300)
	lost := g.orphans(20)
	l := limits()
	l.Step = 4
	other := g.runner("other", l, nil)
	stopped := false
	markers := func() int { return len(g.keys(layout.CondemnedPrefix)) }
	f := pausing{Store: g.Store, before: func(op, key string) {
		if op != "create" || !strings.HasPrefix(key, layout.CondemnedPrefix) || stopped {
			return
		}
		stopped = true
		g.now = g.now.Add(9 * time.Minute)
		if p, err := other.Step(t.Context()); err != nil || p.Worked {
			t.Errorf("within the lease: %+v, %v", p, err)
		}
		g.now = g.now.Add(2 * time.Minute)
		if p, err := other.Step(t.Context()); err != nil || !p.Worked {
			t.Errorf("after the lease: %+v, %v", p, err)
		}
		if markers() != 20 {
			t.Errorf("%d markers", markers())
		}
		// An agent sends one of them again: a zombie's delete must not reach what it relies on.
		submit(t, g.Store, lost[0])
	}}
	r := g.runner("r", l, f)
	_, err := r.Step(t.Context())
	g.must(err)
	g.now = g.now.Add(24 * time.Hour)
	if _, err := r.Step(t.Context()); !errors.Is(err, gc.ErrFenced) || !stopped {
		t.Fatalf("%v", err)
	}
	g.check(true, lost[0])
	g.check(false, lost[1:]...)
	if st := g.state(); st.Deleted != 20 || st.Holder != "other" {
		t.Errorf("%+v", st)
	}
	if err := r.Renew(t.Context()); err != nil {
		t.Errorf("a process that holds nothing renews nothing: %v", err)
	}
}

type pausing struct {
	*mem.Store
	before func(op, key string)
}

func (p pausing) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	p.before("create", key)
	return p.Store.Create(ctx, key, b, o)
}

// A day's requests are bounded; the next day goes on.
func TestTheBudgetOfADay(t *testing.T) {
	g := newGarden(t)
	g.accepted(300)
	lost := g.orphans(20)
	l := limits()
	l.Budget, l.Step = 100, 1
	r := g.runner("r", l, nil)
	g.run(r)
	g.now = g.now.Add(24 * time.Hour)
	for day := range 10 {
		over := false
		for range 20 {
			p, err := r.Step(t.Context())
			g.must(err)
			over = over || p.OverBudget
		}
		st := g.state()
		if st.Last.BeganAt > 0 {
			if day == 0 {
				t.Error("the budget does not bound anything")
			}
			g.check(false, lost...)
			if st.Deleted != 20 || st.Last.Deleted != 20 || st.Bytes == 0 || st.Bytes != st.Last.Bytes {
				t.Errorf("%+v", st)
			}
			return
		}
		if !over || st.Requests > l.Budget+20 {
			t.Errorf("day %d: over %v, %+v", day, over, st)
		}
		g.now = g.now.Add(24 * time.Hour)
	}
	t.Error("the sweep does not end")
}

// A dry run logs what it would delete, and changes nothing else: neither the state, nor the reports.
func TestADryRunOfTheService(t *testing.T) {
	g := newGarden(t)
	all := g.accepted(3)
	lost := g.orphans(60)
	g.run(g.runner("collects", limits(), nil)) // has made the state
	g.report(all[0], 3, lost[0])
	before := g.everything()
	l := limits()
	l.DryRun = true
	r := g.runner("r", l, nil)
	g.now = g.now.Add(24 * time.Hour)
	st := g.run(r)
	g.check(true, lost...)
	if st.Breaker != nil || st.Last.Candidates != 60 || st.Last.EndedAt == 0 || st.Markers != 0 {
		t.Errorf("%+v", st)
	}
	entries := func() (n int) {
		for _, log := range g.logs() {
			n += len(log.Entries)
		}
		return n
	}
	if n := entries(); n != 61 {
		t.Errorf("%d entries in the log", n)
	}
	if !maps.Equal(before, g.everything()) {
		t.Error("a dry run changes more than its log")
	}
	// It has seen them, and does not do the same again and again, but where an operator asks.
	g.now = g.now.Add(time.Hour)
	g.run(r)
	_, err := gc.RequestSweep(t.Context(), g.Store, "authority-1")
	g.must(err)
	for range 3 {
		g.run(r)
	}
	if n := entries(); n != 121 || !g.state().Requested {
		t.Errorf("%d entries in the log; %+v", n, g.state())
	}
	// Whoever collects finds all of it as it was.
	if st := g.run(g.runner("collects", limits(), nil)); !st.Holds() || st.Deleted != 1 {
		t.Errorf("%+v", st)
	}
}

// In a dry run nobody can release the breaker, so it asks again.
func TestADryRunWhereManifestsAreHidden(t *testing.T) {
	g := newGarden(t)
	g.accepted(3)
	g.orphans(2)
	hidden := true
	l := limits()
	l.DryRun = true
	r := g.runner("r", l, blindfold{Store: g.Store, hidden: func(key string) bool { return hidden && strings.HasPrefix(key, layout.AcceptedPrefix) }})
	g.run(r)
	g.now = g.now.Add(24 * time.Hour)
	if st := g.run(r); !st.Holds() || g.state().CreatedAt != 0 {
		t.Errorf("%+v", st)
	}
	hidden = false
	if st := g.run(r); !st.Holds() {
		t.Errorf("%+v", st)
	}
	g.now = g.now.Add(time.Hour)
	if st := g.run(r); st.Holds() || st.Last.Candidates != 2 {
		t.Errorf("%+v", st)
	}
}

// everything is the bucket but the log of collected blobs.
func (g *garden) everything() map[string]string {
	all := map[string]string{}
	for _, key := range g.keys("") {
		if !strings.HasPrefix(key, layout.BlobLogsPrefix) {
			b, _, err := g.Get(g.t.Context(), key, objstore.GetOptions{})
			g.must(err)
			all[key] = string(b)
		}
	}
	return all
}

// A report about whose blobs the store does not say enough is kept, and checked again, at most for some days.
func TestAReportThatWasNotAnsweredIsCheckedAgain(t *testing.T) {
	for what, fails := range map[string]func(op, key string) bool{
		"search": func(op, key string) bool { return op == "get" && strings.HasPrefix(key, layout.AcceptedPrefix) },
		"marker": func(op, key string) bool { return op == "create" && strings.HasPrefix(key, layout.CondemnedPrefix) },
		"delete": func(op, key string) bool { return op == "delete" && strings.HasPrefix(key, layout.RawBlobsPrefix) },
	} {
		t.Run(what, func(t *testing.T) {
			g := newGarden(t)
			old := g.accepted(1)
			lost := g.orphans(3)
			bad := lost[0]
			away := true
			s := faulty{Store: g.Store, before: func(op, key string) error {
				if away && fails(op, key) && (strings.Contains(key, bad.SHA256.String()) || key == layout.Accepted(bad.Identity)) {
					return objstore.ErrUnavailable
				}
				return nil
			}}
			r := g.runner("r", limits(), s)
			g.run(r)
			open, done := g.report(old[0], 100, lost[:2]...), g.report(old[0], 100, lost[2])
			g.now = g.now.Add(5 * time.Minute)
			st := g.run(r)
			g.check(true, bad)
			g.check(false, lost[1:]...)
			if !has(t, g.Store, open) || has(t, g.Store, done) || len(st.Postponed) != 1 || st.Postponed[0].Key != open {
				t.Fatalf("%+v", st)
			}
			n := 0
			for _, l := range g.logs() {
				for _, e := range l.Entries {
					if e.Key == layout.Blob(bad.SHA256, 0) && (e.Reason == gc.StoreFailed || e.Reason == gc.MarkerUnknown || e.Action == gc.DeleteUnknown) {
						n++
					}
				}
			}
			if n != 1 {
				t.Errorf("the log has the blob %d times", n)
			}
			if p, err := r.Step(t.Context()); err != nil || p.Waiting != 1 || p.Oldest != 0 {
				t.Errorf("%+v, %v", p, err)
			}
			// Not at once, but by whoever collects then.
			away = false
			g.run(g.runner("other", limits(), nil))
			g.check(true, bad)
			g.now = g.now.Add(5 * time.Minute)
			st = g.run(g.runner("other", limits(), nil))
			g.check(false, bad)
			if has(t, g.Store, open) || len(st.Postponed) != 0 || st.Deleted != 3 {
				t.Errorf("%+v", st)
			}
			// One that is never answered is left to the sweep after some days.
			away = true
			bad = g.orphans(1)[0]
			open = g.report(old[0], 100, bad)
			attempts := 0
			for begin := g.now; has(t, g.Store, open); g.now = g.now.Add(time.Minute) {
				if plan := g.state().Plan; g.run(r).Plan > plan {
					attempts++
				}
				if g.now.Sub(begin) > 7*24*time.Hour {
					t.Fatalf("%+v", g.state())
				}
			}
			if attempts < 5 || attempts > 20 || len(g.state().Postponed) > 0 {
				t.Errorf("%d attempts, %+v", attempts, g.state())
			}
		})
	}
}

// The search for what was reported asks the budget, too, and goes on the next day.
func TestTheBudgetOfReports(t *testing.T) {
	g := newGarden(t)
	old := g.accepted(1)
	var sent []accept.Submission
	for range 300 {
		sub := g.batch()
		submit(t, g.Store, sub)
		sent = append(sent, sub)
	}
	lost := g.orphans(3)
	g.report(old[0], 1000, append(slices.Clone(sent), lost...)...)
	g.now = g.now.Add(10 * time.Minute)
	// It ends the listing, and the search.
	for _, budget := range []uint64{200, 700} {
		g.now = g.now.Add(24 * time.Hour)
		l := limits()
		l.Budget, l.Step, l.Interval = budget, 10, 0
		r := g.runner("r", l, nil)
		for range 5 {
			if p, err := r.Step(t.Context()); err != nil || !p.OverBudget {
				t.Fatalf("%+v, %v", p, err)
			}
		}
		if st := g.state(); st.Requests < budget || st.Requests > budget+10*5 {
			t.Errorf("%d requests of %d", st.Requests, budget)
		}
	}
	g.check(true, lost...)
	// What a day can't do of many reports it does of some.
	for i := range 4 {
		r := gc.OrphanReport{AuthorityID: "authority-1", CollectorID: "c", ReportedAt: int64(i), Submissions: 1e6, Witness: layout.Accepted(old[0].Identity)}
		for n := range gc.MaxReported {
			r.Frames = append(r.Frames, identity.Sum(fmt.Append(nil, i, n)))
		}
		body, err := r.Marshal()
		g.must(err)
		put(t, g.Store, r.Key(body), body)
	}
	l := limits()
	l.Budget, l.Interval = 3000, 0
	r := g.runner("many", l, nil)
	for range 4 {
		g.now = g.now.Add(24 * time.Hour)
		g.run(r)
	}
	g.check(false, lost...)
	if left := g.keys(layout.OrphanReportsPrefix); len(left) > 0 {
		t.Errorf("%d reports are left", len(left))
	}
}

// An outcome that was written without an answer counts once, also where an operator has moved the state before it is asked for again.
func TestAnOutcomeIsCountedOnce(t *testing.T) {
	g := newGarden(t)
	old := g.accepted(1)
	lost := g.orphans(3)
	l := limits()
	l.Interval = 0
	moved := 0
	s := losing{Store: g.Store, lose: func() bool {
		if g.state().Deleted == 0 || moved > 0 {
			return false
		}
		moved++
		_, err := gc.RequestSweep(t.Context(), g.Store, "authority-1")
		g.must(err)
		return true
	}}
	r := g.runner("r", l, s)
	g.run(r)
	g.report(old[0], 100, lost...)
	g.now = g.now.Add(10 * time.Minute)
	if _, err := r.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := g.state(); moved != 1 || st.Deleted != 3 || st.Markers != 3 || !st.Requested {
		t.Errorf("%d moves, %+v", moved, st)
	}
}

// The requests of a sweep grow with the listing and the journal's files, and those of orphans with the orphans.
func TestRequestsOfASweep(t *testing.T) {
	sweep := func(batches, orphans int) int {
		g := newGarden(t)
		// Without frames, and folded, as after a while.
		var entries []journal.Entry
		for i := range batches {
			id := identity.Batch{Agent: "a", Boot: "b", SeqStart: uint64(i) + 1<<20, SeqEnd: uint64(i) + 1<<20}
			d := identity.Sum([]byte(id.String()))
			put(t, g.Store, layout.Blob(d, 0), nil)
			put(t, g.Store, layout.Accepted(id), nil)
			entries = append(entries, journal.Entry{ID: id, Outcome: journal.Accepted, SHA256: d, Bytes: 1, MinTime: 1, MaxTime: 1})
		}
		for part := range slices.Chunk(entries, 1000) {
			g.must(journaltest.Append(t.Context(), g.Store, "authority-1", part...))
		}
		_, err := journaltest.Fold(t.Context(), g.Store, "authority-1")
		g.must(err)
		g.orphans(orphans)
		counted := storetest.Count(g.Store)
		r := g.runner("r", limits(), counted)
		g.run(r)
		g.now = g.now.Add(24 * time.Hour)
		counted.Reset()
		g.run(r)
		if st := g.state(); int(st.Last.Listed) != batches+orphans || int(st.Deleted) != orphans {
			t.Fatalf("%+v", st)
		}
		return counted.Of("", "")
	}
	const n = 2000
	base := sweep(n, 0)
	for _, times := range []int{4, 16} {
		got := sweep(times*n, 0)
		// One LIST per 1,000 blobs is all that grows, while the journal is one file.
		if more := got - base; more != (times-1)*n/1000 {
			t.Errorf("%d batches: %d requests, %d for %d", times*n, got, base, n)
		}
		// Acceptance costs 3 requests a batch and a share of a segment.
		if share := float64(got) / float64(3*times*n); share > 0.02 {
			t.Errorf("%d batches: %.4f of the requests of acceptance", times*n, share)
		}
	}
	few, many := sweep(n, 10), sweep(n, 40)
	t.Logf("requests: %d for %d batches, %d with 10 orphans, %d with 40", base, n, few, many)
	// Header, two searches of two reads, marker and delete.
	if many-few != 30*7 {
		t.Errorf("30 orphans more: %d requests", many-few)
	}
}

// The state is read back as it was written, and refused where it is another's.
func TestStateOfAnotherAuthority(t *testing.T) {
	g := newGarden(t)
	g.run(g.runner("r", limits(), nil))
	if _, _, err := gc.ReadState(t.Context(), g.Store, "authority-2"); err == nil {
		t.Error("a state of another authority is read")
	}
	if _, err := gc.RequestSweep(t.Context(), g.Store, "authority-1"); err != nil || !g.state().Requested {
		t.Errorf("%v, %+v", err, g.state())
	}
	r := g.runner("r", limits(), nil)
	if st := g.run(r); st.Requested || st.Last.BeganAt == 0 {
		t.Errorf("%+v", st)
	}
}

// A reply that is lost leaves the state as it was meant.
func TestAMoveWhoseAnswerIsLost(t *testing.T) {
	g := newGarden(t)
	n := 0
	f := losing{Store: g.Store, lose: func() bool { n++; return n%2 == 1 }}
	for i := range 5 {
		st, err := gc.MoveState(t.Context(), f, "authority-1", func(s *gc.State) error { s.Plan++; return nil })
		if err != nil || st.Plan != uint64(i)+1 || g.state().Plan != st.Plan {
			t.Fatalf("%d: %+v, %v", i, st, err)
		}
	}
}

type losing struct {
	*mem.Store
	lose func() bool
}

func (l losing) answer(op, key string, i objstore.Info, err error) (objstore.Info, error) {
	if err == nil && l.lose() {
		return objstore.Info{}, &objstore.Error{Op: op, Key: key, Err: fmt.Errorf("%w: timeout", objstore.ErrUnknown)}
	}
	return i, err
}

func (l losing) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	i, err := l.Store.Create(ctx, key, b, o)
	return l.answer("create", key, i, err)
}

func (l losing) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	i, err := l.Store.Replace(ctx, key, b, etag, o)
	return l.answer("replace", key, i, err)
}

// A sweep that goes on after days does not take what was accepted meanwhile for orphans, of which there would be too many.
func TestASweepThatGoesOnAfterDays(t *testing.T) {
	g := newGarden(t)
	g.accepted(20)
	lost := g.orphans(60)
	r := g.runner("r", limits(), nil)
	g.run(r)
	g.now = g.now.Add(24 * time.Hour)
	if st := g.run(r); !st.Holds() || st.Breaker.Candidates != 60 {
		t.Fatalf("%+v", st)
	}
	kept := g.accepted(200)
	g.now = g.now.Add(3 * 24 * time.Hour)
	_, err := gc.ReleaseBreaker(t.Context(), g.Store, "authority-1", "op")
	g.must(err)
	if st := g.run(r); st.Breaker != nil || st.Deleted != 60 || st.Last.Candidates != 60 || st.Last.Named != 220 {
		t.Fatalf("%+v", st)
	}
	g.check(true, kept...)
	g.check(false, lost...)
}

// What an operator knows to be lost stays known, however many manifests it is, and whatever else trips the breaker.
func TestSeveralManifestsAreLost(t *testing.T) {
	g := newGarden(t)
	all := g.accepted(40)
	r := g.runner("r", limits(), nil)
	g.run(r)
	g.now = g.now.Add(24 * time.Hour)
	known := g.run(r).Witnesses
	for _, key := range known[:2] {
		g.must(g.Delete(t.Context(), key))
	}
	lost := g.orphans(60)
	g.now = g.now.Add(8 * 24 * time.Hour)
	for _, want := range []gc.Cause{gc.Hidden, gc.Hidden, gc.TooMany} {
		if st := g.run(r); !st.Holds() || st.Breaker.Cause != want {
			t.Fatalf("want %s: %+v, %+v", want, st, st.Breaker)
		}
		_, err := gc.ReleaseBreaker(t.Context(), g.Store, "authority-1", "op")
		g.must(err)
	}
	st := g.run(r)
	if st.Holds() || st.Deleted != 60 || len(st.Lost) != 2 {
		t.Fatalf("%+v, %+v", st, st.Breaker)
	}
	g.check(true, all...)
	g.check(false, lost...)
	// Where all that is asked for is gone, nothing shows that others can be seen, whatever was released.
	for _, key := range known[2:] {
		g.must(g.Delete(t.Context(), key))
	}
	more := g.orphans(1)
	g.now = g.now.Add(8 * 24 * time.Hour)
	for range 6 {
		if st := g.run(r); !st.Holds() || st.Breaker.Cause != gc.Hidden {
			t.Fatalf("%+v, %+v", st, st.Breaker)
		}
		_, err := gc.ReleaseBreaker(t.Context(), g.Store, "authority-1", "op")
		g.must(err)
	}
	g.check(true, more...)
}

// A release that no plan has needed ends with the sweep.
func TestAReleaseIsNotForLater(t *testing.T) {
	g := newGarden(t)
	g.accepted(20)
	lost := g.orphans(60)
	r := g.runner("r", limits(), nil)
	g.run(r)
	g.now = g.now.Add(24 * time.Hour)
	if st := g.run(r); !st.Holds() {
		t.Fatalf("%+v", st)
	}
	for _, s := range lost {
		submit(t, g.Store, s) // their senders were late
	}
	journals(t, g.Store, journal.Accepted, lost...)
	_, err := gc.ReleaseBreaker(t.Context(), g.Store, "authority-1", "op")
	g.must(err)
	r = g.runner("another", limits(), nil)
	g.now = g.now.Add(time.Hour)
	if st := g.run(r); st.Last.BeganAt == 0 || st.Breaker != nil {
		t.Errorf("%+v, %+v", st, st.Breaker)
	}
	more := g.orphans(55)
	g.now = g.now.Add(8 * 24 * time.Hour)
	if st := g.run(r); !st.Holds() {
		t.Errorf("%+v, %+v", st, st.Breaker)
	}
	g.check(true, append(lost, more...)...)
}

// A plan that goes on over midnight counts the requests of the new day once.
func TestAPlanOverMidnight(t *testing.T) {
	g := newGarden(t)
	g.accepted(300)
	g.orphans(20)
	l := limits()
	l.Step, l.Budget = 1, 10_000
	r := g.runner("r", l, pausing{Store: g.Store, before: func(_, key string) {
		if strings.HasPrefix(key, layout.CondemnedPrefix) {
			g.now = g.now.Add(time.Minute)
		}
	}})
	g.run(r)
	g.now = g.now.Add(2*24*time.Hour - 5*time.Minute)
	if _, err := r.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := g.state(); st.Day != g.now.Unix()/86400 || st.Requests < 15*7 || st.Deleted != 20 {
		t.Errorf("%+v", st)
	}
}

// A process that can't collect does not keep another one from it.
func TestAProcessThatFailsGivesTheClaimBack(t *testing.T) {
	g := newGarden(t)
	g.accepted(300)
	lost := g.orphans(3)
	failing := g.runner("failing", limits(), noLogs{g.Store})
	g.run(failing)
	g.now = g.now.Add(24 * time.Hour)
	if _, err := failing.Step(t.Context()); !errors.Is(err, objstore.ErrDenied) {
		t.Fatal(err)
	}
	g.check(true, lost...)
	g.run(g.runner("other", limits(), nil))
	g.check(false, lost...)
}

type noLogs struct{ *mem.Store }

func (n noLogs) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if strings.HasPrefix(key, layout.BlobLogsPrefix) {
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrDenied}
	}
	return n.Store.Create(ctx, key, b, o)
}

// Blobs of frames that manifests carry, as of agents that go from a collector with inline_below to one without, are collected
// at once however many they are; those of which no manifest is seen still count.
func TestBlobsBesideManifestsWithTheFrame(t *testing.T) {
	for _, orphans := range []int{0, 51} {
		g := newGarden(t)
		witness := g.accepted(1)
		var carried []accept.Submission
		for range 80 {
			sub := g.batch()
			submitInline(t, g.Store, sub, 1<<20)
			submit(t, g.Store, sub)
			carried = append(carried, sub)
		}
		lost := g.orphans(orphans)
		g.check(true, carried...)
		g.report(witness[0], 100, append(slices.Clone(carried), lost...)...)
		r := g.runner("r", limits(), nil)
		g.now = g.now.Add(10 * time.Minute)
		st := g.run(r)
		g.check(orphans > 0, carried...)
		if st.Holds() != (orphans > 0) || st.Holds() && st.Breaker.Candidates != 51 {
			t.Errorf("%d orphans: %+v, %+v", orphans, st, st.Breaker)
		}
	}
}

// Where the journal's entries are hidden as well, as in a copy that is not whole yet, and no manifest is known that must be
// there, nothing is condemned, however few it is.
func TestNothingIsCondemnedWithoutAWitness(t *testing.T) {
	g := newGarden(t)
	all := g.accepted(40)
	empty := newGarden(t)
	journals(t, empty.Store, journal.Accepted)
	for _, key := range g.keys(layout.RawBlobsPrefix) {
		b, _, err := g.Get(t.Context(), key, objstore.GetOptions{})
		g.must(err)
		put(t, empty.Store, key, b)
	}
	r := empty.runner("r", limits(), nil)
	empty.run(r)
	empty.now = empty.now.Add(48 * time.Hour)
	if st := empty.run(r); st.Last.Candidates != 40 || st.Markers != 0 || st.Deleted != 0 {
		t.Errorf("%+v", st)
	}
	empty.check(true, all...)
}
