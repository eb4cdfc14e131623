package regions_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Two regions join at once, and both have prepared something of a boot. What contests an entry late, and what shares numbers with that entry in
// its own bucket, is decided as if nothing was prepared.
func TestTwoRegionsJoinWithTheSameBoot(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		w := newWorld(t, "asia", "eu", "us")
		w.open("eu")
		k := w.keeper("asia", "eu", "us")
		w.journalled("asia", w.batchAlone("asia", batch("b", 11, 20), "asia", 100), w.batchAlone("asia", batch("b", 15, 25), "meets", 120), w.batchAlone("asia", batch("b", 41, 50), "far", 10))
		w.journalled("us", w.batchAlone("us", batch("b", 22, 30), "us", 150), w.batchAlone("us", batch("b", 61, 70), "far", 10))
		if prepared {
			if p := w.prepare(k, "asia"); p.Batches != 2 || p.Left != 1 {
				t.Errorf("%+v", p)
			}
			w.prepare(k, "us")
		}
		w.batchAlone("us", batch("b", 11, 12), "first", 1)
		w.joinBoth()
		o, err := k.Open(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{line(batch("b", 11, 12), "us", "first"), line(batch("b", 15, 25), "asia", "meets")}
		if !prepared {
			want = append(want, line(batch("b", 41, 50), "asia", "far"), line(batch("b", 61, 70), "us", "far"))
		}
		if got := w.claims(); !slices.Equal(got, want) {
			t.Errorf("prepared %v: %q, want %q", prepared, got, want)
		}
		free := "free"
		if prepared {
			free = fmt.Sprintf("DECIDED 41-50 asia %.8s", identity.Sum([]byte("far")))
		}
		if got := w.asked(k, o.Epoch, batch("b", 41, 50), "far"); got != free {
			t.Errorf("prepared %v: %s", prepared, got)
		}
		if got := w.asked(k, o.Epoch, batch("b", 22, 30), "us"); got != "free" {
			t.Errorf("prepared %v: %s", prepared, got)
		}
	}
}

// An addition is overtaken, at any request, by the retirement of the region whose record it would read first: that record stays as it was.
func TestOvertakenByARetirement(t *testing.T) {
	for at := 1; ; at++ {
		w := newWorld(t, "asia", "eu", "us")
		w.open("asia", "eu")
		w.journalled("us", w.alone("us", "b", 0, 6)...)
		k := w.keeper("asia", "eu", "us")
		w.prepare(k, "us")
		i, done := 0, false
		w.before = func(string) error {
			if i++; i != at {
				return nil
			}
			w.before = nil
			w.manifest("eu", batch("b", 21, 30), "eu", accepted.Stamp{Epoch: 1, Fence: 3})
			if _, err := w.keeper("asia", "eu", "us").Retire(t.Context(), "asia", true); err != nil {
				t.Fatalf("request %d: %v", at, err)
			}
			done = true
			return nil
		}
		_, err := k.Add(t.Context(), "us")
		w.before = nil
		if !done {
			if err != nil {
				t.Fatal(err)
			}
			return // every request had its turn
		}
		o, err := k.Add(t.Context(), "us")
		if err != nil || slices.Contains(o.Epoch.Regions, "asia") {
			t.Fatalf("request %d: %+v, %v", at, o, err)
		}
		mine := w.asked(k, o.Epoch, batch("b", 21, 30), "b2")
		theirs := slices.Contains(w.claims(), line(batch("b", 21, 30), "eu", "eu"))
		if theirs == strings.HasPrefix(mine, "DECIDED") {
			t.Fatalf("request %d: folds say %s, and etcd has %q", at, mine, w.claims())
		}
	}
}

