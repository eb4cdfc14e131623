package redundancy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

func (r *rig) some(n int) {
	for i := range n {
		size := small
		if i%2 == 0 {
			size = large
		}
		r.k.Written(anID(i), size, r.write(i, size, "a", "b"))
	}
}

func reasonOf(err error) Reason {
	var e *LeaveError
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// A place that was found empty, and was taken into use, written to and drained again before that was noted, has a file: it is not
// noted as empty.
func TestPlaceThatWasUsedMeanwhileIsNotEmpty(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d")
	r := newRig(w, Options{Policy: twoOne, Rebalance: true, AckCopies: 2})
	w.sites["d"].writing = 1 // so that the first look does not list it
	if err := r.k.Drain(t.Context(), "d", false); err != nil {
		t.Fatal(err)
	}
	w.sites["d"].writing = 0
	used := false
	w.listed = func(*site) { // of d: no other place is listed, since nothing was written
		used = true
		if err := r.k.Undrain(t.Context(), "d"); err != nil {
			t.Error(err)
		}
		r.k.Written(anID(1), large, r.write(1, large, "a", "d"))
		if err := r.k.Drain(t.Context(), "d", false); err != nil {
			t.Error(err)
		}
	}
	if err := r.k.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := w.sites["d"]; !used || len(d.files) == 0 || d.state != spread.Draining {
		t.Fatalf("used %t, %d files, %q", used, len(d.files), d.state)
	}
	r.settle()
	r.complete()
	if d := w.sites["d"]; len(d.files) > 0 || d.state != spread.Drained {
		t.Errorf("%d files, %q", len(d.files), d.state)
	}
}

// TestDrain: what a place has goes to the others, nothing comes to it, and when it is empty that is noted, not before. It can be
// taken into use again at any time.
func TestDrain(t *testing.T) {
	r := newRig(newWorld(t, "a", "b", "c", "d"), Options{Policy: twoOne, Rebalance: true, AckCopies: 2})
	r.some(20)
	r.settle()
	r.complete()
	d := r.sites["d"]
	had, before := len(d.files), r.k.Counters().FilesMoved
	if had == 0 {
		t.Fatal("nothing to move")
	}
	if err := r.k.Drain(t.Context(), "d", false); err != nil {
		t.Fatal(err)
	}
	d.writing = 1
	r.settle()
	if len(d.files) > 0 || d.state != spread.Draining {
		t.Errorf("%d files, %q, while a file is being written", len(d.files), d.state)
	}
	d.writing = 0
	r.settle()
	r.complete()
	if d.state != spread.Drained {
		t.Errorf("the empty place is %q", d.state)
	}
	if moved := r.k.Counters().FilesMoved - before; moved != int64(had) {
		t.Errorf("%d moves for %d files", moved, had)
	}
	for i := 20; i < 30; i++ {
		r.k.Written(anID(i), large, r.write(i, large, "a", "b"))
	}
	r.settle()
	r.complete()
	if len(d.files) > 0 {
		t.Errorf("%d files came to a place that was emptied", len(d.files))
	}
	if err := r.k.Undrain(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.complete()
	if len(d.files) < had || d.state != spread.InUse {
		t.Errorf("%d files, %q, after it was taken into use again", len(d.files), d.state)
	}
}

// TestDrainIsRefused: where the others cannot do without the place, unless it is forced; then it waits for another place.
func TestDrainIsRefused(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	r := newRig(w, Options{Policy: twoOne, Rebalance: true, AckCopies: 2})
	r.some(6)
	r.settle()
	if err := r.k.Drain(t.Context(), "x", true); reasonOf(err) != NoSuchPlace {
		t.Error(err)
	}
	if err := r.k.Drain(t.Context(), "c", false); reasonOf(err) != TooFewPlaces || w.sites["c"].state != spread.InUse {
		t.Error(err)
	}
	if err := r.k.Drain(t.Context(), "c", true); err != nil {
		t.Fatal(err)
	}
	if err := r.k.Drain(t.Context(), "c", true); reasonOf(err) != WrongState {
		t.Error(err)
	}
	r.settle()
	if w.sites["c"].state != spread.Draining || r.l.Totals().Queued == 0 {
		t.Errorf("it is %q", w.sites["c"].state)
	}
	w.sites["d"] = &site{id: "id-d", files: map[string]*disk{}}
	r.settle()
	r.complete()
	if w.sites["c"].state != spread.Drained {
		t.Errorf("it is %q", w.sites["c"].state)
	}
	for _, c := range []struct {
		places []PlaceStatus
		ack    int
		want   Reason
	}{
		{[]PlaceStatus{{Name: "p", Used: 100, Up: true}, {Name: "q", Up: true, Free: 60}, {Name: "r", Up: true, Free: 39}}, 0, NoRoom},
		{[]PlaceStatus{{Name: "p", Used: 100, Up: true}, {Name: "q", Up: true, Free: 60}, {Name: "r", Up: true, Free: 40}}, 0, ""},
		{[]PlaceStatus{{Name: "p", Used: 100, Up: true}, {Name: "q", Up: true, Free: 60}, {Name: "r", Up: true, Free: -1}}, 0, ""},
		{[]PlaceStatus{{Name: "p", Used: 100, Up: true}, {Name: "q", Up: true, Free: 60}, {Name: "r", Up: true, Free: 60}, {Name: "s", Up: true, Used: 21, State: "draining"}}, 0, NoRoom},
		{[]PlaceStatus{{Name: "p", Used: 100, Up: true}, {Name: "q", Up: true, Free: 60}, {Name: "r", Up: true, Free: 60}, {Name: "s", Up: true, Used: 20, State: "draining"}}, 0, ""},
		{[]PlaceStatus{{Name: "p", Up: true}, {Name: "q", Up: true}, {Name: "r", Up: true, State: "drained"}}, 0, TooFewPlaces},
		{[]PlaceStatus{{Name: "p", Up: true}, {Name: "q", Up: true}, {Name: "r"}}, 0, TooFewPlaces},
		{[]PlaceStatus{{Name: "p", Up: true}, {Name: "q", Up: true}, {Name: OldPlace, Up: true}}, 0, TooFewPlaces},
		{[]PlaceStatus{{Name: "p", Local: true}, {Name: "q", Local: true, Up: true}, {Name: "r", Up: true}}, 2, TooFewPlaces},
		{[]PlaceStatus{{Name: "p"}, {Name: "q", Local: true, Up: true}, {Name: "r", Local: true, Up: true}}, 2, ""},
	} {
		got := Reason("")
		if err := mayLeave("p", c.places, copied, c.ack); err != nil {
			got = err.Reason
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.places, got, c.want)
		}
	}
}

// TestLostPlace: a place that will not return is given up: what the others can give is made again, what they cannot is named before,
// and needs force.
func TestLostPlace(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d")
	r := newRig(w, Options{Policy: twoOne, Rebalance: true})
	r.opt.Objects = func(_ context.Context, bodies map[string]bool, _ int) (out []ObjectName, _ error) {
		for b := range bodies {
			out = append(out, ObjectName{Bucket: "bucket", Key: b})
		}
		return out, nil
	}
	r.k.opt.Objects = r.opt.Objects
	r.some(12)
	r.settle()
	r.complete()
	if _, err := r.k.DeclareLost(t.Context(), "d", false); reasonOf(err) != StillThere {
		t.Error(err)
	}
	w.sites["d"].down = true
	r.round()
	got, err := r.k.DeclareLost(t.Context(), "d", false)
	if err != nil || got.Bodies != 0 || got.Files != int64(len(w.sites["d"].files)) {
		t.Fatalf("%+v, %v", got, err)
	}
	w.sites["d"].files = map[string]*disk{}
	r.settle()
	r.complete()
	if err := r.k.Undrain(t.Context(), "d"); err == nil && r.sites["d"].state == spread.Lost {
		t.Error("what is lost was taken into use")
	}

	// Now one has the only file of a body.
	w = newWorld(t, "a", "b", "c")
	r = newRig(w, Options{Policy: Policy{Copies: 1}, Objects: r.opt.Objects})
	r.k.Written(anID(1), small, r.write(1, small, "c"))
	r.k.Written(anID(2), small, r.write(2, small, "c", "a"))
	w.sites["c"].down = true
	r.round()
	got, err = r.k.DeclareLost(t.Context(), "c", false)
	if reasonOf(err) != LosesBodies || got.Bodies != 1 || got.Bytes != small || len(got.Objects) != 1 || got.Objects[0].Key != anID(1) || w.sites["c"].state != spread.InUse {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err = r.k.DeclareLost(t.Context(), "c", true); err != nil || got.Bodies != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	delete(w.named, anID(1)) // somebody deletes the object
	r.k.Removed(anID(1))
	w.sites["c"].files = map[string]*disk{}
	r.settle()
	r.complete()
}

// TestLossesOfALostLedger: a ledger that was lost knows nothing of a place that is away. That is no proof that nothing is lost with it.
func TestLossesOfALostLedger(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	r := newRig(w, Options{Policy: Policy{Copies: 1}})
	bodies := func(after string, limit int) (list []string, _ error) {
		for _, b := range slices.Sorted(maps.Keys(w.named)) {
			if b > after && len(list) < limit {
				list = append(list, b)
			}
		}
		return list, nil
	}
	r.opt.Bodies, r.k.opt.Bodies = bodies, bodies
	r.k.Written(anID(1), small, r.write(1, small, "c"))
	r.k.Written(anID(2), small, r.write(2, small, "a"))
	r.settle()
	w.sites["c"].down = true
	r.lose()
	r.settle()
	got, err := r.k.DeclareLost(t.Context(), "c", false)
	if reasonOf(err) != LosesBodies || got.Bodies != 1 || got.IDs[0] != anID(1) || w.sites["c"].state != spread.InUse {
		t.Fatalf("%+v, %v", got, err)
	}
	// It is back, and is known again: what the ledger says of it counts, also when it goes.
	w.sites["c"].down = false
	r.settle()
	r.complete()
	delete(w.named, anID(1))
	r.k.Removed(anID(1))
	r.settle()
	w.sites["c"].down = true
	r.round()
	if got, err := r.k.DeclareLost(t.Context(), "c", false); err != nil || got.Bodies != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
}

// impatient counts the looks at places that were given up before they ended.
type impatient struct {
	*world
	cut int
}

func (f *impatient) Status(ctx context.Context) []PlaceState {
	if ctx.Err() != nil {
		f.cut++
	}
	return f.world.Status(ctx)
}

// TestWhoDrainsMayGo: places that are asked for somebody who has gone do not look as if they did not answer.
func TestWhoDrainsMayGo(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d")
	r := newRig(w, Options{Policy: twoOne})
	f := &impatient{world: w}
	k, err := New(t.Context(), r.l, f, r.opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Drain(ctx, "d", false); err != nil {
		t.Fatal(err)
	}
	if w.sites["d"].state == spread.InUse || f.cut != 0 {
		t.Errorf("%q, %d looks", w.sites["d"].state, f.cut)
	}
}

// TestDrainAtRandom empties places, takes them back and gives them up among crashes, lost ledgers and writes: nothing is lost but with
// a place that was given up, and a place is noted as empty only when it is.
func TestDrainAtRandom(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 77))
			names := []string{"a", "b", "c", "d", "e"}
			w := newWorld(t, names...)
			r := newRig(w, Options{Policy: twoOne, Rebalance: true})
			body := 0
			for range 30 {
				n := names[rng.IntN(len(names))]
				switch rng.IntN(6) {
				case 0, 1:
					body++
					var at []string
					for _, p := range []string{"a", "b", "c", "d", "e"} {
						if w.sites[p].state == spread.InUse && len(at) < 2 {
							at = append(at, p)
						}
					}
					size := []int64{small, large}[rng.IntN(2)]
					r.k.Written(anID(body), size, r.write(body, size, at...))
				case 2:
					_ = r.k.Drain(t.Context(), n, false) // refused where too few would be left
				case 3:
					if s := w.sites[n]; s.state == spread.Draining || s.state == spread.Drained {
						if err := r.k.Undrain(t.Context(), n); err != nil {
							t.Fatal(err)
						}
					}
				case 4:
					steps := rng.IntN(12)
					w.hit = func(string) {
						if steps--; steps < 0 {
							w.hit = func(string) {}
							panic(errKilled)
						}
					}
					if catch(r.round) {
						r.crash(rng)
					}
					w.hit = func(string) {}
				case 5:
					if rng.IntN(3) == 0 {
						r.lose()
					} else {
						r.round()
					}
				}
				if w.broke != nil {
					t.Fatal(w.broke)
				}
			}
			r.settle()
			r.complete()
			for n, s := range w.sites {
				if s.state == spread.Draining || s.state == spread.Drained && len(s.files) > 0 {
					t.Errorf("%s is %q and has %d files", n, s.state, len(s.files))
				}
			}
		})
	}
}

