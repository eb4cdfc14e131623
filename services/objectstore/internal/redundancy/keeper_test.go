package redundancy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

var (
	small = int64(100)
	large = int64(10_000)

	twoOne = Policy{Copies: 2, Data: 2, Parity: 1, Threshold: 1000}
	copied = Policy{Copies: 2}
)

// TestWritten: what was written becomes what the policy wants, and then the copies of the write go.
func TestWritten(t *testing.T) {
	r := newRig(newWorld(t, "a", "b", "c", "d"), Options{Policy: twoOne})
	for i := range 20 {
		size := small
		if i%2 == 0 {
			size = large
		}
		r.k.Written(anID(i), size, r.write(i, size, "a", "b"))
	}
	r.settle()
	r.complete()
}

// TestUnnamed: a body without a record is left alone while its writer, or a reader of what was deleted, has it, and is removed
// then. The clock may be set by years meanwhile, and in either direction.
func TestUnnamed(t *testing.T) {
	for _, set := range []time.Duration{0, 59 * time.Minute, -time.Hour, 20 * 365 * 24 * time.Hour, -20 * 365 * 24 * time.Hour} {
		t.Run(set.String(), func(t *testing.T) {
			r := newRig(newWorld(t, "a", "b", "c"), Options{Policy: twoOne})
			ids := r.write(1, large, "a", "b")
			delete(r.named, anID(1))
			r.awaited[anID(1)] = true
			r.k.Written(anID(1), large, ids)
			files := func() int { return len(r.sites["a"].files) + len(r.sites["b"].files) }
			r.round()
			r.now = r.now.Add(set)
			r.settle()
			if n := files(); n != 2 {
				t.Fatalf("%d files of a body whose record is still to come", n)
			}
			delete(r.awaited, anID(1))
			// Whoever had the body says that it has ended, or a listing does.
			r.k.Needed(anID(1), "removed")
			r.settle()
			if n := files(); n != 0 {
				t.Errorf("%d files of a body that nobody names", n)
			}
			r.complete()
		})
	}
}

// TestUnnamedLater: the record of a body comes after the clock was set by years. Nothing of the body is lost.
func TestUnnamedLater(t *testing.T) {
	r := newRig(newWorld(t, "a", "b", "c"), Options{Policy: twoOne})
	ids := r.write(1, large, "a", "b")
	delete(r.named, anID(1))
	r.awaited[anID(1)] = true
	r.k.Written(anID(1), large, ids)
	r.round()
	r.now = r.now.Add(10 * 365 * 24 * time.Hour)
	r.settle()
	r.named[anID(1)] = large
	delete(r.awaited, anID(1))
	r.settle()
	r.complete()
}

// TestUnsure: while the log cannot say what it names, nothing is removed for it.
func TestUnsure(t *testing.T) {
	r := newRig(newWorld(t, "a", "b", "c"), Options{Policy: twoOne})
	r.k.opt.Names = func(string) (Naming, error) { return Unsure, nil }
	r.k.Written(anID(1), small, r.write(1, small, "a", "b"))
	r.settle()
	if n := len(r.sites["a"].files) + len(r.sites["b"].files) + len(r.sites["c"].files); n != 2 {
		t.Errorf("%d files", n)
	}
}

// TestPolicyChange: other numbers are written beside what is there, which goes when they are complete.
func TestPolicyChange(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d", "e")
	r := newRig(w, Options{Policy: copied})
	for i := range 8 {
		r.k.Written(anID(i), large, r.write(i, large, "a", "b"))
	}
	r.settle()
	r.complete()
	for i, p := range []Policy{twoOne, {Copies: 2, Data: 3, Parity: 2, Threshold: 1000}, {Copies: 3}, twoOne} {
		before := r.k.Policy().Version
		if err := r.l.Close(); err != nil {
			t.Fatal(err)
		}
		r.opt.Policy = p
		r.start()
		if got := r.k.Policy().Version; got != before+1 {
			t.Fatalf("change %d: version %d behind %d", i, got, before)
		}
		r.settle()
		r.complete()
	}
}

