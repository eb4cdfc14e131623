package live_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// world is a store and what is known to have happened to it. Its model keeps batches and nothing else: no segments, no
// windows, no merging.
type world struct {
	*testing.T
	choose func(n int) int // below n
	store  *live.Store
	came   []*modelBatch
	// met are the batches that were known together: the one that wins masks the other, also when it is forgotten.
	met   map[*modelBatch][]*modelBatch
	next  map[identity.Boot]uint64
	now   time.Time
	views []worldView
	held  int64 // most bytes that were packed
}

type worldView struct {
	snap *live.Snapshot
	want map[string]map[int64]float64
}

func newWorld(t *testing.T, choose func(n int) int) *world {
	cfg := live.Config{History: 2 * time.Hour}
	if choose(2) == 0 {
		cfg.MaxBytes = 60 << 10
	}
	if choose(2) == 0 {
		cfg.PackAt = 1
	}
	return &world{T: t, choose: choose, store: newStore(t, cfg), met: map[*modelBatch][]*modelBatch{}, next: map[identity.Boot]uint64{}, now: start}
}

// insert a batch of some series and rows, a second to minutes apart, at a time before now.
func (w *world) insert() {
	boot := identity.Boot{Agent: fmt.Sprint("a", w.choose(2)), Boot: "b"}
	seq := w.next[boot] + 1
	if w.choose(6) == 0 && seq > 8 {
		seq -= uint64(w.choose(8))
	}
	w.now = w.now.Add(time.Duration(w.choose(30)) * time.Second)
	at := w.now
	if w.choose(2) == 0 {
		at = at.Add(-time.Duration(w.choose(3600)) * time.Second)
	}
	apart := []time.Duration{time.Second, 10 * time.Second, 15 * time.Second, 3 * time.Minute}[w.choose(4)]
	rows := make([]int64, 1+w.choose(12))
	for i := range rows {
		// On the second, so that rows of several batches meet, but for some.
		rows[i] = at.Add(time.Duration(i)*apart + time.Duration(w.choose(8)/7)*300*time.Microsecond).UnixNano()
	}
	step := len(w.came)
	a := build(w, boot, seq, int64(w.choose(40)), fmt.Sprint(w.choose(2)), 1+w.choose(3), rows, func(k int) float64 { return float64(step*1000 + k) })
	if slices.ContainsFunc(w.came, func(o *modelBatch) bool { return o.Identity == a.Identity }) {
		return
	}
	w.next[boot] = max(w.next[boot], a.Identity.SeqEnd)
	// First, as Insert does it: what has expired meets nobody any more.
	w.store.Expire(w.now)
	var met []*modelBatch
	for _, o := range w.came {
		if w.store.Known(o.Identity) {
			met = append(met, o)
		}
	}
	out, err := w.store.Insert(a.Batch, a.batch, w.now)
	if err != nil {
		w.Fatal(err)
	}
	if out == live.Expired {
		return
	}
	for _, o := range met {
		w.met[a], w.met[o] = append(w.met[a], o), append(w.met[o], a)
	}
	w.came = append(w.came, a)
	w.held = max(w.held, w.store.Stats().PackedBytes)
}

// expected are the samples of the batches that the store says it has, without the numbers that a batch has won which it met.
func (w *world) expected(hidden func(a *modelBatch, k int) bool) map[string]map[int64]float64 {
	var shown []*modelBatch
	for _, a := range w.came {
		if w.store.Shows(a.Identity) {
			shown = append(shown, a)
		}
	}
	masked := func(a *modelBatch, k int) bool {
		seq := a.Identity.SeqStart + uint64(k)
		return slices.ContainsFunc(w.met[a], func(o *modelBatch) bool {
			return o.Identity.BootOf() == a.Identity.BootOf() && o.Identity.SeqStart <= seq && seq <= o.Identity.SeqEnd && o.wins(a)
		})
	}
	return expectBut(shown, func(a *modelBatch, k int) bool { return masked(a, k) || hidden(a, k) })
}

func showAll(*modelBatch, int) bool { return false }