// TestReadableFrom: shards count by policy and number, each index once.
func TestReadableFrom(t *testing.T) {
	shard := func(policy uint32, i uint16, place string, s ledger.State) ledger.Row {
		return ledger.Row{Key: ledger.Key{Body: anID(1), Policy: policy, Kind: ledger.Data, Index: i}, K: 2, M: 1, Place: place, State: s}
	}
	there := map[string]bool{"a": true, "b": true}
	for i, c := range []struct {
		rows []ledger.Row
		want bool
	}{
		{nil, false},
		{[]ledger.Row{shard(1, 0, "a", ledger.Durable), shard(1, 1, "b", ledger.Uploaded)}, true},
		{[]ledger.Row{shard(1, 0, "a", ledger.Durable), shard(1, 1, "c", ledger.Durable)}, false},
		{[]ledger.Row{shard(1, 0, "a", ledger.Durable), shard(2, 1, "b", ledger.Durable)}, false},
		{[]ledger.Row{shard(1, 0, "a", ledger.Durable), shard(1, 1, "b", ledger.Staged)}, false},
		{[]ledger.Row{{Key: ledger.Key{Kind: ledger.Copy}, Place: "b", State: ledger.Durable}}, true},
		{[]ledger.Row{{Key: ledger.Key{Kind: ledger.Copy}, Place: "b", State: ledger.Removing}}, false},
	} {
		if got := readableFrom(c.rows, there); got != c.want {
			t.Errorf("%d: %t", i, got)
		}
	}
}

// TestQueriesAreChecked: what no ledger has is a bad question, and a ledger that is closed is none.
func TestQueriesAreChecked(t *testing.T) {
	r := newRig(newWorld(t, "a", "b"), Options{Policy: copied})
	r.some(2)
	r.settle()
	odd := "zz" + anID(1)[2:]
	for _, q := range []Query{{Body: odd}, {Body: anID(1)[1:]}, {After: odd + ".0.0.0"}, {After: anID(1) + ".0.0"}, {State: "odd"}, {Place: "odd"}, {Place: "a", After: odd + ".0.0.0"}} {
		if got, err := r.k.Files(q); !errors.Is(err, ErrQuery) {
			t.Errorf("%+v: %v, %v", q, got, err)
		}
	}
	if got, err := r.k.Files(Query{Body: anID(1)}); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if err := r.l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.k.Files(Query{Body: anID(1)}); err == nil || errors.Is(err, ErrQuery) {
		t.Errorf("a ledger that is closed: %v", err)
	}
}
