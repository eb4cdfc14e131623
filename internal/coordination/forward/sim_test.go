package forward

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	claimsmem "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The simulation: regions with buckets, collectors that follow the protocol and die anywhere, reconcilers and audits of this
// package that die anywhere, the collection of orphans, one store of claims that is restored from any copy, and a region that is
// retired. Every request of an actor is a step that the schedule chooses; its answer may be lost, and it may be applied late.

const simKeys = claims.Keys("/sim/")

type simRegion struct {
	name    claims.Region
	store   *mem.Store
	retired bool
}

type world struct {
	t       testing.TB
	seed    uint64
	rnd     *rand.Rand
	now     time.Time
	quiet   bool // nothing fails any more
	kv      *claimsmem.Store
	copies  []*claimsmem.Store
	epoch   claims.Epoch
	regions []*simRegion
	actors  []*actor
	late    []func()

	// acked is what senders were told was accepted, or a duplicate; refused what was told to be in conflict.
	acked   map[identity.Batch]identity.Digest
	refused map[identity.Batch]map[identity.Digest]bool
	// decided is what was durable once, with its hash.
	decided map[identity.Batch]identity.Digest
	// folded are identities whose home was retired after they were decided, with their hash.
	folded map[identity.Batch]identity.Digest
	stats  map[string]int
}

func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d: %s", w.seed, fmt.Sprintf(format, args...))
}

func (w *world) oneIn(n int) bool { return !w.quiet && w.rnd.IntN(n) == 0 }

// actor is a process: its goroutine runs only while the schedule has chosen it.
type actor struct {
	w      *world
	name   string
	region *simRegion
	resume chan bool // false: it is killed
	yield  chan struct{}
	ended  bool
}

type killed struct{}

func (w *world) start(name string, r *simRegion, life func(*actor)) {
	a := &actor{w: w, name: name, region: r, resume: make(chan bool), yield: make(chan struct{})}
	w.actors = append(w.actors, a)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				if _, ok := p.(killed); !ok {
					panic(p)
				}
			}
			a.ended = true
			a.yield <- struct{}{}
		}()
		if <-a.resume {
			life(a)
		}
	}()
}

// pause ends a step; where the actor is killed it never returns.
func (a *actor) pause() {
	a.yield <- struct{}{}
	if !<-a.resume {
		panic(killed{})
	}
}

// step lets one actor go on until its next request.
func (w *world) step(a *actor, lives bool) {
	a.resume <- lives
	<-a.yield
	if a.ended {
		w.actors = slices.DeleteFunc(w.actors, func(o *actor) bool { return o == a })
	}
}

// request does a request of an actor: in time, late, never, or without an answer.
func (a *actor) request(do func(), unknown error) error {
	a.pause()
	w := a.w
	switch {
	case w.oneIn(25): // never
		return unknown
	case w.oneIn(25):
		w.late = append(w.late, do)
		return unknown
	case w.oneIn(25):
		do()
		return unknown
	}
	do()
	return nil
}

// bucket is the store of a region as an actor reaches it.
type bucket struct {
	a *actor
	*mem.Store
}

func (b bucket) Get(ctx context.Context, key string, o objstore.GetOptions) (body []byte, i objstore.Info, err error) {
	if e := b.a.request(func() { body, i, err = b.Store.Get(ctx, key, o) }, objstore.ErrUnavailable); e != nil {
		return nil, objstore.Info{}, e
	}
	return body, i, err
}

func (b bucket) Head(ctx context.Context, key string) (i objstore.Info, err error) {
	if e := b.a.request(func() { i, err = b.Store.Head(ctx, key) }, objstore.ErrUnavailable); e != nil {
		return objstore.Info{}, e
	}
	return i, err
}

func (b bucket) List(ctx context.Context, o objstore.ListOptions) (p objstore.Page, err error) {
	if e := b.a.request(func() { p, err = b.Store.List(ctx, o) }, objstore.ErrUnavailable); e != nil {
		return objstore.Page{}, e
	}
	return p, err
}

