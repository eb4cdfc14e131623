package regions_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The simulation runs keepers, collectors and reconcilers of three regions over their buckets and one etcd, which is restored to
// older copies again and again. Each process is a coroutine that gives way before and behind each request; requests are refused,
// lost, late or doubled, regions are away, processes die anywhere. One seed is one schedule.

var everywhere = []claims.Region{"asia", "eu", "us"}

// sim is everything there is.
type sim struct {
	t       testing.TB
	rnd     *rand.Rand
	seed    uint64
	step    int
	now     time.Time
	kv      *kv.Store
	cluster uint64
	copies  []*kv.Store
	sent    []claims.Txn    // requests that may come once more
	names   []claims.Region // of all regions
	buckets map[claims.Region]*mem.Store
	away    claims.Region
	late    []lateRequest
	actors  []*actor
	quiet   bool // no more faults
	faulty  int  // of so many requests each of four kinds of faults has one
	ids     uint64
	failed  string
	added   bool // asia takes part
	// gone is a region whose bucket is lost for good, in some schedules; retired: an epoch without it was open. lost is what its journal
	// had.
	gone    claims.Region
	goes    bool
	retired bool
	lost    map[identity.Batch]identity.Digest
	last    uint64
	// lived is the epoch that was opened last, copiesGone how many copies there were when the bucket was lost, and forgiven what may be
	// told otherwise: etcd was lost at once with the region that had it. See sim_restore_test.go.
	lived      regions.Opened
	copiesGone int
	regressed  int // restores while a region is retired
	forgiven   map[identity.Batch]bool
	faults     map[string]int
	leader     claims.Region
	trace      bool
	wrote      func(of claims.Region, key string, body []byte) // nil where nobody looks on
	committed  func(t claims.Txn)                              // behind one that was done; nil where nobody looks on
	open       error                                           // why no epoch is open in the end
	// saw is called when a process has opened an epoch; former are regions that took part until they were retired, of which not all are lost.
	saw    func(o regions.Opened)
	former map[claims.Region]bool

	// alone is what asia has accepted on its own, and entered; closed: it does so no more.
	alone  map[identity.Batch]identity.Digest
	closed bool
	// together: all regions begin the first epoch at once.
	together bool

	acked   map[identity.Batch]identity.Digest
	refused map[identity.Batch][]identity.Digest // told conflict
	ranged  map[identity.Batch]bool              // told range conflict
	entries map[claims.Region]map[identity.Batch]identity.Digest
	answers int
	kinds   [12]int
	// folds counts claims that were folded, forgotten boots.
	folds, forgotten, decidedByFolds, again int
	// prepared is how many batches were prepared.
	prepared int
}

// actor is a process.
type actor struct {
	*sim
	main   func(*actor)
	yield  func(struct{}) bool
	resume func() (struct{}, bool)
	stop   func()
	dead   bool
	// keeping: its requests are logged. early: it has nothing to do once asia takes part.
	keeping, early bool
	region         claims.Region
	requests       int
}

func (w *sim) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf("seed %d, step %d: ", w.seed, w.step) + fmt.Sprintf(format, args...)
	}
}

// logf is for whoever looks at one schedule.
func (w *sim) logf(format string, args ...any) {
	if w.trace {
		fmt.Printf("%6d "+format+"\n", append([]any{w.step}, args...)...)
	}
}

func (w *sim) start(r claims.Region, main func(*actor)) *actor {
	a := &actor{sim: w, main: main, region: r}
	a.resume, a.stop = iter.Pull(func(yield func(struct{}) bool) {
		a.yield = yield
		main(a)
	})
	return a
}

// pause lets others run; false: the process has died.
func (a *actor) pause() bool {
	if a.dead || a.failed != "" || !a.yield(struct{}{}) {
		a.dead = true
	}
	return !a.dead
}