// cover publishes random numbers of every boot in every hour.
func (w *world) cover() covered {
	out := covered{}
	for boot, last := range w.next {
		for h := timegrid.HourStarting(start) - 2; h <= timegrid.HourStarting(w.now)+1; h++ {
			for seq := uint64(w.choose(20)); seq <= last && w.choose(6) > 0; {
				r := ledger.Range{Start: seq, End: seq + uint64(w.choose(200))}
				out[place{boot, h}] = append(out[place{boot, h}], r)
				seq = r.End + 2 + uint64(w.choose(30))
			}
		}
	}
	return out
}

// compare reads a snapshot, all of it and a part, and asks which series have samples in the part.
func (w *world) compare(what string, snap *live.Snapshot, want map[string]map[int64]float64) {
	w.Helper()
	same(w, what, read(w, snap, before, after), want)
	mint := w.now.Add(-time.Duration(w.choose(5000)) * time.Second).UnixMilli()
	maxt := mint + int64(w.choose(600_000))
	part := map[string]map[int64]float64{}
	for name, by := range want {
		for ms, v := range by {
			if ms < mint || ms > maxt {
				continue
			}
			if part[name] == nil {
				part[name] = map[int64]float64{}
			}
			part[name][ms] = v
		}
	}
	same(w, what+", a part", read(w, snap, mint, maxt), part)
	found, err := snap.Select(context.Background(), mint, maxt, all(w))
	if err != nil {
		w.Fatal(err)
	}
	has := map[string]bool{}
	for i := range found {
		if found[i].Has() {
			has[found[i].Labels.String()] = true
		}
	}
	for name := range part {
		if !has[name] {
			w.Fatalf("%s: %s has samples in [%d, %d], and is not listed", what, name, mint, maxt)
		}
	}
	if len(has) != len(part) {
		w.Fatalf("%s: %v are listed, %d series have samples in [%d, %d]", what, has, len(part), mint, maxt)
	}
}

// run does steps of random things.
func (w *world) run(steps int) {
	for range steps {
		switch w.choose(12) {
		case 0:
			snap := w.store.Snapshot(w.now)
			w.views = append(w.views, worldView{snap, w.expected(showAll)})
		case 1:
			if len(w.views) > 0 {
				i := w.choose(len(w.views))
				w.compare("old snapshot", w.views[i].snap, w.views[i].want)
				w.views[i].snap.Close()
				w.views = slices.Delete(w.views, i, i+1)
			}
		case 2:
			cov := w.cover()
			snap := w.store.Snapshot(w.now)
			snap.Hide(cov)
			w.compare("beside blocks", snap, w.expected(func(a *modelBatch, k int) bool {
				return cov.holds(a.Identity.BootOf(), time.Unix(0, a.recs[k].ns).UnixMilli(), a.Identity.SeqStart+uint64(k))
			}))
			snap.Close()
		case 3:
			w.now = w.now.Add(time.Duration(w.choose(600)) * time.Second)
			w.store.Expire(w.now)
		default:
			w.insert()
		}
	}
	for _, v := range w.views {
		w.compare("old snapshot", v.snap, v.want)
		v.snap.Close()
	}
	snap := w.store.Snapshot(w.now)
	w.compare("at the end", snap, w.expected(showAll))
	snap.Close()
	w.store.Expire(w.now.Add(10_000 * time.Hour))
	if st := w.store.Stats(); st.Bytes != 0 || st.Series != 0 || st.Shapes != 0 || st.PackedBytes != 0 {
		w.Errorf("an empty store has %+v", st)
	}
}

// TestAnyOrder: whatever the order of batches, of what blocks cover, of evictions and of snapshots, answers are those of a
// model that keeps batches.
func TestAnyOrder(t *testing.T) {
	packed, held := uint64(0), int64(0)
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			w := newWorld(t, rnd.IntN)
			w.run(250)
			packed += w.store.Stats().Packed
			held += w.held
		})
	}
	if packed == 0 || held == 0 {
		t.Error("nothing was packed")
	}
}

// FuzzAnyOrder is TestAnyOrder with choices of the fuzzer.
func FuzzAnyOrder(f *testing.F) {
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		choices := make([]byte, 2000)
		for i := range choices {
			choices[i] = byte(rnd.Uint32())
		}
		f.Add(choices)
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		newWorld(t, func(n int) int {
			v := 0
			for range 2 {
				if len(choices) > 0 {
					v, choices = v<<8|int(choices[0]), choices[1:]
				}
			}
			return v % n
		}).run(min(len(choices)/20, 200))
	})
}
