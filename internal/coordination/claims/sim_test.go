package claims_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	objects "lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The simulation runs collectors of several regions over coordinators that share one store. Transactions are late, lost
// or doubled, coordinators come and go, and the store is restored from older copies. One seed is one schedule.

const keys = claims.Keys("/sim/")

var regions = []claims.Region{"east", "west", "north"}

// world is everything there is.
type world struct {
	t    *testing.T
	rnd  *rand.Rand
	seed uint64
	now  time.Time

	store       *mem.Store
	incarnation int // of the store; a restored one is another
	copies      []*mem.Store
	epoch       claims.Epoch
	revision    int64 // of the epoch
	open        bool  // false: the store was restored, and recovery is not done

	coordinators []*coordinator
	callers      []*caller
	late         []lateFlight
	manifests    map[claims.Region]map[identity.Batch]manifest
	buckets      map[claims.Region]*objects.Store // with the heads of folds
	folds        int
	lateCreates  []func()
	acked        map[identity.Batch]identity.Digest
	refused      map[identity.Batch][]identity.Digest // told conflict
	holders      map[identity.Batch]identity.Digest   // who was told to hold it
	ranged       []identity.Batch                     // told range conflict
	counted      map[identity.Batch]claims.Region     // whose journal has it
	quiet        bool                                 // no more faults
	steps        int
}

// manifest is a region's record of a batch.
type manifest struct {
	hash  identity.Digest
	stamp claims.Stamp
}

// coordinator is a Group and its transactions under way.
type coordinator struct {
	*claims.Group
	incarnation int
	flights     []*flight
	callers     map[claims.Ticket]*caller
	told        map[claims.Ticket]bool
	looker      *folds.Looker
}

type flight struct {
	*claims.Flight
	ops     int
	applied bool
	res     claims.Result
}

// lateFlight is a transaction whose sender knows nothing of it any more.
type lateFlight struct {
	txn         claims.Txn
	incarnation int
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)), seed: seed, now: time.Unix(1000, 0), store: mem.New(), open: true,
		buckets: map[claims.Region]*objects.Store{}, manifests: map[claims.Region]map[identity.Batch]manifest{}, acked: map[identity.Batch]identity.Digest{},
		refused: map[identity.Batch][]identity.Digest{}, holders: map[identity.Batch]identity.Digest{}, counted: map[identity.Batch]claims.Region{},
	}
	for _, r := range regions {
		w.manifests[r] = map[identity.Batch]manifest{}
		w.buckets[r] = objects.New(nil)
	}
	w.setEpoch(1)
	for range 2 {
		w.coordinators = append(w.coordinators, nil)
	}
	for i := range w.coordinators {
		w.restart(i)
	}
	for i := range 5 {
		w.callers = append(w.callers, &caller{w: w, n: i, region: regions[i%len(regions)]})
	}
	return w
}

func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d, step %d: "+format, append([]any{w.seed, w.steps}, args...)...)
}

// setEpoch writes the epoch into the store, which fences transactions of earlier ones.
func (w *world) setEpoch(n uint64) {
	e := claims.Epoch{Number: n, ID: claims.ID{byte(n)}, Regions: regions}
	r, err := w.store.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Epoch(), Value: e.Marshal()}}}}})
	if err != nil {
		w.failf("%v", err)
	}
	w.epoch, w.revision = e, r.Revision
}

func (w *world) config() claims.Config {
	c := claims.DefaultConfig()
	c.MaxFlights, c.Linger, c.MaxTries = 1+w.rnd.IntN(3), time.Duration(w.rnd.IntN(3))*time.Millisecond, 50
	c.MaxOps, c.MaxClaims, c.MaxOfBoot, c.MaxWaiting = 1+w.rnd.IntN(6), 12, 4, 8
	if w.rnd.IntN(3) == 0 {
		c.CacheBytes = 0
	}
	return c
}