// A region was prepared before another one was in the settings. That one's bucket gets to know the boots before their heads are moved there.
func TestMarksOfAPreparation(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	w.open("asia", "eu")
	w.journalled("us", slices.Concat(w.alone("us", "b", 0, 3), w.alone("us", "c", 0, 3))...)
	w.prepare(w.keeper("eu", "us"), "us")
	marks := func(in claims.Region) (n int) {
		for _, err := range folds.PreparedBoots(t.Context(), w.buckets[in], "us") {
			if n++; err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	if marks("asia") != 0 || marks("eu") != 2 {
		t.Fatalf("%d, %d", marks("asia"), marks("eu"))
	}
	moved := 0
	w.held = func(r claims.Region, key string, _ func() error) bool {
		if strings.HasPrefix(key, layout.FoldsPrefix) && strings.HasSuffix(key, "/head.lmf") {
			if moved++; marks("asia") != 2 {
				t.Errorf("%s in %s is moved, and the bucket of asia knows %d boots", key, r, marks("asia"))
			}
		}
		return false
	}
	if o, err := w.keeper("asia", "eu", "us").Add(t.Context(), "us"); err != nil || o.Recovered.Claims != 0 || moved != 6 {
		t.Errorf("%+v, %v, %d heads", o, err, moved)
	}
	if p, err := folds.ReadPrepared(t.Context(), w.buckets["asia"], "us", batch("b", 1, 1).BootOf()); err != nil || p.Count() != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

// A preparation dies before anything of it was noted, when much of it is written. The addition does not use it, and so counts what it would enter.
func TestAPreparationThatWasNotNoted(t *testing.T) {
	w := newWorld(t, "eu", "us")
	was := w.open("eu")
	k := w.bounded(20, 0, "eu", "us")
	w.journalled("us", w.alone("us", "b", 0, 30)...)
	w.held = func(_ claims.Region, key string, _ func() error) bool {
		if key == layout.PreparedStateKey {
			w.before = func(string) error { return errDead }
		}
		return false
	}
	if _, _, err := k.Prepare(t.Context(), "us", goOn); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	w.held, w.before = nil, nil
	if o, err := k.Add(t.Context(), "us"); !errors.Is(err, regions.ErrUnprepared) {
		t.Fatalf("%+v, %v", o, err)
	}
	if o, err := k.Open(t.Context(), false); err != nil || o.Epoch.ID != was.Epoch.ID {
		t.Errorf("%+v, %v", o, err)
	}
	w.prepare(k, "us")
	if o, err := k.Add(t.Context(), "us"); err != nil || o.Recovered.Claims != 0 {
		t.Errorf("%+v, %v", o, err)
	}
}

// The journal was deleted, and nothing of the next one is folded yet: what was prepared stays so, and the region can be added.
func TestThePreparationOfAJournalThatIsGone(t *testing.T) {
	w := newWorld(t, "eu", "us")
	o := w.open("eu")
	k := w.keeper("eu", "us")
	w.journalled("us", w.alone("us", "b", 0, 30)...)
	w.manifest("eu", batch("m", 1, 10), "m", accepted.Stamp{Epoch: o.Epoch.Number, Fence: 3})
	was := w.prepare(k, "us")
	for info, err := range objstore.List(t.Context(), w.buckets["us"], objstore.ListOptions{Prefix: layout.JournalPrefix}) {
		if err == nil {
			err = w.buckets["us"].Delete(t.Context(), info.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if p := w.prepare(k, "us"); p != was {
			t.Errorf("%+v", p)
		}
	}
	if o, err := k.Add(t.Context(), "us"); err != nil || o.Recovered.Claims != 1 {
		t.Errorf("%+v, %v", o, err)
	}
}

// A linearizer was dissolved, and its last region has accepted on its own since what meets a batch that was decided, by a clock that is behind. The
// region is prepared to begin again: what was decided counts, which is folded since, as it does without a preparation.
func TestWhatWasDecidedBeforeADissolutionIsPrepared(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		w := newWorld(t, "eu", "us")
		k := w.keeper("eu", "us")
		o := w.open("eu")
		w.manifest("eu", batch("b", 1, 10), "decided", accepted.Stamp{Epoch: o.Epoch.Number, Fence: 3})
		w.claim(o, batch("b", 1, 10), "eu", "decided", claims.Settled, false)
		if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
			t.Fatal(err)
		}
		es := []journal.Entry{w.batchAlone("eu", batch("b", 5, 12), "alone", 50), w.batchAlone("eu", batch("b", 21, 30), "alone", 60)}
		decided := es[0]
		decided.ID, decided.SHA256, decided.At, decided.HomeRegion, decided.ClaimEpoch = batch("b", 1, 10), identity.Sum([]byte("decided")), 100, "eu", o.Epoch.Number
		w.journalled("eu", append(es, decided)...)
		if prepared {
			w.prepare(k, "eu")
		}
		o, err := k.Add(t.Context(), "eu")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := w.asked(k, o.Epoch, batch("b", 1, 10), "decided"), fmt.Sprintf("DECIDED 1-10 eu %.8s", identity.Sum([]byte("decided"))); got != want {
			t.Errorf("prepared %v: %q, want %s", prepared, got, want)
		}
	}
}

// What an addition asks of buckets and etcd grows with the boots of what was prepared, and with the parts that they have, of 2,048 batches:
// BOOTS and BATCHES say how many there are.
func TestAnAdditionGrowsWithBoots(t *testing.T) {
	boots, batches := 20, uint64(400)
	if n, err := strconv.Atoi(os.Getenv("BOOTS")); err == nil {
		boots = n
	}
	if n, err := strconv.ParseUint(os.Getenv("BATCHES"), 10, 32); err == nil {
		batches = n
	}
	requests := map[uint64]int{}
	for _, each := range []uint64{batches / 4, batches} {
		w := newWorld(t, "eu", "us")
		w.open("eu")
		for b := range boots {
			w.journalled("us", w.alone("us", fmt.Sprint("b", b), 0, each)...)
		}
		// With parts as long as they are outside of tests.
		c := regions.Config{KV: etcd{w}, Keys: keys, Rand: w.rand, Now: func() int64 { return 7 }}
		for _, n := range []claims.Region{"eu", "us"} {
			c.Regions = append(c.Regions, regions.Region{Name: n, Store: bucket{w, n}})
		}
		k, err := regions.New(c)
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		w.before = func(string) error { asked++; return nil }
		began := time.Now()
		w.prepare(k, "us")
		took, prepared := time.Since(began), asked
		asked, began = 0, time.Now()
		o, err := k.Add(t.Context(), "us")
		if err != nil || o.Recovered.Claims != 0 || o.Recovered.Manifests != 0 {
			t.Fatalf("%+v, %v", o, err)
		}
		requests[each] = asked
		t.Logf("%d boots of %d batches: prepared with %d requests in %v, added with %d in %v", boots, each, prepared, took, asked, time.Since(began))
	}
	if few, many := requests[batches/4], requests[batches]; many > few+boots*(2+2*int(batches)/folds.SealAt) {
		t.Errorf("%d requests, and %d for a quarter of the batches", many, few)
	}
}

// A prepared region is added, and when everything is folded and is about to be noted, a coordinator that leads goes on with the same as if it had died. The
// addition was overtaken, as at any other request, and says so: whoever asked for it waits for the other one then.
func TestAnAdditionThatIsOvertakenAtItsEnd(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu")
	w.journalled("us", w.alone("us", "b", 0, 6)...)
	k := w.keeper("eu", "us")
	w.prepare(k, "us")
	var o regions.Opened
	var err2 error
	// Whether the region may be written to, two records, and then that everything is folded.
	writes := 0
	w.held = func(_ claims.Region, key string, _ func() error) bool {
		if key != layout.RegionsKey {
			return false
		}
		if writes++; writes == 4 {
			w.held = nil
			o, err2 = w.keeper("eu", "us").Open(t.Context(), true)
		}
		return false
	}
	if _, err := k.Add(t.Context(), "us"); !errors.Is(err, regions.ErrOvertaken) {
		t.Errorf("%v; epoch %d is open, with %v: %v", err, o.Epoch.Number, o.Epoch.Regions, err2)
	}
	if err2 != nil || !slices.Contains(o.Epoch.Regions, "us") {
		t.Error(o, err2)
	}
}

// A linearizer was dissolved, and its last region has accepted on its own since what meets a batch that was decided. Its journal is folded in two steps,
// the one of the batch that was decided last, and each is prepared. What was decided counts, as when both are prepared at once, or nothing is.
func TestWhatWasDecidedBeforeADissolutionIsPreparedLater(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		w := newWorld(t, "eu", "us")
		k := w.keeper("eu", "us")
		o := w.open("eu")
		id := batch("b", 1, 10)
		w.manifest("eu", id, "decided", accepted.Stamp{Epoch: o.Epoch.Number, Fence: 3})
		w.claim(o, id, "eu", "decided", claims.Settled, false)
		if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
			t.Fatal(err)
		}
		alone := w.batchAlone("eu", batch("b", 5, 12), "alone", 150)
		decided := alone
		decided.ID, decided.SHA256, decided.At, decided.HomeRegion, decided.ClaimEpoch = id, sum("decided"), 100, "eu", o.Epoch.Number
		w.journalled("eu", alone)
		if prepared {
			w.prepare(k, "eu")
		}
		w.journalled("eu", decided)
		if prepared {
			w.prepare(k, "eu")
		}
		o, err := k.Add(t.Context(), "eu")
		if err != nil {
			t.Fatal(err)
		}
		if got := w.asked(k, o.Epoch, id, "decided"); !slices.Contains(w.claims(), line(id, "eu", "decided")) && !strings.HasPrefix(got, "DECIDED") {
			t.Errorf("prepared %v: what was decided is %s, and etcd has %q", prepared, got, w.claims())
		}
	}
}

// A region was prepared, and added. Of two batches of its own that share numbers, the one that was prepared was contested by a batch of another region, so
// the other one was decided. The other region is retired, the linearizer is dissolved, and begun again with the last one; nobody prepares anything any more.
// What was decided counts, and not what was prepared before.
func TestAPreparationOfBeforeADissolution(t *testing.T) {
	w := newWorld(t, "eu", "us")
	k := w.keeper("eu", "us")
	w.open("eu")
	long, short := batch("b", 1, 10), batch("b", 5, 8)
	w.journalled("us", w.batchAlone("us", long, "long", 2))
	w.prepare(k, "us")
	w.journalled("us", w.batchAlone("us", short, "short", 1))
	w.batchAlone("eu", batch("b", 8, 10), "left", 3)
	o, err := k.Add(t.Context(), "us")
	if got := w.claims(); err != nil || !slices.Equal(got, []string{line(short, "us", "short")}) {
		t.Fatalf("%q, %v", got, err)
	}
	// It is completed by its home, and its sender is answered.
	w.affirm("us", short, accepted.Stamp{Epoch: o.Epoch.Number, Fence: 9})
	w.claim(o, short, "us", "short", claims.Settled, false)
	if _, err := k.Retire(t.Context(), "eu", false); err != nil {
		t.Fatal(err)
	}
	alone := w.keeper("us")
	if o, err = alone.Open(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if got := w.claims(); !slices.Equal(got, []string{line(short, "us", "short")}) {
		t.Fatalf("%q", got)
	}
	w.claim(o, short, "us", "short", claims.Settled, false)
	if _, err := alone.Dissolve(t.Context(), "us"); err != nil {
		t.Fatal(err)
	}
	if o, err = alone.Add(t.Context(), "us"); err != nil {
		t.Fatal(err)
	}
	if got := w.asked(alone, o.Epoch, short, "short"); !slices.Contains(w.claims(), line(short, "us", "short")) && !strings.HasPrefix(got, "DECIDED") {
		t.Errorf("what was decided is %s, and etcd has %q", got, w.claims())
	}
}

func sum(frame string) identity.Digest { return identity.Sum([]byte(frame)) }
