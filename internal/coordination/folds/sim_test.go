package folds

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// world is one boot in etcd and in three regions. Whoever makes a request may be overtaken there: by others who fold, claim and forget
// from begin to end, and by writes that come late.
type world struct {
	t    *testing.T
	rng  *rand.Rand
	mems []*mem.Store
	// etcd: its revision, what it knows of the boot's folds, and the boot's settled claims.
	revision int64
	known    claims.Folds
	etcd     map[identity.Batch]claims.Claim
	truth    map[identity.Batch]claims.Claim // everything that was ever told accepted
	late     []func()
	away     int // bits of the regions that do not answer
	depth    int
	calm     bool
	lookers  []*Looker
	folds    int
	faults   map[string]int
	seed     uint64
}

var errCrash = errors.New("the process died")

// wire is a region's bucket as seen by a process.
type wire struct {
	w *world
	i int
}

func (s wire) before() error {
	w := s.w
	if w.calm {
		return nil
	}
	w.step()
	switch {
	case w.away>>s.i&1 == 1:
		return fmt.Errorf("away: %w", objstore.ErrUnavailable)
	case w.rng.IntN(60) == 0:
		w.faults["crash"]++
		return errCrash
	}
	return nil
}

func (s wire) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if err := s.before(); err != nil {
		return nil, objstore.Info{}, err
	}
	return s.w.mems[s.i].Get(ctx, key, o)
}

func (s wire) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	return s.w.mems[s.i].List(ctx, o)
}

func (s wire) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(func() (objstore.Info, error) { return s.w.mems[s.i].Create(ctx, key, b, o) })
}

func (s wire) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(func() (objstore.Info, error) { return s.w.mems[s.i].Replace(ctx, key, b, etag, o) })
}

func (s wire) write(do func() (objstore.Info, error)) (objstore.Info, error) {
	if err := s.before(); err != nil {
		return objstore.Info{}, err
	}
	w := s.w
	if w.calm {
		return do()
	}
	unknown := fmt.Errorf("no answer: %w", objstore.ErrUnknown)
	again := func() { _, _ = do() }
	switch w.rng.IntN(12) {
	case 0:
		w.faults["lost"]++
		return objstore.Info{}, unknown
	case 1:
		w.faults["late"]++
		w.late = append(w.late, again)
		return objstore.Info{}, unknown
	case 2:
		w.faults["answer lost"]++
		again()
		return objstore.Info{}, unknown
	case 3:
		w.faults["doubled"]++
		w.late = append(w.late, again)
	case 4:
		w.faults["died after"]++
		again()
		return objstore.Info{}, errCrash
	}
	return do()
}

// step is what others do in between.
func (w *world) step() {
	if len(w.late) > 0 && w.rng.IntN(6) == 0 {
		i := w.rng.IntN(len(w.late))
		do := w.late[i]
		w.late = slices.Delete(w.late, i, i+1)
		do()
	}
	if w.rng.IntN(40) == 0 {
		w.away = []int{0, 0, 0, 1, 2, 4, 3, 5, 6}[w.rng.IntN(9)]
	}
	if w.depth < 2 && w.rng.IntN(8) == 0 {
		w.depth++
		w.one()
		w.depth--
	}
}

func (w *world) folder() Folder {
	f := Folder{Homes: living, SealAt: 6}
	for _, i := range w.rng.Perm(len(w.mems)) {
		f.Regions = append(f.Regions, Region{claims.Region([]string{"asia", "eu", "us"}[i]), wire{w, i}})
	}
	return f
}

// ask is what etcd says of the boot.
func (w *world) ask() claims.Folds {
	k := w.known
	k.At, k.Epoch = w.revision, 1
	return k
}

// one process does one thing.
func (w *world) one() {
	switch n := w.rng.IntN(12); {
	case n < 4:
		w.fold(w.rng.IntN(4) == 0)
	case n == 4:
		w.forget()
	default:
		w.claim()
	}
}

// forget is what becomes of a boot that is idle.
func (w *world) forget() {
	if len(w.etcd) > 0 || w.known.Modified == 0 {
		return
	}
	w.faults["forgotten"]++
	w.revision++
	w.known = claims.Folds{Forgotten: w.revision}
}