func (b bucket) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (i objstore.Info, err error) {
	body = slices.Clone(body)
	if e := b.a.request(func() { i, err = b.Store.Create(ctx, key, body, o) }, objstore.ErrUnknown); e != nil {
		return objstore.Info{}, e
	}
	return i, err
}

// linear is the linearizer as an actor reaches it. A request belongs to the epoch in which it was sent.
type linear struct{ a *actor }

func (l linear) Change(_ context.Context, op claims.Op) (ans claims.Answer, err error) {
	w := l.a.w
	epoch := w.epoch
	if e := l.a.request(func() { ans, err = w.change(epoch, op) }, claims.ErrUnknown); e != nil {
		return claims.Answer{}, e
	}
	return ans, err
}

// change does an operation at once, as a coordinator does: one that may be folded after a look at the folds.
func (w *world) change(epoch claims.Epoch, op claims.Op) (claims.Answer, error) {
	a, err := w.changeOnce(epoch, op)
	if err != nil || a.Outcome != claims.Folded {
		return a, err
	}
	op.Looked, _ = claimsmem.NoFolds{Epoch: w.epoch.Number}.Guess(op.Identity)
	for _, id := range slices.SortedFunc(maps.Keys(w.folded), identity.Batch.Compare) {
		hash := w.folded[id]
		op.Looked.Above = max(op.Looked.Above, id.SeqEnd+1)
		switch {
		case !id.Intersects(op.Identity):
		case id == op.Identity && hash == op.Hash:
			op.Looked.Bound = true
		default:
			a.Outcome, a.Claim = claims.Conflict, claims.Claim{Identity: id, Hash: hash, State: claims.Settled, Home: "gone"}
			if id != op.Identity {
				a.Outcome = claims.RangeConflict
			}
			return a, nil
		}
	}
	if a, err = w.changeOnce(epoch, op); err == nil && a.Outcome == claims.Held && a.Claim.Bound {
		w.stats["bound"]++
	}
	return a, err
}

func (w *world) changeOnce(epoch claims.Epoch, op claims.Op) (claims.Answer, error) {
	g := claims.NewGroup(claims.DefaultConfig(), simKeys, epoch, 0)
	if _, err := g.Submit(w.now, op); err != nil {
		return claims.Answer{}, err
	}
	for {
		f := g.Next(w.now)
		if f == nil {
			w.failf("%s %s has no end", op.Kind, op.Identity)
		}
		res, err := w.kv.Commit(context.Background(), f.Txn)
		for _, d := range g.Land(w.now, f, res, err) {
			if d.Err == nil && d.Answer.Claim.State > claims.Claimed {
				w.noteDecided(d.Answer.Claim)
			}
			// Every region answers duplicate for what is settled.
			if c := d.Answer.Claim; d.Err == nil && op.Kind == claims.DoSettle && c.State == claims.Settled {
				if e := w.entries(w.region(c.Home))[c.Identity]; e == nil || e.SHA256 != c.Hash {
					w.failf("%s is settled, and the journal of %s does not have it", c.Identity, c.Home)
				}
			}
			return d.Answer, d.Err
		}
	}
}

func (w *world) noteDecided(c claims.Claim) {
	if was, ok := w.decided[c.Identity]; ok && was != c.Hash {
		w.failf("%s was decided for %s, now for %s", c.Identity, was, c.Hash)
	}
	w.decided[c.Identity] = c.Hash
	for id := range w.decided {
		if id != c.Identity && id.Intersects(c.Identity) {
			w.failf("%s and %s are both decided", id, c.Identity)
		}
	}
}