// TestBefore: bodies of the time before places are taken over, and then go there.
func TestBefore(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "old")
	w.sites["old"].old = true
	for i := range 10 {
		w.write(i, []int64{small, large}[i%2], "old")
	}
	r := newRig(w, Options{Policy: twoOne, Rebalance: true})
	r.settle()
	r.complete()
	if n := len(w.sites["old"].files); n != 0 {
		t.Errorf("%d bodies are still where they were", n)
	}
}

// TestRebuild: without its ledger the store finds out what is where, also in the middle of a change of the policy, and no
// version is used again.
func TestRebuild(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d")
	r := newRig(w, Options{Policy: twoOne})
	for i := range 10 {
		r.k.Written(anID(i), large, r.write(i, large, "a", "b"))
	}
	r.settle()
	first := r.k.Policy().Version
	r.write(11, large, "c", "d")
	r.write(12, small, "c", "d")
	r.lose()
	if got := r.k.Policy().Version; got <= first {
		t.Fatalf("version %d was used before", got)
	}
	r.settle()
	r.complete()
}

// TestReplacedPlace: a drive is replaced by an empty one; its files are made again, on it.
func TestReplacedPlace(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	r := newRig(w, Options{Policy: twoOne})
	for i := range 10 {
		r.k.Written(anID(i), large, r.write(i, large, "a", "b"))
	}
	r.settle()
	w.sites["b"] = &site{id: "id-b2", files: map[string]*disk{}}
	r.settle()
	r.complete()
	if len(w.sites["b"].files) != 10 {
		t.Errorf("%d files on the new drive", len(w.sites["b"].files))
	}
}

// TestPlaceAway: for a while nothing happens; then its files are made elsewhere; when it is back they are too many.
func TestPlaceAway(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d")
	r := newRig(w, Options{Policy: twoOne, HealAfter: time.Hour})
	for i := range 10 {
		r.k.Written(anID(i), large, r.write(i, large, "a", "b"))
	}
	r.settle()
	r.complete()
	w.sites["b"].down = true
	r.round()
	was := len(w.sites["a"].files) + len(w.sites["c"].files) + len(w.sites["d"].files)
	r.now = r.now.Add(30 * time.Minute)
	r.round()
	if n := len(w.sites["a"].files) + len(w.sites["c"].files) + len(w.sites["d"].files); n != was {
		t.Errorf("%d files were made before the place was away for long", n-was)
	}
	r.settle()
	if n := len(w.sites["a"].files) + len(w.sites["c"].files) + len(w.sites["d"].files); n != 30 {
		t.Fatalf("%d files on the places that are left; want 30\n%s", n, r.dump())
	}
	w.sites["b"].down = false
	r.settle()
	r.complete()
}

// TestPlaceAdded: files move to a new place, some of each body's at most.
func TestPlaceAdded(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	r := newRig(w, Options{Policy: twoOne, Rebalance: true})
	for i := range 40 {
		r.k.Written(anID(i), large, r.write(i, large, "a", "b"))
	}
	r.settle()
	w.sites["d"] = &site{id: "id-d", files: map[string]*disk{}}
	r.settle()
	r.complete()
	if n := len(w.sites["d"].files); n < 15 || n > 38 {
		t.Errorf("%d of 120 files are on the fourth place", n)
	}
	moved := r.k.count.filesMoved.Load()
	if moved != int64(len(w.sites["d"].files)) {
		t.Errorf("%d moves for %d files on the new place", moved, len(w.sites["d"].files))
	}
}