// claim is a claim that is settled at once, as step by step as a coordinator makes it.
func (w *world) claim() {
	start := uint64(w.rng.IntN(60))
	id := batch(start, start+uint64(w.rng.IntN(3)))
	h := identity.Sum([]byte{byte(w.rng.IntN(2))})
	l := w.lookers[w.rng.IntN(len(w.lookers))]
	known := w.ask()
	for other, c := range w.etcd {
		if id.Intersects(other) && (id != other || c.Hash != h) {
			return // a conflict, by a claim
		}
	}
	if _, there := w.etcd[id]; there {
		return
	}
	var f Found
	if w.known.Modified > 0 && id.SeqStart >= w.known.Above {
		f = Found{Verdict: Free, Looked: claims.Looked{Heads: w.known.Heads}}
		w.faults["above"]++
	} else if looked, ok := l.Guess(id); ok && w.rng.IntN(2) == 0 {
		f = Found{Verdict: Free, Looked: looked}
		w.faults["guessed"]++
	} else {
		var err error
		if f, err = l.Look(context.Background(), id, h, known); err != nil {
			return
		}
		if !f.Looked.Suffices(known) {
			w.t.Fatalf("seed %d: %+v was looked at, and etcd had said %+v", w.seed, f.Looked, known)
		}
	}
	told, there := w.truth[id]
	switch f.Verdict {
	case Same:
		if !there || told.Hash != h || told.Home != f.Entry.Home {
			w.t.Fatalf("seed %d: %s is told to be folded with a home that is %s; it is %+v", w.seed, id, f.Entry.Home, told)
		}
	case OtherHash:
		if !there || told.Hash == h {
			w.t.Fatalf("seed %d: %s is told to have another hash; it is %+v", w.seed, id, told)
		}
	case OtherRange:
		if there {
			w.t.Fatalf("seed %d: %s is told to meet another; it is %+v", w.seed, id, told)
		}
	case Free:
		// The claim's transaction: what was looked at is enough, and no claim meets it.
		if !f.Looked.Suffices(w.ask()) {
			return
		}
		for other := range w.etcd {
			if id.Intersects(other) {
				return
			}
		}
		for other, c := range w.truth {
			if id.Intersects(other) {
				w.t.Fatalf("seed %d: %s is free, and %s was told accepted: %+v; etcd knows of %+v, looked at was %+v", w.seed, id, other, c, w.known, f.Looked)
			}
		}
		c := claims.Claim{Identity: id, Hash: h, State: claims.Settled, Home: claims.Region([]string{"asia", "eu", "us"}[w.rng.IntN(3)])}
		w.etcd[id], w.truth[id] = c, c
		w.revision++
		if w.known.Modified == 0 {
			w.known.Heads, w.known.Above, w.known.Modified = f.Looked.Heads, f.Looked.Above, w.revision
		}
	}
}

// fold is steps 1 to 4 of a folder; it may die between 3 and 4.
func (w *world) fold(dies bool) {
	known := w.ask()
	var ids []identity.Batch
	for id := range w.etcd {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, identity.Batch.Compare)
	var add []Entry
	ids = slices.DeleteFunc(ids, func(identity.Batch) bool { return !w.calm && w.rng.IntN(3) == 0 })
	for _, id := range ids {
		en, err := EntryOf(w.etcd[id])
		if err != nil {
			w.t.Fatal(err)
		}
		add = append(add, en)
	}
	m, err := w.folder().Fold(context.Background(), boot, known, add)
	if errors.Is(err, ErrContradiction) || errors.Is(err, ErrCorrupt) || w.calm && err != nil {
		w.t.Fatal(err)
	}
	if err != nil || dies || w.known.Modified != known.Modified || len(ids) == 0 {
		return
	}
	for _, id := range ids {
		if _, there := w.etcd[id]; !there {
			return
		}
	}
	if w.folds++; w.rng.IntN(2) == 0 {
		w.lookers[w.rng.IntN(len(w.lookers))].Moved(m)
	}
	w.revision++
	w.known.Heads, w.known.Above, w.known.Modified = m.Heads, m.Head.Above(), w.revision
	for _, id := range ids {
		delete(w.etcd, id)
	}
}

func (w *world) run(steps int) {
	for range steps {
		w.step()
		w.one()
	}
	// Everybody is there again, and what is late comes.
	w.calm = true
	for _, do := range w.late {
		do()
	}
	w.fold(false)
	if len(w.etcd) > 0 {
		w.t.Fatalf("seed %d: %d claims stay in etcd", w.seed, len(w.etcd))
	}
	if w.rng.IntN(2) == 0 {
		w.forget()
	}
	known := w.ask()
	for range w.mems {
		l := NewLooker(w.folder(), 1<<16)
		for id, c := range w.truth {
			if f, err := l.Look(context.Background(), id, c.Hash, known); err != nil || f.Verdict != Same || f.Entry.Home != c.Home {
				w.t.Fatalf("seed %d: %+v (%v) is said of %s, which is %+v", w.seed, f, err, id, c)
			}
		}
	}
}

func TestSimulation(t *testing.T) {
	schedules := 3000
	if s, err := strconv.Atoi(os.Getenv("FOLDS_SIM_SCHEDULES")); err == nil {
		schedules = s
	}
	folded, told, faults := 0, 0, map[string]int{}
	for seed := range uint64(schedules) {
		w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 75)), revision: 1, etcd: map[identity.Batch]claims.Claim{}, truth: map[identity.Batch]claims.Claim{}, faults: faults, seed: seed}
		for range 3 {
			w.mems = append(w.mems, mem.New(nil))
		}
		for range 3 {
			w.lookers = append(w.lookers, NewLooker(w.folder(), 1<<12))
		}
		w.run(60)
		folded, told = folded+w.folds, told+len(w.truth)
	}
	t.Logf("%d folds, %d identities, %v", folded, told, faults)
	if folded < schedules || told < schedules || len(faults) != 9 {
		t.Errorf("%d folds, %d identities, faults %v", folded, told, faults)
	}
}