// all are the claims that are there.
func (w *world) all() []claims.Claim {
	g := claims.NewGroup(claims.DefaultConfig(), simKeys, w.epoch, 0)
	var out []claims.Claim
	for _, r := range w.regions {
		for _, st := range []claims.State{claims.Claimed, claims.Durable, claims.Settled} {
			v, err := g.BeginScan(claims.Scan{Home: r.name, States: []claims.State{st}, Before: 1 << 62, Limit: claims.MaxScan})
			if err != nil {
				w.failf("%v", err)
			}
			res, err := w.kv.Commit(context.Background(), v.Txn)
			p, _, err := g.EndScan(v, res, err)
			if err != nil || p.Unreadable > 0 {
				w.failf("%+v, %v", p, err)
			}
			out = append(out, p.Claims...)
		}
	}
	return out
}

func (w *world) claimID() claims.ID {
	var id claims.ID
	for i := range id {
		id[i] = byte(w.rnd.Uint32())
	}
	return id
}

// idRand draws from the schedule.
type idRand struct{ w *world }

func (r idRand) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r.w.rnd.Uint32())
	}
	return len(b), nil
}

type simClock struct{ w *world }

func (c simClock) Now() time.Time { return c.w.now }

func frameOf(id identity.Batch, color int) []byte { return fmt.Appendf(nil, "%s %d", id, color) }

// someIdentity draws one of few, some of whose ranges meet.
func (w *world) someIdentity() identity.Batch {
	start := uint64(w.rnd.IntN(4))
	return identity.Batch{Agent: "a", Boot: string(rune('a' + w.rnd.IntN(2))), SeqStart: start, SeqEnd: start + []uint64{0, 0, 1}[w.rnd.IntN(3)]}
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{
		t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_700_000_000, 0), kv: claimsmem.New(),
		epoch: claims.Epoch{Number: 1, ID: claims.ID{1}, Regions: []claims.Region{"east", "north", "west"}},
		acked: map[identity.Batch]identity.Digest{}, refused: map[identity.Batch]map[identity.Digest]bool{}, decided: map[identity.Batch]identity.Digest{},
		folded: map[identity.Batch]identity.Digest{}, stats: map[string]int{},
	}
	for _, r := range w.epoch.Regions {
		w.regions = append(w.regions, &simRegion{name: r, store: mem.New(func() time.Time { return w.now })})
	}
	w.putEpoch()
	w.copies = []*claimsmem.Store{w.kv.Copy()}
	return w
}

func (w *world) putEpoch() {
	w.commit(claims.Part{Puts: []claims.Put{{Key: simKeys.Epoch(), Value: w.epoch.Marshal()}}})
}

func (w *world) commit(p claims.Part) {
	if _, err := w.kv.Commit(context.Background(), claims.Txn{Parts: []claims.Part{p}}); err != nil {
		w.failf("%v", err)
	}
}

// forwarder is the code under test, as a process of a region.
func (a *actor) forwarder() *Forwarder {
	b := bucket{a, a.region.store}
	f, err := New(Config{
		Region: a.region.name, Store: b, Claims: linear{a}, Rand: idRand{a.w}, TakeOver: 30 * time.Second,
		Accept: accept.Config{AuthorityID: "authority", CollectorID: a.name, Clock: simClock{a.w}, Rand: idRand{a.w}},
	})
	if err != nil {
		a.w.failf("%v", err)
	}
	return f
}

func (a *actor) writer() *journal.Writer {
	run, err := journal.NewWriter(journal.WriterConfig{
		Store: bucket{a, a.region.store}, Rand: idRand{a.w}, Clock: func() int64 { return a.w.now.UnixNano() },
		Opening: journal.Opening{Writer: a.name, Role: journal.RoleReconciler, Authority: "authority"},
	})
	if err != nil {
		a.w.failf("%v", err)
	}
	return run
}