// restart puts a new process in the place of a coordinator. What it has sent may still arrive.
func (w *world) restart(i int) {
	if c := w.coordinators[i]; c != nil {
		for _, f := range c.flights {
			if !f.applied {
				w.late = append(w.late, lateFlight{f.Txn, c.incarnation})
			}
		}
		for _, k := range sortedTickets(c.callers) {
			c.callers[k].told(claims.Done{Err: claims.ErrUnknown})
		}
	}
	w.coordinators[i] = &coordinator{
		Group: claims.NewGroup(w.config(), keys, w.epoch, w.revision), incarnation: w.incarnation,
		callers: map[claims.Ticket]*caller{}, told: map[claims.Ticket]bool{},
		looker: folds.NewLooker(w.folder(), int64(w.rnd.IntN(2)<<16)),
	}
}

// folder moves heads of folds in the buckets.
func (w *world) folder() folds.Folder {
	f := folds.Folder{Homes: func(claims.Region) (retired, known bool) { return false, true }, SealAt: 3}
	for _, i := range w.rnd.Perm(len(regions)) {
		f.Regions = append(f.Regions, folds.Region{Name: regions[i], Store: w.buckets[regions[i]]})
	}
	return f
}

// folded are the entries of a boot in all buckets.
func (w *world) folded(boot identity.Boot) []folds.Entry {
	all := identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqEnd: 1 << 40}
	es, err := folds.NewLooker(w.folder(), 1<<16).Meeting(context.Background(), all, claims.Folds{At: 1, Epoch: 1}, 1<<20)
	if err != nil {
		w.failf("%v", err)
	}
	return es
}

func sortedTickets(m map[claims.Ticket]*caller) []claims.Ticket {
	var out []claims.Ticket
	for t := range m {
		out = append(out, t)
	}
	slices.SortFunc(out, claims.Ticket.Compare)
	return out
}

func (w *world) apply(x claims.Txn) claims.Result {
	r, err := w.store.Commit(context.Background(), x)
	if err != nil {
		w.failf("%v", err)
	}
	w.checkStore()
	return r
}

// fly lets a coordinator send what it has.
func (w *world) fly(c *coordinator) {
	f := c.Next(w.now)
	if f == nil {
		return
	}
	n := &flight{Flight: f, ops: f.Ops()}
	c.flights = append(c.flights, n)
	w.checkFlights(c)
}

// arrive applies a transaction under way, if it reaches the store that its coordinator knows.
func (w *world) arrive(c *coordinator) {
	if len(c.flights) == 0 {
		return
	}
	f := c.flights[w.rnd.IntN(len(c.flights))]
	if f.applied {
		return
	}
	f.res, f.applied = w.apply(f.Txn), true
	// A request may be doubled on its way.
	if w.rnd.IntN(8) == 0 && !w.quiet {
		w.late = append(w.late, lateFlight{f.Txn, c.incarnation})
	}
}

// land gives a coordinator the result of a transaction, or none.
func (w *world) land(i int) {
	c := w.coordinators[i]
	if len(c.flights) == 0 {
		return
	}
	k := w.rnd.IntN(len(c.flights))
	f := c.flights[k]
	lost := !w.quiet && w.rnd.IntN(6) == 0
	if !f.applied && !lost {
		return
	}
	c.flights = slices.Delete(c.flights, k, k+1)
	var err error
	switch {
	case !f.applied && w.rnd.IntN(3) == 0:
		err = claims.ErrUnavailable
	case !f.applied:
		w.late = append(w.late, lateFlight{f.Txn, c.incarnation})
		err = claims.ErrUnknown
	case lost:
		err = claims.ErrUnknown
	case c.incarnation != w.incarnation:
		err = fmt.Errorf("%w: %w", claims.ErrUnknown, claims.ErrForgot)
	}
	w.tell(c, c.Land(w.now, f.Flight, f.res, err))
}

func (w *world) tell(c *coordinator, done []claims.Done) {
	for _, d := range done {
		k := c.callers[d.Ticket]
		if k == nil || c.told[d.Ticket] {
			w.failf("%s was told twice, or is nobody's", d.Ticket)
		}
		c.told[d.Ticket] = true
		delete(c.callers, d.Ticket)
		k.told(d)
	}
}