// TestScrub: a flipped bit is found within a period, and put right.
func TestScrub(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	r := newRig(w, Options{Policy: twoOne, ScrubPeriod: 24 * time.Hour})
	for i := range 10 {
		r.k.Written(anID(i), large, r.write(i, large, "a", "b"))
	}
	r.settle()
	r.complete()
	for _, f := range w.sites["c"].files {
		f.damaged = true
	}
	for range 60 {
		if err := r.k.scrubDue(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.round()
		r.now = r.now.Add(30 * time.Minute)
	}
	r.settle()
	r.complete()
	if got := r.k.count.damaged.Load(); got != 10 {
		t.Errorf("%d damaged files were found; want 10", got)
	}
}

// TestBelowK: what is left of a body that cannot be read stays, the body becomes a dead letter, and is whole again when enough
// of it has come back.
func TestBelowK(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	r := newRig(w, Options{Policy: twoOne, Backoff: ledger.Backoff{Base: time.Second, Max: time.Minute, Attempts: 3}})
	r.k.Written(anID(1), large, r.write(1, large, "a", "b"))
	r.settle()
	var kept *disk
	for _, p := range []string{"b", "c"} {
		for n, f := range w.sites[p].files {
			kept = f
			delete(w.sites[p].files, n)
		}
	}
	r.now = r.now.Add(48 * time.Hour) // the next listing
	r.settle()
	if tot := r.l.Totals(); tot.Dead != 1 || tot.Rows[ledger.Failed] != 2 {
		t.Fatalf("%+v\n%s", tot, r.dump())
	}
	if len(w.sites["a"].files) != 1 {
		t.Fatal("the surviving shard is gone")
	}
	w.sites["c"].files[name(kept.File)] = kept
	r.now = r.now.Add(48 * time.Hour)
	r.settle()
	if ok, err := r.l.Redrive(anID(1), r.now); !ok || err != nil {
		t.Fatal(ok, err)
	}
	r.settle()
	r.complete()
}

// TestLostAltogether: a body that the log names, and of which no place has a file, becomes a dead letter; not while a place is away
// that may have one.
func TestLostAltogether(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	r := newRig(w, Options{Policy: twoOne, Backoff: ledger.Backoff{Base: time.Second, Max: time.Minute, Attempts: 3},
		Bodies: func(after string, _ int) ([]string, error) {
			if after == "" {
				return []string{anID(1)}, nil
			}
			return nil, nil
		}})
	w.named[anID(1)] = large
	w.sites["b"].down = true
	r.settle()
	if tot := r.l.Totals(); tot.Dead != 0 || tot.Queued != 0 {
		t.Fatalf("%+v while a place is away", tot)
	}
	w.sites["b"].down = false
	r.now = r.now.Add(25 * time.Hour)
	r.settle()
	if list, err := r.l.Dead("", 10); err != nil || len(list) != 1 || list[0].Body != anID(1) {
		t.Fatalf("%+v, %v", list, err)
	}
	delete(w.named, anID(1))
	r.settle()
	if tot := r.l.Totals(); tot.Dead != 0 {
		t.Errorf("the dead letter outlives its body: %+v", tot)
	}
}

// TestLedgerIsNotBelieved: the ledger says that the shards are there, and they are not. The copies stay, and the shards are
// made again.
func TestLedgerIsNotBelieved(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d")
	r := newRig(w, Options{Policy: twoOne})
	r.k.Written(anID(1), large, r.write(1, large, "a", "b"))
	r.settle()
	r.complete()
	for _, p := range []string{"a", "b", "c", "d"} {
		clear(w.sites[p].files)
	}
	r.k.Written(anID(1), large, r.write(1, large, "c", "d"))
	r.settle()
	r.complete()
}

// TestLedgerOlderThanTheFiles: the ledger says that the copies of a body are to be removed, and is from a time when there were
// shards. They are gone, and the copies are all there is.
func TestLedgerOlderThanTheFiles(t *testing.T) {
	r := newRig(newWorld(t, "a", "b"), Options{Policy: copied})
	r.k.Written(anID(1), small, r.write(1, small, "a", "b"))
	r.settle()
	rows, err := r.l.Rows(anID(1))
	if err != nil || len(rows) != 2 {
		t.Fatalf("%+v, %v", rows, err)
	}
	for _, row := range rows {
		if _, err := r.l.Apply(row, ledger.Drop, r.now, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.l.Close(); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.settle()
	r.complete()
	if !r.readable(anID(1), true) {
		t.Error("the body is gone")
	}
}

// TestMovedTwice: a move was broken off when the ledger did not know of it any more, and so a file is at two places. The one
// that its row does not name goes, unless the other is not there: then it is taken for that.
func TestMovedTwice(t *testing.T) {
	for _, there := range []bool{true, false} {
		w := newWorld(t, "a", "b", "c", "d")
		r := newRig(w, Options{Policy: twoOne})
		r.k.Written(anID(1), large, r.write(1, large, "a", "b"))
		r.settle()
		var from, spare *site
		for _, p := range []string{"a", "b", "c", "d"} {
			if s := w.sites[p]; len(s.files) == 0 {
				spare = s
			} else {
				from = s
			}
		}
		for n, f := range from.files {
			again := *f
			again.Place = spare.id
			spare.files[n] = &again
			if !there {
				delete(from.files, n)
			}
		}
		made := r.k.count.filesMade.Load()
		r.now = r.now.Add(25 * time.Hour)
		r.settle()
		r.complete()
		if n := r.k.count.filesMade.Load() - made; n != 0 && spare.id < from.id {
			t.Errorf("%d files were made, and all were there", n)
		}
	}
}

// TestListedWhileAtWork: a listing that meets a file whose row is elsewhere, and not read back yet, comes again soon and not a day later.
func TestListedWhileAtWork(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d")
	r := newRig(w, Options{Policy: twoOne})
	r.k.Written(anID(1), large, r.write(1, large, "a", "b"))
	r.settle()
	var spare *site
	var row ledger.Row
	for _, s := range w.sites {
		if len(s.files) == 0 {
			spare = s
		}
	}
	rows, err := r.l.Rows(anID(1))
	if err != nil {
		t.Fatal(err)
	}
	row = rows[0]
	extra := *w.at(row.Place).files[name(fileOf(row))]
	spare.files[name(fileOf(row))] = &extra
	// Another worker has the row when the listing comes.
	for _, e := range []ledger.Event{ledger.Lost, ledger.Turned} {
		if row, err = r.l.Apply(row, e, r.now, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.k.list(context.Background(), spare.id); err != nil {
		t.Fatal(err)
	}
	if len(spare.files) != 1 {
		t.Fatal("removed while the other file was not read back")
	}
	r.settle()
	r.complete()
}

// TestListedBesideAWorker: the ledger has lost its last writes, and while a listing looks at a file a worker has got so far with the body that it
// knows of the other files: it wants this one too, and at another place, since there is one more. The file is not forgotten until
// the next day.
func TestListedBesideAWorker(t *testing.T) {
	play := func(t *testing.T, n, met, at int) (reached bool) {
		w := newWorld(t, "a", "b", "c")
		r := newRig(w, Options{Policy: twoOne, Lease: time.Hour})
		r.k.Written(anID(n), large, r.write(n, large, "a", "b"))
		for range 4 {
			r.round()
			r.now = r.now.Add(time.Minute)
		}
		r.complete()
		w.sites["d"] = &site{id: "id-d", files: map[string]*disk{}}
		files, steps, inside := 0, 0, false
		w.hit = func(step string) {
			switch {
			case inside:
				if steps++; steps == at {
					reached = true
					panic(errKilled) // it takes longer than the listing
				}
			case step == "adopt.read":
				if files++; files != met {
					return
				}
				inside = true
				catch(func() {
					if _, err := r.k.one(context.Background()); err != nil {
						t.Error(err)
					}
				})
				inside = false
			}
		}
		rows, err := r.l.List(ledger.Key{}, 100)
		for _, row := range rows {
			err = errors.Join(err, r.l.Forget(row))
		}
		if err = errors.Join(err, r.l.Close()); err != nil {
			t.Fatal(err)
		}
		r.start()
		for range 12 { // two hours: less than the time between two listings
			r.round()
			r.now = r.now.Add(10 * time.Minute)
		}
		r.complete()
		return reached
	}
	for n := range 4 { // each body has another order of places
		for met := 2; met <= 3; met++ {
			for at := 1; play(t, n, met, at); at++ {
				if t.Failed() {
					t.Fatalf("body %d, at file %d, step %d", n, met, at)
				}
			}
		}
	}
}

// TestRemovedWhileAway: an object was deleted when nobody told the keeper. What is missing of its body is not waited for.
func TestRemovedWhileAway(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	r := newRig(w, Options{Policy: twoOne})
	r.k.Written(anID(1), large, r.write(1, large, "a", "b"))
	r.settle()
	delete(w.named, anID(1))
	for _, s := range w.sites {
		clear(s.files)
	}
	r.now = r.now.Add(25 * time.Hour)
	r.settle()
	r.complete()
	if tot := r.l.Totals(); tot.Lost != 0 {
		t.Errorf("%+v", tot)
	}
}

// TestKilledAnywhere ends the process at every step of a history, in which bodies are written, the policy changes, a place is
// replaced and another added, and the ledger loses some of its last writes. Nothing is ever removed that a body needs, and in the end
// everything is as the policy wants it.
func TestKilledAnywhere(t *testing.T) {
	steps := 0
	play := func(t *testing.T, killAt, seed int) (hits int) {
		rng := rand.New(rand.NewPCG(uint64(seed), uint64(killAt)))
		w := newWorld(t, "a", "b", "c", "d")
		r := newRig(w, Options{Policy: copied, Rebalance: true, HealAfter: time.Hour})
		w.hit = func(string) {
			if hits++; hits == killAt {
				panic(errKilled)
			}
		}
		act := func(fn func()) {
			if catch(fn) {
				r.crash(rng)
			}
			if w.broke != nil {
				t.Fatalf("killed at step %d: %v", killAt, w.broke)
			}
		}
		for i := range 2 {
			size := []int64{small, large}[i%2]
			ids := r.write(i, size, "a", "b")
			act(func() { r.k.Written(anID(i), size, ids) })
		}
		act(r.round)
		if err := r.l.Close(); err != nil {
			t.Fatal(err)
		}
		r.opt.Policy = twoOne
		act(r.start)
		act(r.round)
		w.sites["b"] = &site{id: "id-b2", files: map[string]*disk{}}
		act(r.round)
		w.sites["e"] = &site{id: "id-e", files: map[string]*disk{}}
		act(r.round)
		delete(w.named, anID(0))
		act(func() { r.k.Removed(anID(0)) })
		act(r.round)
		w.hit = func(string) {}
		r.settle()
		r.now = r.now.Add(25 * time.Hour) // listings find what the crash has left
		r.settle()
		r.complete()
		return hits
	}
	steps = play(t, -1, 0)
	if steps < 40 {
		t.Fatalf("%d steps only", steps)
	}
	for at := 1; at <= steps; at++ {
		for seed := range 3 {
			play(t, at, seed)
			if t.Failed() {
				t.Fatalf("killed at step %d of %d, seed %d", at, steps, seed)
			}
		}
	}
	t.Logf("killed at each of %d steps", steps)
}

// TestDeliveredTwice gives the same body to a second worker at every step of the first: its lease is over, and it does not
// know. The first goes on afterwards.
func TestDeliveredTwice(t *testing.T) {
	play := func(t *testing.T, at int) (hits int) {
		w := newWorld(t, "a", "b", "c", "d")
		r := newRig(w, Options{Policy: twoOne, Rebalance: true, Lease: time.Hour})
		inside := false
		w.hit = func(string) {
			if inside {
				return
			}
			if hits++; hits != at {
				return
			}
			inside = true
			r.now = r.now.Add(2 * time.Hour)
			if err := r.k.tidy(context.Background()); err != nil {
				t.Error(err)
			}
			for range 20 {
				if found, err := r.k.one(context.Background()); err != nil || !found {
					break
				}
			}
			inside = false
		}
		for i := range 2 {
			size := []int64{small, large}[i%2]
			r.k.Written(anID(i), size, r.write(i, size, "a", "b"))
		}
		r.round()
		w.sites["b"] = &site{id: "id-b2", files: map[string]*disk{}}
		r.round()
		w.hit = func(string) {}
		r.settle()
		r.now = r.now.Add(25 * time.Hour)
		r.settle()
		r.complete()
		return hits
	}
	steps := play(t, -1)
	for at := 1; at <= steps; at++ {
		play(t, at)
		if t.Failed() {
			t.Fatalf("delivered twice at step %d of %d", at, steps)
		}
	}
	t.Logf("at each of %d steps", steps)
}

// TestRandomTrouble plays places that go, come, fill up and are replaced, damage, lost ledgers and crashes, one trouble at a time
// for each body, and wants everything to be as the policy says in the end, and before each trouble that may find it otherwise.
// A history depends on its seed alone.
func TestRandomTrouble(t *testing.T) {
	seeds := uint64(30)
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		seeds = 5000
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newTrouble(t, seed).play() })
	}
}

// TestRandomTroubleAgain: what a seed has shown can be looked at again.
func TestRandomTroubleAgain(t *testing.T) {
	for seed := range uint64(3) {
		first, second := newTrouble(t, seed), newTrouble(t, seed)
		first.play()
		second.play()
		if !slices.Equal(first.past, second.past) || first.dump() != second.dump() {
			t.Errorf("seed %d has two histories", seed)
		}
	}
}

// trouble is a history of places in trouble.
type trouble struct {
	*rig
	rng    *rand.Rand
	all    []string
	bodies int
	// untold are bodies that were written without a word to the keeper, which finds them when it lists the places. Until then
	// nobody mends them, so they stand one trouble that takes files, and not two.
	untold map[string]bool
}

// Kinds of trouble. There are three more, which are none.
const (
	troubleDown = iota
	troubleFull
	troubleReplaced
	troubleDamage
	troubleLedger
	troubleDelete
	troubles = 8
)

func newTrouble(t *testing.T, seed uint64) *trouble {
	all := []string{"a", "b", "c", "d", "e"}
	r := newRig(newWorld(t, all...), Options{Policy: twoOne, Rebalance: true, HealAfter: time.Hour, ScrubPeriod: 24 * time.Hour})
	return &trouble{rig: r, rng: rand.New(rand.NewPCG(seed, 7)), all: all, untold: map[string]bool{}}
}

func (r *trouble) play() {
	r.t.Helper()
	for range 25 {
		kind := r.rng.IntN(troubles)
		if (kind == troubleReplaced || kind == troubleDamage) && len(r.untold) > 0 {
			r.day()
		}
		for range r.rng.IntN(3) {
			r.put()
		}
		r.strike(kind)
		killAt, hits := 1+r.rng.IntN(60), 0
		r.hit = func(string) {
			if hits++; hits == killAt {
				panic(errKilled)
			}
		}
		if catch(r.round) {
			r.crash(r.rng)
		}
		r.hit = func(string) {}
		// Put right before the next trouble.
		for _, s := range r.sites {
			s.down, s.full = false, false
		}
		r.scrubAll()
		r.settle()
	}
	r.day()
}

// put writes a body. The keeper is mostly told of it.
func (r *trouble) put() {
	r.bodies++
	size := []int64{small, large}[r.rng.IntN(2)]
	i := r.rng.IntN(len(r.all))
	ids := r.write(r.bodies, size, r.all[i], r.all[(i+1)%len(r.all)])
	if r.rng.IntN(4) > 0 {
		r.k.Written(anID(r.bodies), size, ids)
	} else {
		r.untold[anID(r.bodies)] = true
	}
}

func (r *trouble) strike(kind int) {
	s := r.sites[r.all[r.rng.IntN(len(r.all))]]
	switch kind {
	case troubleDown:
		r.note("everything: %s is down", s.id)
		s.down = true
	case troubleFull:
		r.note("everything: %s is full", s.id)
		s.full = true
	case troubleReplaced:
		r.note("everything: %s is replaced", s.id)
		s.id, s.files = fmt.Sprint(s.id[:4], r.rng.Uint32()), map[string]*disk{}
	case troubleDamage:
		for _, n := range slices.Sorted(maps.Keys(s.files)) {
			if r.rng.IntN(2) == 0 {
				r.note("damage %s at %s", n, s.id)
				s.files[n].damaged = true
			}
		}
	case troubleLedger:
		r.lose()
	case troubleDelete:
		b := anID(1 + r.rng.IntN(r.bodies+1))
		r.note("delete %s", b)
		delete(r.named, b)
		r.k.Removed(b)
	}
}

// day lets so much time pass that every place is listed and every file is read back. Everything is as the policy says then.
func (r *trouble) day() {
	r.t.Helper()
	r.now = r.now.Add(25 * time.Hour)
	r.settle()
	r.scrubAll()
	r.settle()
	r.complete()
	clear(r.untold)
}

func (r *rig) scrubAll() {
	r.t.Helper()
	if err := r.k.Scrub(); err != nil {
		r.t.Fatal(err)
	}
	for range 100 {
		if err := r.k.scrubDue(context.Background()); err != nil {
			r.t.Fatal(err)
		}
		if !r.k.scrub.pass.Ended.IsZero() {
			return
		}
		r.now = r.now.Add(time.Hour)
	}
	r.t.Fatal("the scrub does not end")
}