// reconciler scans its region's claims and rolls them forward, once or until it dies.
func (w *world) reconciler(r *simRegion, passes int) {
	w.start("reconciler "+string(r.name), r, func(a *actor) {
		f, run := a.forwarder(), a.writer()
		for range passes {
			a.pause()
			s := claims.Scan{Home: r.name, States: []claims.State{claims.Claimed, claims.Durable}, Before: w.now.Add(-10 * time.Second).UnixNano(), Limit: 3}
			for {
				g := claims.NewGroup(claims.DefaultConfig(), simKeys, w.epoch, 0)
				v, err := g.BeginScan(s)
				if err != nil {
					w.failf("%v", err)
				}
				res, err := w.kv.Commit(context.Background(), v.Txn)
				p, _, err := g.EndScan(v, res, err)
				if err != nil {
					w.failf("%v", err)
				}
				a.pause()
				var results []Result
				for _, c := range p.Claims {
					res, err := f.Roll(context.Background(), c)
					if err == nil {
						results = append(results, res)
						w.stats[string(res.Action)]++
						if res.Replaced {
							w.stats["replaced"]++
						}
						if res.Affirmed {
							w.stats["affirmed"]++
						}
					}
				}
				n, _ := f.Finish(context.Background(), run, results)
				w.stats["settled"] += n
				if s.After = p.Next; s.After == "" {
					break
				}
			}
		}
	})
}

// audit asks about manifests of its region that stand in no run.
func (w *world) audit(r *simRegion) {
	w.start("audit "+string(r.name), r, func(a *actor) {
		f, run := a.forwarder(), a.writer()
		for _, m := range w.manifests(r) {
			if w.entries(r)[m.Identity] != nil {
				continue
			}
			asked, err := f.Ask(context.Background(), m)
			if err != nil {
				continue
			}
			w.stats[string(asked.Verdict)]++
			if asked.Verdict == Ours || asked.Verdict == Loser {
				if _, err := run.Add(asked.Entry); err != nil {
					w.failf("%v", err)
				}
			}
			if err := run.Close(context.Background()); err != nil {
				continue
			}
			if asked.Verdict == Ours {
				_ = f.Settle(context.Background(), asked.Claim)
			}
		}
	})
}

// manifests of a region, in the order of their keys.
func (w *world) manifests(r *simRegion) (out []accept.Manifest) {
	for o, err := range objstore.List(context.Background(), r.store, objstore.ListOptions{Prefix: layout.AcceptedPrefix}) {
		if err != nil {
			w.failf("%v", err)
		}
		b, _, err := r.store.Get(context.Background(), o.Key, objstore.GetOptions{})
		if err != nil {
			w.failf("%v", err)
		}
		m, err := accept.ParseManifest(b)
		if err != nil {
			w.failf("%v", err)
		}
		out = append(out, m)
	}
	return out
}

// entries of a region's journal that count a batch.
func (w *world) entries(r *simRegion) map[identity.Batch]*journal.Entry {
	out := map[identity.Batch]*journal.Entry{}
	take := func(es []journal.Entry) error {
		for i := range es {
			e := es[i]
			if e.Outcome.Conflict() {
				continue
			}
			if was := out[e.ID]; was != nil && was.SHA256 != e.SHA256 {
				w.failf("%s has two hashes in the journal of %s", e.ID, r.name)
			}
			if e.HomeRegion != string(r.name) {
				w.failf("%s has the home %q in the journal of %s", e.ID, e.HomeRegion, r.name)
			}
			out[e.ID] = &e
		}
		return nil
	}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: r.store, Authority: "authority",
		Segment: func(_ context.Context, s *journal.Segment) error { return take(s.Entries) },
		Folded:  func(_ context.Context, es []journal.Entry) error { return take(es) },
	})
	if err == nil {
		_, err = f.Poll(context.Background())
	}
	if err != nil {
		w.failf("%v", err)
	}
	return out
}