// fault lets something go wrong.
func (w *world) fault() {
	switch n := w.rnd.IntN(20); {
	case n == 0:
		w.copies = append(w.copies, w.store.Copy())
	case n == 1 && len(w.copies) > 0 && w.incarnation < 3:
		w.store = w.copies[w.rnd.IntN(len(w.copies))].Copy()
		w.incarnation++
		w.open = false
	case n == 2:
		w.restart(w.rnd.IntN(len(w.coordinators)))
	case n < 8 && len(w.late) > 0:
		i := w.rnd.IntN(len(w.late))
		w.apply(w.late[i].txn)
		w.late = slices.Delete(w.late, i, i+1)
	case n < 12 && len(w.lateCreates) > 0:
		i := w.rnd.IntN(len(w.lateCreates))
		w.lateCreates[i]()
		w.lateCreates = slices.Delete(w.lateCreates, i, i+1)
	}
}

// recover is what follows a restore: the epoch moves on, nothing of the copy is believed, and manifests say what was.
func (w *world) recover() {
	w.setEpoch(w.epoch.Number + 1)
	for _, prefix := range []string{keys.Claims(), keys.Folded(), keys.Forgottens()} {
		r := w.read(claims.Range{From: prefix, End: prefix[:len(prefix)-1] + "0"})
		for _, e := range r {
			w.apply(claims.Txn{Parts: []claims.Part{{Deletes: []string{e.Key}}}})
		}
	}
	best := map[identity.Batch]claims.Claim{}
	for _, r := range regions {
		for id, m := range w.manifests[r] {
			if b, ok := best[id]; !ok || b.Stamp.Epoch < m.stamp.Epoch || b.Stamp.Epoch == m.stamp.Epoch && b.Stamp.Fence < m.stamp.Fence {
				best[id] = claims.Claim{Identity: id, Hash: m.hash, State: claims.Claimed, ID: claims.ID{0xff, byte(w.epoch.Number)}, Stamp: m.stamp, Home: r, Recovered: true}
			}
		}
	}
	// Of ranges that intersect, too, the later claim wins: the earlier one was released.
	for id, c := range best {
		for other, o := range best {
			if id != other && id.Intersects(other) && (o.Stamp.Epoch > c.Stamp.Epoch || o.Stamp.Epoch == c.Stamp.Epoch && o.Stamp.Fence > c.Stamp.Fence) {
				delete(best, id)
			}
		}
	}
	for id := range best {
		if slices.ContainsFunc(w.folded(id.BootOf()), func(e folds.Entry) bool { return e.Identity(id.BootOf()).Intersects(id) }) {
			delete(best, id)
		}
	}
	for id, c := range best {
		c.Stamp = claims.Stamp{Epoch: w.epoch.Number}
		w.apply(claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Claim(id.BootOf(), id.SeqStart), Value: c.Marshal()}}}}})
	}
	w.open = true
	for i := range w.coordinators {
		if w.coordinators[i].Stopped() != nil || w.rnd.IntN(2) == 0 {
			w.restart(i)
		}
	}
}

func (w *world) read(q claims.Range) []claims.Entry {
	r, err := w.store.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{q}}}})
	if err != nil {
		w.failf("%v", err)
	}
	return r.Parts[0].Reads[0]
}

// step lets one thing happen.
func (w *world) step() {
	w.steps++
	w.now = w.now.Add(time.Duration(w.rnd.IntN(1500)) * time.Microsecond)
	i := w.rnd.IntN(len(w.coordinators))
	c := w.coordinators[i]
	switch n := w.rnd.IntN(12); {
	case n < 4:
		w.callers[w.rnd.IntN(len(w.callers))].step()
	case n < 6:
		w.fly(c)
	case n < 8:
		w.arrive(c)
	case n < 10:
		w.land(i)
	case n == 10 && !w.quiet:
		w.fault()
	}
	switch {
	case !w.open && w.rnd.IntN(10) == 0:
		w.recover()
	case w.open && c.Stopped() != nil && w.rnd.IntN(4) == 0:
		w.restart(i)
	}
}

