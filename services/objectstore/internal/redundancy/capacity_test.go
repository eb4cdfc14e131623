package redundancy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// fill writes n bodies where a writer would, which asks how the places stand.
func (r *rig) fill(from, n int, size int64) {
	r.t.Helper()
	for i := from; i < from+n; i++ {
		p := &planner{View: View{Body: anID(i), Places: r.k.tracker.places()}}
		var at []string
		for _, id := range p.targets(2, nil) {
			at = append(at, r.k.tracker.name(id))
		}
		if len(at) < 2 {
			r.t.Fatalf("body %d: only %v takes files", i, at)
		}
		for _, n := range at {
			if s := r.sites[n]; s.drive > 0 && s.taken()+size > s.drive {
				r.t.Fatalf("body %d: %s has no room, and was not known to be full", i, n)
			}
		}
		r.k.Written(anID(i), size, r.write(i, size, at...))
		if i%10 == 0 { // places are looked at now and then
			if err := r.k.look(context.Background()); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// TestSizesShare: places of several sizes are filled in the measure of their sizes, those with a setting as far as that allows, and
// no file is moved after it was written where it belongs.
func TestSizesShare(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "bucket")
	w.sites["a"].drive, w.sites["b"].drive, w.sites["c"].drive = 1<<20, 2<<20, 4<<20
	w.sites["bucket"].capacity = 3 << 20
	r := newRig(w, Options{Policy: copied, Rebalance: true})
	r.fill(0, 900, 4000)
	r.settle()
	r.complete()
	if moved := r.k.Counters().FilesMoved; moved != 0 {
		t.Errorf("%d files were moved", moved)
	}
	var a, b, c, bucket = w.sites["a"].taken(), w.sites["b"].taken(), w.sites["c"].taken(), w.sites["bucket"].taken()
	if !(a < b && b < bucket && bucket < c) || bucket > 3<<20 {
		t.Errorf("a has %d, b %d, c %d, the bucket %d", a, b, c, bucket)
	}
	for _, p := range r.k.tracker.statuses() {
		s := w.sites[p.Name]
		if p.Used != s.taken() || p.Files != int64(len(s.files)) || p.Room != max(s.drive, s.capacity) || p.Free != p.Room-p.Used || p.Full {
			t.Errorf("%+v", p)
		}
	}
}

// TestFullPlaces: a place that is full gets no more files and keeps its own; when it has room again it gets those that are its share.
// Nothing goes back and forth.
func TestFullPlaces(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	for _, s := range w.sites {
		s.drive = 200_000
	}
	r := newRig(w, Options{Policy: copied, Rebalance: true})
	w.sites["a"].drive = 160_000 // something else is on the drive, too little to change its weight
	r.fill(0, 265, 1000)
	r.settle()
	r.complete()
	full := w.sites["a"].taken()
	if full > 160_000 || full < 158_000 {
		t.Fatalf("a has %d bytes", full)
	}
	if moved := r.k.Counters().FilesMoved; moved != 0 {
		t.Fatalf("%d files were moved", moved)
	}
	// Some go: a has room, and files come to it once.
	for i := range 12 {
		delete(w.named, anID(i))
		r.k.Removed(anID(i))
	}
	r.settle()
	r.complete()
	moved := r.k.Counters().FilesMoved
	if now := w.sites["a"].taken(); moved == 0 || now < 158_000 || now > 160_000 {
		t.Errorf("a has %d bytes, %d files were moved", now, moved)
	}
	r.settle()
	if again := r.k.Counters().FilesMoved - moved; again != 0 {
		t.Errorf("%d files were moved without a reason", again)
	}
}

// TestAnotherSize: a larger drive in the place of one, and a smaller capacity, move files of this place only, and then nothing more,
// however the free room goes up and down by a little.
func TestAnotherSize(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	w := newWorld(t, "a", "b", "c")
	for _, s := range w.sites {
		s.drive = 4 << 20
	}
	r := newRig(w, Options{Policy: Policy{Copies: 1}, Rebalance: true})
	for i := range 400 {
		r.k.Written(anID(i), 4000, r.write(i, 4000, []string{"a", "b", "c"}[rng.IntN(3)]))
	}
	r.settle()
	r.complete()
	share := func() string {
		return fmt.Sprint(len(w.sites["a"].files), len(w.sites["b"].files), len(w.sites["c"].files))
	}
	before, was := r.k.Counters().FilesMoved, share()
	for range 20 {
		w.sites["a"].drive = 4<<20 + int64(rng.IntN(1<<20)) - 1<<19 // what else is on the drive
		r.round()
	}
	if moved := r.k.Counters().FilesMoved - before; moved != 0 || share() != was {
		t.Errorf("%d files were moved: %s is %s", moved, was, share())
	}
	b, c := len(w.sites["b"].files), len(w.sites["c"].files)
	w.sites["a"].drive = 16 << 20
	r.settle()
	r.complete()
	nb, nc := len(w.sites["b"].files), len(w.sites["c"].files)
	if nb >= b || nc >= c || int64(b-nb+c-nc) != r.k.Counters().FilesMoved-before {
		t.Errorf("b had %d and has %d, c had %d and has %d, %d were moved", b, nb, c, nc, r.k.Counters().FilesMoved-before)
	}
	if err := r.l.Close(); err != nil { // weights are in the ledger
		t.Fatal(err)
	}
	r.start()
	r.settle()
	r.complete()
	if moved := r.k.Counters().FilesMoved; moved != 0 {
		t.Errorf("%d files were moved after a restart", moved)
	}
}

// TestSizeNotTold: a drive that does not say how full it is keeps its weight, with a capacity and without: moves of files are no answer
// to a call that failed.
func TestSizeNotTold(t *testing.T) {
	for _, capacity := range []int64{0, 1 << 30} {
		k := &known{up: true, status: PlaceState{Local: true, Free: -1, Capacity: capacity}}
		if k.measure(ledger.Use{}, 1<<20) || k.grow(ledger.Use{Files: 1, Bytes: 1 << 40}, 1<<20) || k.Weight != 0 {
			t.Errorf("%+v", k)
		}
		k.status.Free = 1 << 20
		if !k.measure(ledger.Use{Files: 1, Bytes: 7 << 20}, 0) || k.Weight != 8<<20 {
			t.Errorf("%+v", k)
		}
		k.status.Free = -1
		if k.measure(ledger.Use{Files: 1, Bytes: 7 << 20}, 0) || k.Weight != 8<<20 || k.free != 1<<20 {
			t.Errorf("%+v", k)
		}
	}
}

// TestMovesEnd: drives of any sizes, some with a capacity that is less than what is there, and one that comes: a file is moved a few
// times, and then none is.
func TestMovesEnd(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			w := newWorld(t, "a", "b", "c", "d", "e")
			policy := []Policy{copied, twoOne}[rng.IntN(2)]
			const bodies = 120
			for _, s := range w.sites {
				s.drive = int64(200_000 + rng.IntN(3_000_000))
			}
			r := newRig(w, Options{Policy: policy, Rebalance: true})
			for i := range bodies {
				size := []int64{small, 4000}[rng.IntN(2)]
				var at []string
				for _, n := range rng.Perm(5) {
					if s := w.sites[string(rune('a'+n))]; len(at) < 2 && s.taken()+size < s.drive*9/10 {
						at = append(at, string(rune('a'+n)))
					}
				}
				r.k.Written(anID(i), size, r.write(i, size, at...))
			}
			r.settle()
			for _, n := range []string{"a", "b"} {
				w.sites[n].capacity = max(1, w.sites[n].taken()*int64(1+rng.IntN(12))/8)
			}
			w.sites["f"] = &site{id: "id-f", files: map[string]*disk{}, drive: int64(100_000 + rng.IntN(3_000_000))}
			r.settle()
			if w.broke != nil {
				t.Fatal(w.broke)
			}
			moved, files := r.k.Counters().FilesMoved, int64(0)
			for _, s := range w.sites {
				files += int64(len(s.files))
			}
			if moved > 3*files {
				t.Errorf("%d moves of %d files", moved, files)
			}
			for range 5 {
				r.settle()
			}
			if again := r.k.Counters().FilesMoved - moved; again != 0 {
				t.Errorf("%d files go on to be moved", again)
			}
		})
	}
}