// collect is the collection of orphans: condemn a generation that nobody refers to, prove it, delete it.
func (w *world) collect(r *simRegion) {
	w.start("gc "+string(r.name), r, func(a *actor) {
		for o, err := range objstore.List(context.Background(), r.store, objstore.ListOptions{Prefix: layout.RawBlobsPrefix}) {
			if err != nil {
				w.failf("%v", err)
			}
			sum, gen, err := layout.ParseBlob(o.Key)
			if err != nil || w.rnd.IntN(2) > 0 {
				continue
			}
			b, _, err := r.store.Get(context.Background(), o.Key, objstore.GetOptions{})
			if err != nil {
				continue
			}
			refers := func() bool {
				for _, m := range w.manifests(r) {
					if m.FrameSHA256 == sum {
						return true
					}
				}
				return false
			}
			if a.pause(); refers() {
				continue
			}
			_, _ = r.store.Create(context.Background(), layout.Condemned(sum, gen), b, objstore.PutOptions{})
			if a.pause(); refers() {
				continue
			}
			a.pause()
			_ = r.store.Delete(context.Background(), o.Key)
			w.stats["collected"]++
		}
	})
}

// recover restores the claims from some copy and recovers them, as one step. A region that is retired is taken out of the epoch instead,
// by a recovery too: what was decided there is kept in the folds.
func (w *world) recover(retiring *simRegion) {
	w.stats["recoveries"]++
	if retiring != nil {
		for _, c := range w.all() {
			if w.region(c.Home) == retiring && (c.State != claims.Claimed || c.Recovered) {
				w.folded[c.Identity] = c.Hash
			}
		}
		w.stats["retired"]++
		retiring.retired = true
		w.epoch.Regions = slices.DeleteFunc(slices.Clone(w.epoch.Regions), func(r claims.Region) bool { return r == retiring.name })
		for _, a := range slices.Clone(w.actors) {
			if a.region == retiring {
				w.step(a, false)
			}
		}
	}
	if retiring == nil {
		w.kv = w.copies[w.rnd.IntN(len(w.copies))].Copy()
	}
	w.epoch.Number++
	w.epoch.ID = w.claimID()
	var gone []string
	for _, below := range []string{simKeys.Claims(), simKeys.Folded()} {
		for _, e := range w.readAll(below) {
			gone = append(gone, e.Key)
		}
	}
	w.putEpoch()
	w.commit(claims.Part{Deletes: gone})
	type found struct {
		m     accept.Manifest
		r     *simRegion
		stamp claims.Stamp
	}
	var list []found
	for _, r := range w.regions {
		if r.retired {
			continue
		}
		for _, m := range w.manifests(r) {
			list = append(list, found{m, r, w.highest(r, m)})
		}
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].stamp.Compare(list[j].stamp) > 0 })
	taken := map[identity.Batch]claims.Claim{}
	// What a fold has is decided, whatever its stamp.
	for _, first := range []bool{true, false} {
		for _, f := range list {
			hash, is := w.folded[f.m.Identity]
			if is != first || is && hash != f.m.FrameSHA256 {
				continue
			}
			clash := false
			for id := range taken {
				clash = clash || id.Intersects(f.m.Identity)
			}
			for id := range w.folded {
				clash = clash || id != f.m.Identity && id.Intersects(f.m.Identity)
			}
			if !clash {
				taken[f.m.Identity] = claims.Claim{Identity: f.m.Identity, Hash: f.m.FrameSHA256, State: claims.Claimed, ID: w.claimID(), Stamp: claims.Stamp{Epoch: w.epoch.Number}, Home: f.r.name, Recovered: true, ClaimedAt: w.now.UnixNano()}
			}
		}
	}
	ids := make([]identity.Batch, 0, len(taken))
	for id := range taken {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, identity.Batch.Compare)
	for _, id := range ids {
		w.commit(claims.Part{Puts: []claims.Put{{Key: simKeys.Claim(id.BootOf(), id.SeqStart), Value: taken[id].Marshal()}}})
	}
	w.copies = append(w.copies, w.kv.Copy())
}

func (w *world) readAll(p string) []claims.Entry {
	res, err := w.kv.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: p, End: p[:len(p)-1] + "0"}}}}})
	if err != nil {
		w.failf("%v", err)
	}
	return res.Parts[0].Reads[0]
}

func (w *world) region(name claims.Region) *simRegion {
	for _, r := range w.regions {
		if r.name == name {
			return r
		}
	}
	w.failf("no region %q", name)
	return nil
}
