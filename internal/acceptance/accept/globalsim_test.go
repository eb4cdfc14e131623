package accept_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	claimsmem "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The simulation of several regions: collectors, a reconciler and a garbage collector of each, over the claims of one
// linearizer, as coroutines that stop before every request. A seeded scheduler picks who goes on, which answers are lost, which
// writes and changes land later, who dies, and when the linearizer forgets everything and is recovered from the buckets.

const gkeys = claims.Keys("identity/v1/")

type gworld struct {
	rng     *rand.Rand
	regions []*gregion
	kv      *claimsmem.Store
	group   *claims.Group
	epoch   claims.Epoch
	clock   *tickClock
	late    []func()
	quiet   bool
	subs    []accept.Submission
	trace   []string
	violate error

	acked     map[identity.Batch]identity.Digest
	accepted  map[identity.Batch]int
	conflicts map[identity.Batch]map[identity.Digest]bool
}

type gregion struct {
	name   claims.Region
	store  *mem.Store
	counts map[identity.Batch]identity.Digest // entries of the journal that count
}

func (w *gworld) logf(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *gworld) failf(format string, args ...any) {
	if w.violate == nil {
		w.violate = fmt.Errorf(format, args...)
		w.logf("VIOLATION: %v", w.violate)
	}
}

// do makes a change of the claims.
func (w *gworld) do(op claims.Op) (claims.Answer, error) {
	now := time.Unix(1_700_000_000, 0)
	op.Looked, _ = claimsmem.NoFolds{Epoch: w.epoch.Number}.Guess(op.Identity)
	t, err := w.group.Submit(now, op)
	if err != nil {
		return claims.Answer{}, err
	}
	for f := w.group.Next(now); f != nil; f = w.group.Next(now) {
		r, err := w.kv.Commit(context.Background(), f.Txn)
		for _, d := range w.group.Land(now, f, r, err) {
			if d.Ticket == t {
				return d.Answer, d.Err
			}
		}
	}
	return claims.Answer{}, claims.ErrUnknown
}

func (w *gworld) put(key string, value []byte) {
	if _, err := w.kv.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: key, Value: value}}}}}); err != nil {
		w.failf("%v", err)
	}
}

// recover opens a new epoch, of a linearizer that has forgotten everything: the highest stamp of manifests and affirmations wins.
func (w *gworld) recover() {
	w.epoch.Number++
	w.epoch.ID = claims.ID{byte(w.epoch.Number), 1}
	w.kv = claimsmem.New()
	w.put(gkeys.Epoch(), w.epoch.Marshal())
	var found []claims.Claim
	for _, r := range w.regions {
		for i, s := range w.subs {
			m, err := accept.ReadManifest(context.Background(), r.store, s.Identity)
			if err != nil || slices.ContainsFunc(w.subs[:i], func(o accept.Submission) bool { return o.Identity == s.Identity }) {
				continue
			}
			stamp := m.Stamp()
			storetest.Each(context.Background(), r.store, layout.Affirmations(s.Identity), func(o objstore.Info) error {
				if _, at, err := layout.ParseAffirmation(o.Key); err == nil && at.Compare(stamp) > 0 {
					stamp = at
				}
				return nil
			})
			found = append(found, claims.Claim{Identity: s.Identity, Hash: m.FrameSHA256, State: claims.Claimed, Stamp: stamp, Home: r.name, Recovered: true})
		}
	}
	slices.SortStableFunc(found, func(a, b claims.Claim) int { return b.Stamp.Compare(a.Stamp) })
	var taken []claims.Claim
	for i, c := range found {
		if slices.ContainsFunc(taken, func(t claims.Claim) bool { return t.Identity.Intersects(c.Identity) }) {
			continue
		}
		taken = append(taken, c)
		c.ID, c.Stamp = claims.ID{0xff, byte(w.epoch.Number), byte(i)}, identity.Stamp{Epoch: w.epoch.Number}
		w.put(gkeys.Claim(c.Identity.BootOf(), c.Identity.SeqStart), c.Marshal())
		w.logf("recovered %s %.4s of %s", c.Identity, c.Hash, c.Home)
	}
	w.group = claims.NewGroup(claims.DefaultConfig(), gkeys, w.epoch, 1)
}