// checkStore: claims of a boot do not intersect.
func (w *world) checkStore() {
	var last claims.Claim
	for _, e := range w.read(claims.Range{From: keys.Claims(), End: string(keys) + "claims0"}) {
		boot, start, err := keys.ParseClaim(e.Key)
		if err != nil {
			w.failf("%v", err)
		}
		c, err := claims.ParseClaim(boot, start, e.Value)
		if err != nil {
			w.failf("%v", err)
		}
		if last.State != 0 && last.Identity.Intersects(c.Identity) {
			w.failf("%s intersects %s", last.Identity, c.Identity)
		}
		last = c
		if w.open && c.Stamp.Epoch != w.epoch.Number {
			w.failf("%s is of epoch %d in epoch %d", c.Identity, c.Stamp.Epoch, w.epoch.Number)
		}
	}
}

// checkFlights: no boot is in two transactions, and no transaction is larger than the store takes.
func (w *world) checkFlights(c *coordinator) {
	seen := map[string]bool{}
	for _, f := range c.flights {
		widest := 0
		for _, p := range f.Txn.Parts {
			key := ""
			if len(p.Guards) > 0 {
				key = p.Guards[0].Key
			} else {
				key = p.Reads[0].From
			}
			if seen[key] {
				w.failf("%s is in two transactions at once", key)
			}
			seen[key] = true
			widest = max(widest, len(p.Guards), len(p.Puts)+len(p.Deletes), len(p.Reads))
		}
		if len(f.Txn.Parts)+widest > 128 {
			w.failf("%d parts, the widest with %d requests", len(f.Txn.Parts), widest)
		}
	}
}

// ack: a collector tells its sender that the batch is accepted, or was before.
func (w *world) ack(id identity.Batch, hash identity.Digest) {
	if was, ok := w.acked[id]; ok && was != hash {
		w.failf("%s was acknowledged with two hashes", id)
	}
	for other := range w.acked {
		if other != id && other.Intersects(id) {
			w.failf("%s and %s were acknowledged", id, other)
		}
	}
	if slices.Contains(w.refused[id], hash) {
		w.failf("%s was acknowledged with a hash that was refused", id)
	}
	if h, ok := w.holders[id]; ok && h != hash {
		w.failf("%s was acknowledged with another hash than a conflict named", id)
	}
	if slices.Contains(w.ranged, id) {
		w.failf("%s was acknowledged after a range conflict", id)
	}
	w.acked[id] = hash
}

// conflict: a collector tells its sender that another frame has the identity.
func (w *world) conflict(id identity.Batch, mine, holder identity.Digest) {
	if was, ok := w.acked[id]; ok && was == mine {
		w.failf("%s was refused after it was acknowledged", id)
	}
	if h, ok := w.holders[id]; ok && h != holder {
		w.failf("%s has two holders", id)
	}
	if mine == holder || slices.Contains(w.refused[id], holder) {
		w.failf("%s: the holder was refused", id)
	}
	w.refused[id] = append(w.refused[id], mine)
	w.holders[id] = holder
}

// count: the region's journal has the batch.
func (w *world) count(id identity.Batch, r claims.Region) {
	if was, ok := w.counted[id]; ok && was != r {
		w.failf("%s is counted in %s and %s", id, was, r)
	}
	w.counted[id] = r
}

func simulate(t *testing.T, seed uint64) int {
	w := newWorld(t, seed)
	for range 800 {
		w.step()
	}
	// In the end everything gets through.
	w.quiet = true
	if !w.open {
		w.recover()
	}
	for i := range w.coordinators {
		w.restart(i)
	}
	for _, k := range w.callers {
		k.answers = 0
	}
	for range 6000 {
		if w.step(); !slices.ContainsFunc(w.callers, func(k *caller) bool { return k.answers == 0 }) {
			return w.folds
		}
	}
	for _, k := range w.callers {
		if k.answers == 0 {
			w.failf("caller %d gets no answer: %+v", k.n, *k)
		}
	}
	return w.folds
}

func TestSimulation(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 100
	}
	if text := os.Getenv("CLAIMS_SIM_SCHEDULES"); text != "" {
		var err error
		if seeds, err = strconv.ParseUint(text, 10, 32); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for seed := range seeds {
		n += simulate(t, seed)
	}
	if t.Logf("%d schedules, %d folds", seeds, n); n < int(seeds)/4 {
		t.Errorf("%d folds in %d schedules", n, seeds)
	}
}