// request runs one over a network that loses, delays and doubles.
func (a *actor) request(unavailable, unknown error, fn func() error) error {
	a.requests++
	if !a.pause() {
		return fmt.Errorf("%w: %w", unavailable, errDead)
	}
	if !a.quiet {
		switch a.rnd.IntN(a.faulty) {
		case 0:
			return unavailable
		case 1:
			_ = fn()
			return unknown
		case 2:
			a.late = append(a.late, lateRequest{a.keeping, func() { _ = fn() }})
			return unknown
		case 3:
			a.late = append(a.late, lateRequest{a.keeping, func() { _ = fn() }})
		}
	}
	err := fn()
	if a.rnd.IntN(2) == 0 && !a.pause() {
		return fmt.Errorf("%w: %w", unknown, errDead)
	}
	return err
}

// simEtcd is the store of claims as a process reaches it.
type simEtcd struct{ *actor }

func (e simEtcd) Commit(ctx context.Context, t claims.Txn) (claims.Result, error) {
	var first *claims.Result
	t.Parts = cloned(t.Parts)
	if !e.keeping {
		e.remember(t)
	}
	err := e.request(claims.ErrUnavailable, claims.ErrUnknown, func() error {
		r, err := e.kv.Commit(ctx, t)
		if e.keeping {
			e.logf("keeper of %s in etcd: cluster %d, revision %d, held %v: %d reads, %d puts, %d deletes", e.region, r.Cluster, r.Revision, r.Held, len(t.Parts[0].Reads), len(t.Parts[0].Puts), len(t.Parts[0].Deletes))
		}
		if err == nil && r.Held && e.committed != nil {
			e.committed(t)
		}
		if first == nil {
			first = &r
		}
		return err
	})
	if err != nil {
		return claims.Result{}, err
	}
	return *first, nil
}

// simBucket is the bucket of a region as a process reaches it.
type simBucket struct {
	*actor
	of claims.Region
}

func (b simBucket) do(fn func() error) error {
	if b.away == b.of && !b.quiet || b.gone == b.of {
		b.pause()
		return errDown
	}
	return b.request(objstore.ErrUnavailable, objstore.ErrUnknown, fn)
}

func (b simBucket) Get(ctx context.Context, key string, o objstore.GetOptions) (body []byte, i objstore.Info, err error) {
	err = b.do(func() (err error) { body, i, err = b.buckets[b.of].Get(ctx, key, o); return err })
	return body, i, err
}

func (b simBucket) List(ctx context.Context, o objstore.ListOptions) (p objstore.Page, err error) {
	o.Limit = 1 + b.rnd.IntN(4)
	err = b.do(func() (err error) { p, err = b.buckets[b.of].List(ctx, o); return err })
	return p, err
}

func (b simBucket) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (i objstore.Info, err error) {
	err = b.do(func() (err error) {
		i, err = b.buckets[b.of].Create(ctx, key, body, o)
		return b.note(key, body, err)
	})
	return i, err
}

// note tells whoever looks on that something was written.
func (b simBucket) note(key string, body []byte, err error) error {
	if err == nil && b.wrote != nil {
		b.wrote(b.of, key, body)
	}
	return err
}

func (b simBucket) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (i objstore.Info, err error) {
	replace := func() (err error) {
		i, err = b.buckets[b.of].Replace(ctx, key, body, etag, o)
		return b.note(key, body, err)
	}
	// The record of the epoch alone is replaced, which is rare: so that is lost more often.
	if !b.quiet && b.rnd.IntN(6) == 0 && b.pause() {
		b.late = append(b.late, lateRequest{b.keeping, func() { _ = replace() }})
		return i, objstore.ErrUnknown
	}
	err = b.do(replace)
	return i, err
}

type simRand struct{ *rand.Rand }

func (r simRand) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return len(b), nil
}

func (a *actor) keeper(names ...claims.Region) *regions.Keeper {
	c := regions.Config{KV: simEtcd{a}, Keys: keys, Rand: simRand{a.rnd}, Now: func() int64 { return a.now.UnixNano() }, SealAt: 4}
	for _, n := range names {
		c.Regions = append(c.Regions, regions.Region{Name: n, Store: simBucket{a, n}})
	}
	k, err := regions.New(c)
	if err != nil {
		a.fail("%v", err)
	}
	return k
}