// enter puts an entry into the journal of a region.
func (w *gworld) enter(r *gregion, e journal.Entry) {
	w.logf("%s: ENTRY %s %s %.4s home %s", r.name, e.ID, e.Outcome, e.SHA256, e.HomeRegion)
	if err := e.Validate(); err != nil {
		w.failf("%v", err)
	}
	switch {
	case e.Outcome == journal.Elsewhere:
		if !slices.ContainsFunc(w.regions, func(o *gregion) bool {
			return o.name == claims.Region(e.HomeRegion) && o != r && o.counts[e.ID] == e.SHA256
		}) {
			w.failf("%s is elsewhere for %s, and %s does not count it", e.ID, r.name, e.HomeRegion)
		}
	case e.Outcome.Counts():
		if e.HomeRegion != string(r.name) {
			w.failf("%s counts in %s with the home %q", e.ID, r.name, e.HomeRegion)
		}
		for _, o := range w.regions {
			for id, hash := range o.counts {
				if id.Intersects(e.ID) && (o != r || id != e.ID || hash != e.SHA256) {
					w.failf("%s counts in %s, and %s in %s", id, o.name, e.ID, r.name)
				}
			}
		}
		r.counts[e.ID] = e.SHA256
	}
}

type gactor struct {
	*gworld
	r    *gregion
	name string

	yield      func(struct{}) bool
	dead, kill bool
}

func (a *gactor) stop() bool {
	if !a.dead && (!a.yield(struct{}{}) || a.kill) {
		a.dead = true
	}
	return a.dead
}

// fate of a write or a change: unknown errors leave open whether it was done.
func (a *gactor) fate(what string, apply func() error, unknown, none error) error {
	dead := a.stop()
	fate := a.rng.IntN(100)
	switch {
	case dead || !a.quiet && fate < 6:
		if fate%2 == 0 {
			a.late = append(a.late, func() { a.logf("late of %s: %s: %v", a.name, what, apply()) })
		}
		a.logf("%s: %s: unknown", a.name, what)
		if dead {
			return errCrashed
		}
		return unknown
	case !a.quiet && fate < 12:
		a.logf("%s: %s: lost answer, was %v", a.name, what, apply())
		return unknown
	case !a.quiet && fate < 14:
		return none
	}
	err := apply()
	a.logf("%s: %s: %v", a.name, what, err)
	return err
}

func (a *gactor) Create(_ context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	body = slices.Clone(body)
	return objstore.Info{}, a.fate("create "+key, func() error {
		_, err := a.r.store.Create(context.Background(), key, body, o)
		return err
	}, objstore.ErrUnknown, objstore.ErrConflict)
}

func (a *gactor) Get(_ context.Context, key string, o objstore.GetOptions) (b []byte, i objstore.Info, err error) {
	if a.stop() {
		return nil, i, errCrashed
	}
	return a.r.store.Get(context.Background(), key, o)
}

func (a *gactor) Head(_ context.Context, key string) (objstore.Info, error) {
	if a.stop() {
		return objstore.Info{}, errCrashed
	}
	return a.r.store.Head(context.Background(), key)
}

func (a *gactor) change(op claims.Op) (ans claims.Answer, err error) {
	op.Region, op.At = a.r.name, 1
	err = a.fate(fmt.Sprintf("%s %s %.4s", op.Kind, op.Identity, op.Hash), func() error {
		var err error
		ans, err = a.do(op)
		a.logf("%s: -> %s home %s", a.name, ans.Outcome, ans.Claim.Home)
		return err
	}, claims.ErrUnknown, claims.ErrUnavailable)
	return ans, err
}

// gclaims is the linearizer for one collector.
type gclaims struct{ a *gactor }

