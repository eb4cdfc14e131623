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

// world is one boot in etcd and in three regions. Whoever makes a request may be overtaken there: by others who fold and claim from
// begin to end, by writes that come late, by a move of the epoch with another first region.
type world struct {
	t    *testing.T
	rng  *rand.Rand
	mems []*mem.Store
	// etcd: the epoch with the order of its regions, the boot's generation, and its settled claims.
	epoch  uint64
	order  []int
	gen    uint64
	etcd   map[identity.Batch]claims.Claim
	truth  map[identity.Batch]claims.Claim // everything that was ever told accepted
	late   []func()
	away   int // the region that does not answer; -1 is none
	depth  int
	calm   bool
	looker map[uint64]*Looker
	folds  int
	faults map[string]int
	seed   uint64
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
	case w.away == s.i:
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
	switch n := w.rng.IntN(120); {
	case n < 3:
		w.away = w.rng.IntN(6) - 3
	case n == 3:
		w.faults["epoch"]++
		w.epoch++
		w.rng.Shuffle(len(w.order), func(i, j int) { w.order[i], w.order[j] = w.order[j], w.order[i] })
	}
	if w.depth < 2 && w.rng.IntN(8) == 0 {
		w.depth++
		w.one()
		w.depth--
	}
}

func (w *world) regions() []Region {
	var out []Region
	for _, i := range w.order {
		out = append(out, Region{claims.Region([]string{"asia", "eu", "us"}[i]), wire{w, i}})
	}
	return out
}

// one process does one thing.
func (w *world) one() {
	if w.rng.IntN(3) == 0 {
		w.fold(w.rng.IntN(4) == 0)
		return
	}
	w.claim()
}

// claim is a claim that is settled at once, as step by step as a coordinator makes it.
func (w *world) claim() {
	start := uint64(w.rng.IntN(60))
	id := batch(start, start+uint64(w.rng.IntN(3)))
	h := identity.Sum([]byte{byte(w.rng.IntN(2))})
	e, g := w.epoch, w.gen
	l := w.looker[e]
	if l == nil || w.rng.IntN(20) == 0 {
		l = NewLooker(w.regions(), living, 1<<16)
		w.looker[e] = l
	}
	for other, c := range w.etcd {
		if id.Intersects(other) && (id != other || c.Hash != h) {
			return // a conflict, by a claim
		}
	}
	if _, there := w.etcd[id]; there {
		return
	}
	f, err := l.Look(context.Background(), id, h, g)
	if err != nil {
		return
	}
	told, known := w.truth[id]
	switch f.Verdict {
	case Same:
		if !known || told.Hash != h || told.Home != f.Entry.Home {
			w.t.Fatalf("seed %d: %s is told to be folded with a home that is %s; it is %+v", w.seed, id, f.Entry.Home, told)
		}
	case OtherHash:
		if !known || told.Hash == h {
			w.t.Fatalf("seed %d: %s is told to have another hash; it is %+v", w.seed, id, told)
		}
	case OtherRange:
		if known {
			w.t.Fatalf("seed %d: %s is told to meet another; it is %+v", w.seed, id, told)
		}
	case Free:
		// The claim's transaction: epoch and generation are what they were, the head was not older, and no claim meets it.
		if w.epoch != e || w.gen != g {
			return
		}
		for other := range w.etcd {
			if id.Intersects(other) {
				return
			}
		}
		for other, c := range w.truth {
			if id.Intersects(other) {
				w.t.Fatalf("seed %d: %s is free, and %s was told accepted: %+v; etcd has generation %x, the head %x", w.seed, id, other, c, w.gen, f.Generation)
			}
		}
		c := claims.Claim{Identity: id, Hash: h, State: claims.Settled, Home: claims.Region([]string{"asia", "eu", "us"}[w.rng.IntN(3)])}
		w.etcd[id], w.truth[id] = c, c
	}
}

// fold is steps 1 to 4 of a folder; it may die between 3 and 4.
func (w *world) fold(dies bool) {
	e, g := w.epoch, w.gen
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
	m, err := Folder{Epoch: e, Regions: w.regions(), Retired: living, SealAt: 6}.Fold(context.Background(), boot, g, add)
	if errors.Is(err, ErrContradiction) || errors.Is(err, ErrCorrupt) || w.calm && err != nil {
		w.t.Fatal(err)
	}
	if err != nil || dies || w.epoch != e || w.gen != g {
		return
	}
	w.folds++
	w.gen = m.Generation
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
	for i := range w.mems {
		l := NewLooker([]Region{{"one", wire{w, i}}}, living, 1<<16)
		for id, c := range w.truth {
			if f, err := l.Look(context.Background(), id, c.Hash, w.gen); err != nil || f.Verdict != Same || f.Entry.Home != c.Home {
				w.t.Fatalf("seed %d: region %d says %+v (%v) of %s, which is %+v", w.seed, i, f, err, id, c)
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
		w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 75)), epoch: 1, order: []int{0, 1, 2}, etcd: map[identity.Batch]claims.Claim{}, truth: map[identity.Batch]claims.Claim{}, away: -1, looker: map[uint64]*Looker{}, faults: faults}
		for range 3 {
			w.mems = append(w.mems, mem.New(nil))
		}
		w.seed = seed
		w.run(60)
		folded, told = folded+w.folds, told+len(w.truth)
	}
	t.Logf("%d folds, %d identities, %v", folded, told, faults)
	if folded < schedules || told < schedules || len(faults) != 7 {
		t.Errorf("%d folds, %d identities, faults %v", folded, told, faults)
	}
}