// recover is a coordinator that recovers while it leads, and sometimes while another one does.
func (a *actor) recover() {
	k := a.keeper(everywhere...)
	first := a.keeper("eu", "us")
	a.keeping = true
	for a.pause() {
		leading := a.leader == a.region || !a.quiet && a.rnd.IntN(10) == 0
		// The first epoch has the regions that its settings have, and the third is added.
		switch {
		case !a.added && !a.together:
			_, _ = first.Open(context.Background(), leading)
		case !a.added && leading:
			a.closed = true
			if o, err := k.Add(context.Background(), "asia"); err == nil {
				a.added = true
				a.opened(o)
			}
		}
		if o, err := k.Open(context.Background(), leading && a.last > 0); err == nil {
			a.opened(o)
		}
		if !a.dead && leading && a.last > 0 && (a.quiet || a.goes || a.rnd.IntN(20) == 0) {
			a.closed = true // its collectors accept nothing on their own any more
			if o, err := k.Add(context.Background(), "asia"); err == nil {
				a.added = true
				a.opened(o)
			}
		}
		if !a.dead && leading && a.added && a.goes && !a.retired {
			a.retire(k)
		}
		for range a.rnd.IntN(20) {
			a.pause()
		}
	}
}

// retire retires a region whose bucket is lost.
func (a *actor) retire(k *regions.Keeper) {
	if a.gone == "" {
		// Etcd that is lost with a region at once is more than is promised.
		if _, err := k.Open(context.Background(), false); !a.quiet && a.rnd.IntN(6) > 0 || err != nil || a.dead || a.gone != "" {
			return
		}
		// Nobody recovers at this moment: what a recovery has dropped from etcd only the bucket has.
		for _, o := range a.actors {
			if o.keeping && o != a {
				o.kill()
			}
		}
		a.late = slices.DeleteFunc(a.late, func(l lateRequest) bool { return l.keeping })
		if a.unfilled() {
			return
		}
		if !a.quiet {
			a.faults["a region is lost early"]++
		}
		a.gone, a.copiesGone = everywhere[a.rnd.IntN(len(everywhere))], len(a.copies)
		a.logf("%s is gone", a.gone)
	}
	o, err := k.Retire(context.Background(), a.gone, false)
	if errors.Is(err, regions.ErrForgets) && a.retiring() && !a.dead {
		// Etcd was restored since that began.
		a.faults["forced"]++
		o, err = k.Retire(context.Background(), a.gone, true)
	}
	a.logf("retire %s: %v %v", a.gone, o.Epoch, err)
	if err == nil && !a.dead {
		a.opened(o)
	}
}

// opened: epochs that were open never go back, no region is lost, and all of them know of the epoch.
func (w *sim) opened(o regions.Opened) {
	if w.gone != "" && !w.retired && !slices.Contains(o.Epoch.Regions, w.gone) {
		w.retired, w.lost, w.entries[w.gone] = true, w.had(w.gone), nil
	}
	if w.retired && slices.Contains(o.Epoch.Regions, w.gone) && o.Epoch.Number >= w.last {
		w.fail("epoch %d has %s again", o.Epoch.Number, w.gone)
	}
	for _, r := range o.Epoch.Regions {
		if r == w.gone {
			continue
		}
		b, _, err := w.buckets[r].Get(context.Background(), layout.RegionsKey, objstore.GetOptions{})
		rec, err2 := regions.ParseRecord(b)
		if err != nil || err2 != nil || rec.Number < o.Epoch.Number {
			w.fail("epoch %d is open, and %s has %d (%v, %v)", o.Epoch.Number, r, rec.Number, err, err2)
		}
	}
	if w.added && w.gone != "asia" && !slices.Contains(o.Epoch.Regions, "asia") && o.Epoch.Number > w.last {
		w.fail("epoch %d has lost a region: %v", o.Epoch.Number, o.Epoch.Regions)
	}
	if o.Epoch.Number > w.last {
		w.logf("epoch %d is open: %v", o.Epoch.Number, o.Epoch.Regions)
	}
	if o.Epoch.Number >= w.last {
		w.last, w.lived = o.Epoch.Number, o
	}
}