func (c gclaims) op(ch accept.ClaimChange) claims.Op {
	kind := map[accept.ClaimStep]claims.Kind{
		accept.TakeClaim: claims.DoClaim, accept.TakeClaimOver: claims.DoTakeOver, accept.CompleteClaim: claims.DoComplete,
		accept.ReplaceClaim: claims.DoReplace, accept.SettleClaim: claims.DoSettle,
	}[ch.Step]
	return claims.Op{Kind: kind, Identity: ch.Identity, Hash: ch.Hash, ID: claims.ID(ch.ID), Expect: claims.ID(ch.Expect), Region: c.a.r.name, Epoch: ch.Epoch, At: 1}
}

func (c gclaims) Change(_ context.Context, ch accept.ClaimChange) (accept.ClaimAnswer, error) {
	a, err := c.a.change(c.op(ch))
	if err != nil {
		return accept.ClaimAnswer{}, err
	}
	o, known := map[claims.Outcome]accept.ClaimOutcome{
		claims.Held: accept.ClaimHeld, claims.Pending: accept.ClaimPending, claims.Decided: accept.ClaimDecided, claims.Conflict: accept.ClaimConflict,
		claims.RangeConflict: accept.ClaimRangeConflict, claims.Contested: accept.ClaimContested, claims.Moved: accept.ClaimMoved,
	}[a.Outcome]
	if !known {
		return accept.ClaimAnswer{}, fmt.Errorf("answered %s", a.Outcome)
	}
	t := a.Claim
	return accept.ClaimAnswer{Outcome: o, Claim: accept.Claim{
		Identity: t.Identity, Hash: t.Hash, ID: accept.ClaimID(t.ID), Home: string(t.Home), Stamp: t.Stamp, Settled: t.State == claims.Settled, Fixed: t.Recovered, Bound: t.Bound,
	}}, nil
}

// Settle happens at any time, or never.
func (c gclaims) Settle(ch accept.ClaimChange) {
	op := c.op(ch)
	if c.a.rng.IntN(3) > 0 {
		c.a.late = append(c.a.late, func() { _, err := c.a.do(op); c.a.logf("settle %s: %v", op.Identity, err) })
	}
}

// gjournal is a run of the journal: an entry is durable when it is waited for, or later, or never.
type gjournal struct{ a *gactor }

type gticket struct {
	a *gactor
	e journal.Entry
}

func (j gjournal) Add(e journal.Entry) (journal.Ticket, error) { return gticket{j.a, e}, nil }
func (t gticket) Spared() bool                                 { return false }
func (t gticket) Wait(context.Context) (journal.Position, error) {
	return journal.Position{Segment: 1}, t.a.fate("entry", func() error { t.a.enter(t.a.r, t.e); return nil }, objstore.ErrUnknown, objstore.ErrUnavailable)
}

func (a *gactor) global() *accept.Global {
	p, err := accept.New(accept.Config{
		Store: a, AuthorityID: "authority-1", CollectorID: a.name, Clock: a.clock, Rand: seededRand(a.rng.Uint64()), Mode: accept.ModeGlobal,
		Policy: accept.Policy{Generations: 12}, Journal: gjournal{a}, InlineBelow: []int{0, 1 << 20}[a.rng.IntN(2)],
	})
	if err != nil {
		panic(err)
	}
	g, err := accept.NewGlobal(p, accept.GlobalConfig{Region: string(a.r.name), Claims: gclaims{a}, TakeOver: []time.Duration{0, 3 * time.Millisecond}[a.rng.IntN(2)]})
	if err != nil {
		panic(err)
	}
	return g
}

// collector submits frames in a random order until it is told an outcome, or loses patience.
func (a *gactor) collector() {
	g := a.global()
	for range 6 {
		s := a.subs[a.rng.IntN(len(a.subs))]
		for range 3 {
			if done := a.submit(g, s); done || a.dead {
				break
			}
		}
		if a.dead {
			return
		}
	}
}

func (a *gactor) submit(g *accept.Global, s accept.Submission) bool {
	res, err := g.Accept(context.Background(), s)
	if a.dead {
		return true
	}
	var retry *accept.RetryError
	switch {
	case err == nil:
		a.answered(s, res)
	case !errors.As(err, &retry):
		a.failf("%s: neither an outcome nor a retry: %v", a.name, err)
	}
	return err == nil
}

func (a *gactor) answered(s accept.Submission, res accept.Result) {
	id := s.Identity
	a.logf("%s: ANSWER %s %s for %.4s", a.name, id, res.Outcome, s.SHA256)
	if res.Outcome == accept.Conflict {
		if a.conflicts[id] == nil {
			a.conflicts[id] = map[identity.Digest]bool{}
		}
		a.conflicts[id][s.SHA256] = true
		if a.acked[id] == s.SHA256 {
			a.failf("%s %.4s is a conflict after it was accepted", id, s.SHA256)
		}
		if _, _, err := a.r.store.Get(context.Background(), layout.Quarantine(id, s.SHA256), objstore.GetOptions{}); err != nil {
			a.failf("a conflict without its record: %v", err)
		}
		a.kept(a.r, layout.Quarantine(id, s.SHA256), s)
		return
	}
	for other, hash := range a.acked {
		if other == id && hash != s.SHA256 || other != id && other.Intersects(id) {
			a.failf("%s %.4s and %s %.4s are both accepted", id, s.SHA256, other, hash)
		}
	}
	if a.conflicts[id][s.SHA256] {
		a.failf("%s %.4s is accepted after it was a conflict", id, s.SHA256)
	}
	a.acked[id] = s.SHA256
	if res.Outcome == accept.Accepted {
		if a.accepted[id]++; a.accepted[id] > 1 {
			a.failf("%s is accepted twice", id)
		}
	}
	a.checkAcked(s)
}

// checkAcked wants one region that counts the batch, and has its manifest and its bytes.
func (w *gworld) checkAcked(s accept.Submission) {
	for _, r := range w.regions {
		if r.counts[s.Identity] != s.SHA256 {
			continue
		}
		if m, err := accept.ReadManifest(context.Background(), r.store, s.Identity); err != nil || m.FrameSHA256 != s.SHA256 {
			w.failf("%s counts in %s, whose manifest is %.4s, %v", s.Identity, r.name, m.FrameSHA256, err)
		}
		w.kept(r, layout.Accepted(s.Identity), s)
		return
	}
	w.failf("%s %.4s was answered, and no region counts it", s.Identity, s.SHA256)
}

// kept wants the frame of a record, in the record itself or in a generation that is not condemned.
func (w *gworld) kept(r *gregion, key string, s accept.Submission) {
	if ok, err := accept.HasInline(context.Background(), r.store, key, s.SHA256); err == nil && ok {
		return
	}
	for gen := range uint32(32) {
		b, _, err := r.store.Get(context.Background(), layout.Blob(s.SHA256, gen), objstore.GetOptions{})
		if err == nil && identity.Sum(b) == s.SHA256 {
			return
		}
	}
	w.failf("no bytes of %s %.4s in %s", s.Identity, s.SHA256, r.name)
}

// collectGarbage condemns every blob, and deletes those without a reference: a collector of the worst kind.
func (a *gactor) collectGarbage() {
	for range 2 {
		var keys []string
		storetest.Each(context.Background(), a.r.store, layout.RawBlobsPrefix, func(o objstore.Info) error { keys = append(keys, o.Key); return nil })
		for _, key := range keys {
			d, gen, _ := layout.ParseBlob(key)
			i := slices.IndexFunc(a.subs, func(s accept.Submission) bool { return s.SHA256 == d })
			if a.referenced(a.subs[i]) || a.rng.IntN(3) == 0 {
				continue // a plan has none that has a reference, and not always all others
			}
			m := accept.CondemnedMarker{FrameSHA256: d, Generation: gen, PlanID: "p"}
			if _, err := a.Create(context.Background(), m.Key(), m.Marshal(), objstore.PutOptions{}); a.dead || err != nil && !errors.Is(err, objstore.ErrExists) {
				return
			}
			if a.stop() {
				return
			}
			if !a.referenced(a.subs[i]) {
				_ = a.fate("delete "+key, func() error { return a.r.store.Delete(context.Background(), key) }, objstore.ErrUnknown, objstore.ErrUnavailable)
			}
		}
	}
}