// kill ends a process, and another one begins in its place.
func (a *actor) kill() {
	a.stop()
	a.restart()
}

// restart begins the process once more, in the place of the one that has ended.
func (a *actor) restart() {
	next := a.start(a.region, a.main)
	next.early = a.early
	a.actors[slices.Index(a.actors, a)] = next
}

func simulateRegions(t testing.TB, seed uint64) *sim {
	w := &sim{
		t: t, rnd: rand.New(rand.NewPCG(seed, 14)), seed: seed, faulty: 40, names: everywhere, now: time.Unix(1000, 0), kv: kv.New(), cluster: 1, leader: "eu", trace: os.Getenv("REGIONS_SIM_TRACE") != "",
		buckets: map[claims.Region]*mem.Store{}, acked: map[identity.Batch]identity.Digest{}, refused: map[identity.Batch][]identity.Digest{},
		ranged: map[identity.Batch]bool{}, alone: map[identity.Batch]identity.Digest{}, forgiven: map[identity.Batch]bool{}, faults: map[string]int{}, goes: seed%3 == 0, together: seed%6 == 0, entries: map[claims.Region]map[identity.Batch]identity.Digest{},
	}
	w.saw = w.opened
	for _, r := range everywhere {
		w.buckets[r], w.entries[r] = mem.New(nil), map[identity.Batch]identity.Digest{}
	}
	for range 3 {
		w.acceptAlone()
	}
	defer func() {
		for _, a := range w.actors {
			a.stop()
		}
		if w.failed != "" {
			t.Fatal(w.failed)
		}
	}()
	for _, r := range everywhere {
		for _, main := range []func(*actor){(*actor).recover, (*actor).collect, (*actor).collect, (*actor).reconcile} {
			w.spawn(r, main)
		}
	}
	for range 2 {
		w.spawn("asia", (*actor).prepare)
	}
	w.spawn("asia", (*actor).collectAlone)
	for _, a := range w.actors[len(w.actors)-3:] {
		a.early = true
	}
	steps := 6000
	if w.goes {
		steps = 12_000
	}
	for w.step < steps && w.failed == "" {
		w.one()
	}
	// In the end everything is settled or released, and says what it has said.
	w.quiet = true
	for _, l := range w.late {
		l.fn()
	}
	w.late = nil
	for n := range 60 {
		for range 1000 {
			if w.failed == "" {
				w.one()
			}
		}
		if w.failed != "" || w.settled() && (!w.goes || w.retired || n > 40) {
			break
		}
	}
	w.end()
	return w
}

func (w *sim) spawn(r claims.Region, main func(*actor)) {
	w.actors = append(w.actors, w.start(r, main))
}

// one lets one thing happen.
func (w *sim) one() {
	w.step++
	w.now = w.now.Add(time.Millisecond)
	rate := 12
	if w.goes && w.gone == "" {
		rate = 60 // else it is hardly ever lost before the end
	}
	if w.rnd.IntN(rate) == 0 && !w.quiet {
		w.fault()
		return
	}
	a := w.actors[w.rnd.IntN(len(w.actors))]
	for a.early && w.added && w.rnd.IntN(20) > 0 {
		a = w.actors[w.rnd.IntN(len(w.actors))]
	}
	if _, ok := a.resume(); !ok {
		a.restart()
	}
}

var errNone = errors.New("none")

// all claims in etcd.
func (w *sim) all() []claims.Claim { return w.allIn(w.kv) }