func (a *gactor) referenced(s accept.Submission) bool {
	m, err := accept.ReadManifest(context.Background(), a.r.store, s.Identity)
	_, _, qerr := a.r.store.Get(context.Background(), layout.Quarantine(s.Identity, s.SHA256), objstore.GetOptions{Length: 1})
	return err == nil && m.FrameSHA256 == s.SHA256 && !m.Inline || qerr == nil
}

// reconcile rolls the claims of the region forward.
func (a *gactor) reconcile() {
	for _, s := range a.subs {
		if a.stop() {
			return
		}
		found, err := a.do(claims.Op{Kind: claims.DoLookup, Identity: s.Identity})
		if err != nil {
			continue
		}
		for _, c := range found.Claims {
			if c.Home == a.r.name && c.State != claims.Settled && !a.dead {
				a.rollForward(c)
			}
		}
	}
}

func (a *gactor) rollForward(c claims.Claim) {
	ctx := context.Background()
	op := claims.Op{Identity: c.Identity, Hash: c.Hash, ID: c.ID, Epoch: c.Stamp.Epoch}
	if a.stop() {
		return
	}
	m, err := accept.ReadManifest(ctx, a.r.store, c.Identity)
	switch {
	case err != nil && c.State == claims.Claimed:
		op.Kind = claims.DoRelease
		_, _ = a.change(op)
		return
	case err != nil:
		a.failf("%s is %s in %s, and has no manifest: %v", c.Identity, c.State, a.r.name, err)
		return
	case m.FrameSHA256 != c.Hash:
		op.Kind, op.Hash = claims.DoReplace, m.FrameSHA256
		_, _ = a.change(op)
		return
	}
	if c.State == claims.Claimed {
		if m.Stamp().Compare(c.Stamp) < 0 {
			r := accept.Affirmation{AuthorityID: "authority-1", Identity: c.Identity, FrameSHA256: c.Hash, Stamp: c.Stamp, HomeRegion: string(a.r.name)}
			if _, err := a.Create(ctx, r.Key(), r.Marshal(), objstore.PutOptions{}); err != nil && !errors.Is(err, objstore.ErrExists) {
				return
			}
		}
		cfg := accept.Config{Store: a, AuthorityID: "authority-1", CollectorID: a.name, Clock: a.clock, Policy: accept.Policy{Generations: 12}}
		if s, err := accept.Keep(ctx, cfg, a.r.store, layout.Accepted(c.Identity)); err != nil || s != accept.Stands {
			return
		}
		op.Kind = claims.DoComplete
		if d, err := a.change(op); err != nil || d.Outcome != claims.Decided || d.Claim.Home != a.r.name {
			return
		}
	}
	e := m.Entry(journal.AuditedAccepted)
	e.HomeRegion, e.ClaimEpoch = string(a.r.name), c.Stamp.Epoch
	if _, err := (gticket{a, e}).Wait(ctx); err != nil {
		return
	}
	op.Kind = claims.DoSettle
	_, _ = a.change(op)
}

func runGlobal(seed uint64) *gworld {
	w := &gworld{
		rng: rand.New(rand.NewPCG(seed, 14)), clock: &tickClock{}, epoch: claims.Epoch{Regions: []claims.Region{"east", "west"}},
		acked: map[identity.Batch]identity.Digest{}, accepted: map[identity.Batch]int{}, conflicts: map[identity.Batch]map[identity.Digest]bool{},
	}
	for _, name := range w.epoch.Regions {
		w.regions = append(w.regions, &gregion{name: name, store: mem.New(nil), counts: map[identity.Batch]identity.Digest{}})
	}
	wide := testID
	wide.SeqEnd += 5
	w.subs = []accept.Submission{submission(testID, "a"), submission(testID, "b")}
	if w.rng.IntN(3) == 0 {
		w.subs = append(w.subs, submission(wide, "a"))
	}
	for _, r := range w.regions {
		// What an upload that broke off has left, in a store without checksums of its own.
		if s := w.subs[w.rng.IntN(len(w.subs))]; w.rng.IntN(3) == 0 {
			if _, err := r.store.Create(context.Background(), layout.Blob(s.SHA256, 0), s.Frame[:7], objstore.PutOptions{}); err != nil {
				w.failf("%v", err)
			}
		}
	}
	w.recover()
	type running struct {
		*gactor
		next func() (struct{}, bool)
	}
	var actors []*running
	start := func(r *gregion, name string, body func(*gactor)) {
		a := &gactor{gworld: w, r: r, name: fmt.Sprintf("%s/%s%d", r.name, name, len(actors))}
		next, _ := iter.Pull(func(yield func(struct{}) bool) {
			a.yield = yield
			body(a)
		})
		actors = append(actors, &running{a, next})
	}
	for _, r := range w.regions {
		for range 2 {
			start(r, "c", (*gactor).collector)
		}
		start(r, "gc", (*gactor).collectGarbage)
		start(r, "r", func(a *gactor) {
			for range 3 {
				a.reconcile()
			}
		})
	}
	for step := 0; len(actors) > 0 && w.violate == nil && step < 20_000; step++ {
		switch n := w.rng.IntN(400); {
		case n < 12 && len(w.late) > 0:
			w.landOne()
		case n == 12 && w.epoch.Number < 4:
			w.logf("RESTORED FROM NOTHING")
			w.recover()
		case n == 13:
			actors[w.rng.IntN(len(actors))].kill = true
		}
		i := w.rng.IntN(len(actors))
		if _, more := actors[i].next(); !more {
			actors = slices.Delete(actors, i, i+1)
		}
	}
	w.settleDown()
	return w
}

func (w *gworld) landOne() {
	i := w.rng.IntN(len(w.late))
	f := w.late[i]
	w.late = slices.Delete(w.late, i, i+1)
	f()
}

// settleDown lets everything late land, and has every frame answered in every region: no claim is held for ever.
func (w *gworld) settleDown() {
	w.quiet = true
	for len(w.late) > 0 {
		w.landOne()
	}
	if w.violate == nil && w.rng.IntN(2) == 0 {
		w.recover()
	}
	for id, hash := range w.acked {
		i := slices.IndexFunc(w.subs, func(s accept.Submission) bool { return s.Identity == id && s.SHA256 == hash })
		w.checkAcked(w.subs[i])
	}
	open := func(struct{}) bool { return true }
	for _, r := range w.regions {
		for _, s := range w.subs {
			done := false
			for round := 0; !done && round < 12 && w.violate == nil; round++ {
				for _, o := range w.regions {
					(&gactor{gworld: w, r: o, name: "reconciler of " + string(o.name), yield: open}).reconcile()
				}
				a := &gactor{gworld: w, r: r, name: "last of " + string(r.name), yield: open}
				done = a.submit(a.global(), s)
				for len(w.late) > 0 {
					w.landOne()
				}
			}
			if !done && w.violate == nil {
				w.failf("%s %.4s is never answered in %s", s.Identity, s.SHA256, r.name)
			}
		}
	}
}

// TestGlobalSimulation: ACCEPT_GLOBAL_SEEDS schedules, or those that a short test has.
func TestGlobalSimulation(t *testing.T) {
	seeds := uint64(3000)
	if n, err := strconv.ParseUint(os.Getenv("ACCEPT_GLOBAL_SEEDS"), 10, 64); err == nil {
		seeds = n
	}
	answers, counted := 0, 0
	for seed := range seeds {
		w := runGlobal(seed)
		if w.violate != nil {
			t.Fatalf("seed %d: %v\n%s", seed, w.violate, strings.Join(w.trace[max(0, len(w.trace)-150):], "\n"))
		}
		answers += len(w.acked)
		counted += len(w.regions[1].counts)
	}
	if answers == 0 || counted == 0 {
		t.Errorf("%d identities were accepted, %d in the second region", answers, counted)
	}
	t.Logf("%d schedules, %d identities accepted, %d in the second region", seeds, answers, counted)
}