func (w *sim) allIn(s *kv.Store) (out []claims.Claim) {
	for _, e := range wholeEtcd(s, keys.Claims()) {
		boot, start, err := keys.ParseClaim(e.Key)
		c, err2 := claims.ParseClaim(boot, start, e.Value)
		if err != nil || err2 != nil {
			w.fail("%v, %v", err, err2)
		}
		out = append(out, c)
	}
	return out
}

// settled: an epoch is open, and no claim is held.
func (w *sim) settled() bool {
	open := errNone
	a := w.start("eu", func(a *actor) { _, open = a.keeper(a.names...).Open(context.Background(), false) })
	defer a.stop()
	for ok := true; ok; {
		_, ok = a.resume()
	}
	w.open = open
	return open == nil && !slices.ContainsFunc(w.all(), func(c claims.Claim) bool { return c.State == claims.Claimed || c.State == claims.Durable })
}

// end: what was promised at the end of everything.
func (w *sim) end() {
	if w.failed != "" {
		return
	}
	if !w.settled() {
		w.fail("no epoch is open (%v), or claims are held for ever: %+v", w.open, w.all())
		return
	}
	for id, hash := range w.acked {
		if w.forgives(id) {
			continue
		}
		n := 0
		for _, r := range w.names {
			if h, ok := w.entries[r][id]; ok {
				if n++; h != hash {
					w.fail("%s was acknowledged as %.4s, and the journal of %s has %.4s", id, hash, r, h)
				}
			}
		}
		_, lost := w.lost[id]
		if n != 1 && !(n == 0 && (lost || w.alone[id] == hash)) {
			w.fail("%s was acknowledged, and is in %d journals", id, n)
		}
	}
	for r, of := range w.entries {
		for id, hash := range of {
			b, _, err := w.buckets[r].Get(context.Background(), manifestOf(r, id, hash, claims.Stamp{}).Key(), objstore.GetOptions{})
			if err != nil {
				w.fail("the journal of %s has %s, and there is no manifest: %v", r, id, err)
				continue
			}
			if m, err := accept.ParseManifest(b); err != nil || m.FrameSHA256 != hash {
				w.fail("the journal of %s has %s as %.4s, and the manifest %.4s (%v)", r, id, hash, m.FrameSHA256, err)
			}
		}
	}
}

// simulated are the schedules of a simulation: so many, or a quarter of them in a short test, from seed 0; unless the environment says otherwise.
func simulated(t *testing.T, seeds uint64) (n, first uint64) {
	if n = seeds; testing.Short() {
		n = seeds / 4
	}
	number := func(name string, to *uint64) {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.ParseUint(text, 10, 63)
			if err != nil {
				t.Fatal(err)
			}
			*to = n
		}
	}
	number("REGIONS_SIM_SCHEDULES", &n)
	number("REGIONS_SIM_SEED", &first)
	return n, first
}

func TestSimulation(t *testing.T) {
	seeds, first := simulated(t, 150)
	var answers, epochs, restores, folded, forgotten, byFolds, retired, again, prepared int
	var kinds [12]int
	faults := map[string]int{}
	for seed := first; seed < first+seeds; seed++ {
		w := simulateRegions(t, seed)
		answers, epochs, restores = answers+w.answers, epochs+int(w.last), restores+int(w.cluster-1)
		folded, forgotten, byFolds = folded+w.folds, forgotten+w.forgotten, byFolds+w.decidedByFolds
		again, prepared = again+w.again, prepared+w.prepared
		if w.retired {
			retired++
		}
		for i, n := range w.kinds {
			kinds[i] += n
		}
		for what, n := range w.faults {
			faults[what] += n
		}
	}
	t.Logf("%d schedules, %d answers, %d by folds, %d epochs, %d restores, %d claims folded, %d boots forgotten, %d regions retired, %d batches accepted again, %d prepared", seeds, answers, byFolds, epochs, restores, folded, forgotten, retired, again, prepared)
	t.Logf("%v", faults)
	for i, n := range kinds {
		if n > 0 {
			t.Logf("%s: %d", claims.Outcome(i), n)
		}
	}
}
