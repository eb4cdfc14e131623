package claims_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// bench is a Group over a store in memory, whose transactions are done at once.
type bench struct {
	t     *testing.T
	store *mem.Store
	epoch claims.Epoch
	g     *claims.Group
	now   time.Time
	ends  map[claims.Ticket]claims.Done
	id    uint16
}

func newBench(t *testing.T, change ...func(*claims.Config)) *bench {
	b := &bench{t: t, store: mem.New(), epoch: claims.Epoch{Number: 1, ID: claims.ID{1}, Regions: regions}, now: time.Unix(1000, 0), ends: map[claims.Ticket]claims.Done{}}
	b.setEpoch()
	b.g = b.group(change...)
	return b
}

// setEpoch writes the bench's epoch into the store.
func (b *bench) setEpoch() {
	if _, err := b.store.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Epoch(), Value: b.epoch.Marshal()}}}}}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) group(change ...func(*claims.Config)) *claims.Group {
	cfg := claims.DefaultConfig()
	for _, f := range change {
		f(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		b.t.Fatal(err)
	}
	b.ends = map[claims.Ticket]claims.Done{}
	return claims.NewGroup(cfg, keys, b.epoch, 0)
}

func (b *bench) newID() claims.ID {
	b.id++
	return claims.ID{1, byte(b.id >> 8), byte(b.id)}
}

func (b *bench) submit(op claims.Op) claims.Ticket {
	b.t.Helper()
	ticket, err := b.g.Submit(b.now, op)
	if err != nil {
		b.t.Fatal(err)
	}
	return ticket
}

// run does what is ready, and gives the sizes of the transactions.
func (b *bench) run() (sizes []int) {
	b.t.Helper()
	for f := b.g.Next(b.now); f != nil; f = b.g.Next(b.now) {
		sizes = append(sizes, f.Ops())
		r, err := b.store.Commit(context.Background(), f.Txn)
		b.land(f, r, err)
	}
	return sizes
}

func (b *bench) land(f *claims.Flight, r claims.Result, err error) {
	b.t.Helper()
	for _, d := range b.g.Land(b.now, f, r, err) {
		if _, told := b.ends[d.Ticket]; told {
			b.t.Fatalf("%s ends twice", d.Ticket)
		}
		b.ends[d.Ticket] = d
	}
}

func (b *bench) do(op claims.Op) (claims.Answer, error) {
	b.t.Helper()
	ticket := b.submit(op)
	b.run()
	d, ok := b.ends[ticket]
	if !ok {
		b.t.Fatalf("%s %s is not answered", op.Kind, op.Identity)
	}
	return d.Answer, d.Err
}

// want does an operation and wants its outcome.
func (b *bench) want(o claims.Outcome, op claims.Op) claims.Claim {
	b.t.Helper()
	a, err := b.do(op)
	if err != nil || a.Outcome != o {
		b.t.Fatalf("%s %s by %s: %s (%+v), %v; want %s", op.Kind, op.Identity, op.Region, a.Outcome, a.Claim, err, o)
	}
	return a.Claim
}

// everything: nothing is folded, as far as anybody could see at any time.
var everything = claims.Looked{Heads: claims.Heads{{Region: "east"}, {Region: "west"}}, Since: 1 << 62, Epoch: 1}

var red, blue = identity.Sum([]byte("red")), identity.Sum([]byte("blue"))

// claim is a claim for [10, 19] unless it is changed.
func (b *bench) claim(change ...func(*claims.Op)) claims.Op {
	op := claims.Op{Kind: claims.DoClaim, Identity: batch(10, 19), Hash: red, ID: b.newID(), Region: "east", Epoch: b.epoch.Number, At: b.now.UnixNano(), Looked: everything}
	op.Looked.Epoch = b.epoch.Number
	for _, f := range change {
		f(&op)
	}
	return op
}

func as(k claims.Kind, op claims.Op, change ...func(*claims.Op)) claims.Op {
	op.Kind = k
	for _, f := range change {
		f(&op)
	}
	return op
}

func in(r claims.Region) func(*claims.Op)       { return func(o *claims.Op) { o.Region = r } }
func hashed(h identity.Digest) func(*claims.Op) { return func(o *claims.Op) { o.Hash = h } }
func ranged(start, end uint64) func(*claims.Op) {
	return func(o *claims.Op) { o.Identity = batch(start, end) }
}
func instead(op claims.Op) func(*claims.Op)   { return func(o *claims.Op) { o.Expect = op.ID } }
func (b *bench) other(op claims.Op) claims.Op { op.ID = b.newID(); return op }
func (b *bench) take(op claims.Op, f ...func(*claims.Op)) claims.Op {
	return as(claims.DoTakeOver, b.other(op), append([]func(*claims.Op){instead(op)}, f...)...)
}

func TestLifeOfAClaim(t *testing.T) {
	b := newBench(t)
	op := b.claim()
	held := b.want(claims.Held, op)
	if held.Stamp.Epoch != 1 || held.Stamp.Fence == 0 || held.Home != "east" || held.State != claims.Claimed {
		t.Fatalf("%+v", held)
	}
	if again := b.want(claims.Held, op); again != held {
		t.Errorf("asked again: %+v, before %+v", again, held)
	}
	b.want(claims.Pending, as(claims.DoClaim, op, in("west")))
	b.want(claims.Pending, b.other(op))
	b.want(claims.Contested, b.claim(hashed(blue)))
	b.want(claims.Contested, b.claim(ranged(15, 25)))
	b.want(claims.Moved, as(claims.DoSettle, op))
	b.want(claims.Moved, as(claims.DoComplete, op, in("west")))
	b.want(claims.Moved, as(claims.DoComplete, b.other(op)))
	b.want(claims.Moved, as(claims.DoComplete, op, hashed(blue)))
	b.want(claims.Moved, as(claims.DoComplete, op, ranged(15, 25)))
	durable := b.want(claims.Decided, as(claims.DoComplete, op))
	if durable.State != claims.Durable || durable.Stamp != held.Stamp || durable.ID != op.ID {
		t.Errorf("%+v", durable)
	}
	if again := b.want(claims.Decided, as(claims.DoComplete, op)); again != durable {
		t.Errorf("completed again: %+v", again)
	}
	b.want(claims.Conflict, b.claim(hashed(blue)))
	b.want(claims.RangeConflict, b.claim(ranged(15, 25)))
	b.want(claims.RangeConflict, b.claim(ranged(0, 30)))
	b.want(claims.RangeConflict, b.claim(ranged(10, 18)))
	b.want(claims.Moved, as(claims.DoRelease, op))
	b.want(claims.Decided, b.take(op, in("west")))
	if c := b.want(claims.Decided, as(claims.DoSettle, op, in("west"))); c.State != claims.Durable {
		t.Errorf("settled by another region: %+v", c)
	}
	if c := b.want(claims.Decided, as(claims.DoSettle, op)); c.State != claims.Settled {
		t.Errorf("%+v", c)
	}
	if c := b.want(claims.Decided, b.claim(in("west"))); c.State != claims.Settled || c.Home != "east" {
		t.Errorf("%+v", c)
	}
	// Neighbours are free.
	b.want(claims.Held, b.claim(ranged(20, 20)))
	b.want(claims.Held, b.claim(ranged(0, 9), hashed(blue)))
}

func TestTakeOver(t *testing.T) {
	b := newBench(t)
	first := b.claim()
	held := b.want(claims.Held, first)
	b.want(claims.Moved, as(claims.DoTakeOver, b.other(first), instead(b.claim())))
	b.want(claims.Moved, b.take(first, hashed(blue)))
	second := b.take(first, in("west"))
	taken := b.want(claims.Held, second)
	if taken.Home != "west" || taken.ID != second.ID || taken.Stamp.Fence <= held.Stamp.Fence {
		t.Errorf("%+v after %+v", taken, held)
	}
	if again := b.want(claims.Held, second); again != taken {
		t.Errorf("taken over again: %+v", again)
	}
	b.want(claims.Moved, as(claims.DoComplete, first))
	b.want(claims.Moved, as(claims.DoRelease, first))
	b.want(claims.Moved, as(claims.DoReplace, first, hashed(blue)))
	third := as(claims.DoReplace, second, hashed(blue))
	replaced := b.want(claims.Held, third)
	if replaced.Hash != blue || replaced.Stamp.Fence <= taken.Stamp.Fence || replaced.ID != second.ID {
		t.Errorf("%+v", replaced)
	}
	b.want(claims.Held, third)
	b.want(claims.Moved, as(claims.DoComplete, second))
	b.want(claims.Moved, as(claims.DoRelease, second))
	b.want(claims.Moved, as(claims.DoRelease, third, func(op *claims.Op) { op.ID = claims.ID{77} }))
	// A region gives up what is its own.
	b.want(claims.Moved, as(claims.DoRelease, third, in("east")))
	b.want(claims.Released, as(claims.DoRelease, third))
	b.want(claims.Released, as(claims.DoRelease, third))
	b.want(claims.Moved, as(claims.DoComplete, third))
	b.want(claims.Held, b.claim(ranged(15, 25)))
	b.want(claims.Released, as(claims.DoRelease, third))
}

// put writes a claim past the Group, as recovery does.
func (b *bench) put(c claims.Claim) {
	b.t.Helper()
	_, err := b.store.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Claim(c.Identity.BootOf(), c.Identity.SeqStart), Value: c.Marshal()}}}}})
	if err != nil {
		b.t.Fatal(err)
	}
}

// TestRecoveredClaimsStayInTheirRegion: what may have been counted there is counted nowhere else.
func TestRecoveredClaimsStayInTheirRegion(t *testing.T) {
	b := newBench(t)
	old := b.claim()
	b.put(claims.Claim{Identity: old.Identity, Hash: red, State: claims.Claimed, ID: old.ID, Stamp: claims.Stamp{Epoch: 1}, Home: "east", Recovered: true})
	b.want(claims.Contested, b.claim(hashed(blue)))
	b.want(claims.Contested, b.claim(ranged(19, 21)))
	b.want(claims.Contested, b.take(old, in("west")))
	b.want(claims.Contested, as(claims.DoReplace, old, hashed(blue)))
	b.want(claims.Moved, as(claims.DoRelease, old))
	// Not even its home takes it over: its calls share it.
	b.want(claims.Contested, b.take(old))
	b.want(claims.Pending, b.claim(in("west")))
	if c := b.want(claims.Held, b.claim()); !c.Recovered || c.ID != old.ID {
		t.Errorf("%+v", c)
	}
	if c := b.want(claims.Decided, as(claims.DoComplete, old)); c.Recovered {
		t.Errorf("%+v", c)
	}
}

// TestBound: the identity is folded, its home was retired, and another region writes the manifest anew, of the same hash.
func TestBound(t *testing.T) {
	b := newBench(t)
	b.epoch.Regions = []claims.Region{"west", "north"}
	b.setEpoch()
	b.g = b.group()
	if _, err := b.do(b.claim()); !errors.Is(err, claims.ErrInvalid) {
		t.Errorf("a claim by the retired region: %v", err)
	}
	looked := claims.Looked{Heads: claims.Heads{{Region: "west", Generation: 3}}, Above: 100, Since: 1 << 62, Epoch: b.epoch.Number, Bound: true}
	bound := func(op *claims.Op) { op.Looked = looked }
	mine := b.claim(in("west"), bound)
	held := b.want(claims.Held, mine)
	if !held.Bound || held.Recovered || held.Home != "west" || held.State != claims.Claimed {
		t.Errorf("%+v", held)
	}
	b.want(claims.Conflict, b.claim(hashed(blue), in("west")))
	b.want(claims.RangeConflict, b.claim(ranged(0, 10), in("west")))
	// Its region's key has another frame: another region may have room.
	b.want(claims.Contested, as(claims.DoReplace, mine, hashed(blue)))
	b.want(claims.Pending, b.claim(in("north")))
	theirs := b.take(mine, in("north"))
	if c := b.want(claims.Held, theirs); !c.Bound || c.Home != "north" {
		t.Errorf("%+v", c)
	}
	b.want(claims.Released, as(claims.DoRelease, theirs))
	mine = b.claim(in("west"), bound)
	b.want(claims.Held, mine)
	if c := b.want(claims.Decided, as(claims.DoComplete, mine)); c.Bound {
		t.Errorf("%+v", c)
	}
	if err := b.claim(in("west"), func(op *claims.Op) { op.Looked = claims.Looked{Bound: true} }).Validate(); !errors.Is(err, claims.ErrInvalid) {
		t.Errorf("bound by no head: %v", err)
	}
}

// TestTheClaimBeforeAGap: it was released elsewhere, and its key is another range's now.
func TestTheClaimBeforeAGap(t *testing.T) {
	b := newBench(t)
	first := b.claim(ranged(0, 9))
	b.want(claims.Held, first)
	mine := b.g
	b.g = b.group()
	b.want(claims.Released, as(claims.DoRelease, first))
	b.want(claims.Held, b.claim(ranged(0, 15)))
	b.g, b.ends = mine, map[claims.Ticket]claims.Done{}
	b.want(claims.Contested, b.claim(ranged(10, 19)))
}

// settled makes a claim that is settled.
func (b *bench) settled(start, end uint64, change ...func(*claims.Op)) claims.Claim {
	b.t.Helper()
	op := b.claim(append(change, ranged(start, end))...)
	b.want(claims.Held, op)
	b.want(claims.Decided, as(claims.DoComplete, op))
	return b.want(claims.Decided, as(claims.DoSettle, op))
}

// foldable is what may be folded that became durable before a time.
func (b *bench) foldable(at time.Time) claims.Answer {
	b.t.Helper()
	a, err := b.do(claims.Op{Kind: claims.DoFoldable, Identity: batch(0, 0), At: at.UnixNano()})
	if err != nil || a.Outcome != claims.Found {
		b.t.Fatalf("%+v, %v", a, err)
	}
	return a
}

// fold folds what was found into heads of a generation.
func (b *bench) fold(o claims.Outcome, a claims.Answer, generation uint64) {
	b.t.Helper()
	heads := claims.Heads{{Region: "east", Generation: generation}, {Region: "west", Generation: generation + 7}}
	b.want(o, claims.Op{Kind: claims.DoFold, Identity: batch(0, 0), Base: a.Folds.Modified, Heads: heads, Above: 1000, Claims: a.Claims})
}

func TestFolding(t *testing.T) {
	b := newBench(t)
	first := b.settled(0, 9)
	b.settled(10, 19)
	b.settled(20, 29, in("west"))
	open := b.claim(ranged(30, 39))
	b.want(claims.Held, open)
	durable := b.claim(ranged(40, 49))
	b.want(claims.Held, durable)
	b.want(claims.Decided, as(claims.DoComplete, durable))
	if a := b.foldable(b.now); len(a.Claims) != 0 {
		t.Errorf("%d may be folded before their time", len(a.Claims))
	}
	found := b.foldable(b.now.Add(1))
	if len(found.Claims) != 3 || found.Claims[0] != first || found.Folds.Modified == 0 || !reflect.DeepEqual(found.Folds.Heads, everything.Heads) {
		t.Fatalf("%+v", found)
	}
	// Another coordinator has seen the same.
	mine := b.g
	b.g = b.group()
	b.foldable(b.now.Add(1))
	other := b.g
	b.g, b.ends = mine, map[claims.Ticket]claims.Done{}
	b.fold(claims.Applied, found, 1)
	b.fold(claims.Moved, found, 1) // their claims are gone
	b.g, b.ends = other, map[claims.Ticket]claims.Done{}
	b.fold(claims.Moved, found, 2)
	// What is folded nobody claims who has not looked at one of these heads.
	for _, l := range []claims.Looked{{}, everything, {Heads: claims.Heads{{Region: "east"}, {Region: "west", Generation: 7}}}, {Heads: claims.Heads{{Region: "north", Generation: 9}}}} {
		a, err := b.do(b.claim(ranged(3, 4), func(o *claims.Op) { o.Looked = l }))
		if err != nil || a.Outcome != claims.Folded || a.Folds.Modified == 0 || a.Folds.At == 0 || !reflect.DeepEqual(a.Folds.Heads, claims.Heads{{Region: "east", Generation: 1}, {Region: "west", Generation: 8}}) {
			t.Errorf("%+v: %+v, %v", l, a, err)
		}
	}
	id := batch(0, 9)
	b.want(claims.Moved, as(claims.DoComplete, b.claim(), func(o *claims.Op) { o.Identity = id }))
	b.want(claims.Released, as(claims.DoRelease, b.claim(), func(o *claims.Op) { o.Identity = id }))
	for _, g := range []uint64{1, 2} {
		b.want(claims.Held, b.claim(ranged(50+10*g, 59+10*g), func(o *claims.Op) { o.Looked = claims.Looked{Heads: claims.Heads{{Region: "east", Generation: g}}} }))
	}
	// Nor need anybody look who claims what lies above everything that is folded.
	b.want(claims.Folded, b.claim(ranged(999, 1001), func(o *claims.Op) { o.Looked = claims.Looked{} }))
	b.want(claims.Held, b.claim(ranged(1000, 1001), func(o *claims.Op) { o.Looked = claims.Looked{} }))
	b.want(claims.Decided, as(claims.DoComplete, open))
	a, err := b.do(claims.Op{Kind: claims.DoLookup, Identity: batch(15, 45)})
	if err != nil || len(a.Claims) != 2 || a.Folds.Modified == 0 || a.Folds.At < a.Folds.Modified {
		t.Errorf("%+v, %v", a, err)
	}
	// A fold that is too much for one transaction: the second one notes the same heads.
	found = b.foldable(b.now.Add(1))
	if len(found.Claims) != 0 {
		t.Errorf("%+v", found)
	}
	b.want(claims.Decided, as(claims.DoSettle, open))
	found = b.foldable(b.now.Add(1))
	if len(found.Claims) != 1 {
		t.Errorf("%+v", found)
	}
	found.Claims[0].Home = "west" // re-homed since
	b.fold(claims.Moved, found, 1)
	found.Claims[0].Home = "east"
	found.Folds.Modified--
	b.fold(claims.Moved, found, 2)
	b.fold(claims.Applied, found, 1)
}

// TestAboveEverything: where numbers end, nothing is above.
func TestAboveEverything(t *testing.T) {
	b := newBench(t)
	c := b.settled(10, 19)
	a := b.foldable(b.now.Add(1))
	b.want(claims.Applied, claims.Op{Kind: claims.DoFold, Identity: c.Identity, Base: a.Folds.Modified, Heads: claims.Heads{{Region: "east", Generation: 1}}, Above: math.MaxUint64})
	b.want(claims.Folded, b.claim(ranged(math.MaxUint64, math.MaxUint64), func(o *claims.Op) { o.Looked = claims.Looked{} }))
}

// TestForgetting: of a boot without claims nothing stays in the store, and who has looked before does not claim by that.
func TestForgetting(t *testing.T) {
	b := newBench(t)
	forget := func(o claims.Outcome, base int64) {
		t.Helper()
		b.want(o, claims.Op{Kind: claims.DoForget, Identity: batch(0, 0), Base: base})
	}
	looked := func(o claims.Outcome, l claims.Looked) claims.Answer {
		t.Helper()
		op := b.claim(func(op *claims.Op) { op.Looked = l })
		a, err := b.do(op)
		if err != nil || a.Outcome != o {
			t.Fatalf("%+v: %+v, %v, want %s", l, a, err, o)
		}
		return a
	}
	before := looked(claims.Folded, claims.Looked{}).Folds
	if before.Modified != 0 || before.Forgotten > before.At || before.At == 0 {
		t.Fatalf("%+v", before)
	}
	b.settled(0, 9)
	found := b.foldable(b.now.Add(1))
	forget(claims.Moved, found.Folds.Modified) // it has a claim
	b.fold(claims.Applied, found, 1)
	found = b.foldable(b.now.Add(1))
	forget(claims.Moved, found.Folds.Modified-1)
	forget(claims.Applied, found.Folds.Modified)
	forget(claims.Moved, found.Folds.Modified)
	// Another coordinator has claims in mind that it made before.
	old := claims.Looked{Heads: everything.Heads, Since: before.At, Epoch: 1}
	a := looked(claims.Folded, old).Folds
	if a.Modified != 0 || a.Forgotten <= before.At || a.At < a.Forgotten || old.Suffices(a) {
		t.Fatalf("%+v", a)
	}
	b.g = b.group()
	looked(claims.Folded, old)
	looked(claims.Folded, claims.Looked{Heads: everything.Heads, Since: a.At, Epoch: 2})
	looked(claims.Held, claims.Looked{Heads: claims.Heads{{Region: "east", Generation: 1}}, Since: a.At, Epoch: 1})
	if again := b.foldable(b.now); !reflect.DeepEqual(again.Folds.Heads, claims.Heads{{Region: "east", Generation: 1}}) {
		t.Errorf("%+v", again)
	}
}

// TestForgettingIsGuarded: a claim that another coordinator has made meanwhile keeps its boot.
func TestForgettingIsGuarded(t *testing.T) {
	b := newBench(t)
	b.settled(0, 9)
	b.fold(claims.Applied, b.foldable(b.now.Add(1)), 1)
	found := b.foldable(b.now.Add(1))
	mine := b.g
	b.g = b.group()
	b.want(claims.Held, b.claim(ranged(20, 29), func(o *claims.Op) { o.Looked = claims.Looked{Heads: claims.Heads{{Region: "east", Generation: 1}}} }))
	b.g, b.ends = mine, map[claims.Ticket]claims.Done{}
	b.want(claims.Moved, claims.Op{Kind: claims.DoForget, Identity: batch(0, 0), Base: found.Folds.Modified})
}

// TestForgettingOfManyBoots: no transaction writes a key twice.
func TestForgettingOfManyBoots(t *testing.T) {
	b := newBench(t)
	const boots = 300
	for i := range boots {
		b.submit(b.claim(of(i)))
	}
	b.run()
	var forget []claims.Op
	for i := range boots {
		op := b.claim(of(i))
		a, err := b.do(claims.Op{Kind: claims.DoLookup, Identity: op.Identity})
		if err != nil || len(a.Claims) != 1 {
			t.Fatalf("%+v, %v", a, err)
		}
		op.ID = a.Claims[0].ID
		b.want(claims.Released, as(claims.DoRelease, op))
		forget = append(forget, claims.Op{Kind: claims.DoForget, Identity: op.Identity, Base: a.Folds.Modified})
	}
	for _, op := range forget {
		b.submit(op)
	}
	for f := b.g.Next(b.now); f != nil; f = b.g.Next(b.now) {
		written := map[string]bool{}
		for _, p := range f.Txn.Parts {
			for _, w := range p.Puts {
				if written[w.Key] {
					t.Fatalf("%s is written twice", w.Key)
				}
				written[w.Key] = true
			}
		}
		r, err := b.store.Commit(context.Background(), f.Txn)
		b.land(f, r, err)
	}
	r, err := b.store.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: keys.Folded(), End: string(keys) + "folded0"}}}}})
	if err != nil || len(r.Parts[0].Reads[0]) != 0 {
		t.Errorf("%d boots are known, %v", len(r.Parts[0].Reads[0]), err)
	}
}

// TestManyClaimsOfABoot: the bound refuses new claims, and folding makes room.
func TestManyClaimsOfABoot(t *testing.T) {
	b := newBench(t, func(c *claims.Config) { c.MaxClaims = 4 })
	for i := range uint64(4) {
		op := b.claim(ranged(10*i, 10*i+9))
		b.want(claims.Held, op)
		b.want(claims.Decided, as(claims.DoComplete, op))
		b.want(claims.Decided, as(claims.DoSettle, op))
	}
	refused := func(op claims.Op) {
		t.Helper()
		if _, err := b.do(op); !errors.Is(err, claims.ErrTooMany) {
			t.Errorf("%s %s: %v", op.Kind, op.Identity, err)
		}
	}
	refused(b.claim(ranged(100, 100)))
	// One that does not see all claims decides about those that it sees.
	two := func(c *claims.Config) { c.MaxClaims = 2 }
	b.g = b.group(two)
	refused(b.claim(ranged(30, 39)))
	b.g = b.group(two)
	b.want(claims.Decided, b.claim(ranged(0, 9)))
	refused(claims.Op{Kind: claims.DoLookup, Identity: batch(0, 20)})
	for range 2 {
		found := b.foldable(b.now.Add(1))
		if len(found.Claims) != 2 {
			t.Errorf("%+v", found)
		}
		b.fold(claims.Applied, found, 3)
	}
	b.want(claims.Held, b.claim(ranged(100, 100), func(o *claims.Op) { o.Looked = claims.Looked{Heads: claims.Heads{{Region: "east", Generation: 3}}} }))
}

func TestOldEpochsAreRefused(t *testing.T) {
	b := newBench(t)
	op := b.claim()
	b.want(claims.Held, op)
	for _, k := range []claims.Kind{claims.DoComplete, claims.DoTakeOver, claims.DoSettle, claims.DoReplace, claims.DoRelease} {
		old := as(k, op, func(o *claims.Op) { o.Epoch = 2; o.Expect = claims.ID{9} })
		if _, err := b.do(old); !errors.Is(err, claims.ErrEpoch) {
			t.Errorf("%s of another epoch: %v", k, err)
		}
	}
	// A claim of another epoch in the store is nobody's answer.
	b.put(claims.Claim{Identity: batch(50, 59), Hash: red, State: claims.Claimed, ID: op.ID, Stamp: claims.Stamp{Epoch: 2}, Home: "east"})
	b.g = b.group()
	if a, err := b.do(b.claim(ranged(50, 59))); !errors.Is(err, claims.ErrEpoch) {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestTheEpochMovesOn: what waits and what comes later is refused, and nothing is written.
func TestTheEpochMovesOn(t *testing.T) {
	b := newBench(t, func(c *claims.Config) { c.MaxOps = 1 })
	first, second := b.submit(b.claim()), b.submit(b.claim(ranged(20, 29)))
	f := b.g.Next(b.now)
	third := b.submit(b.claim(ranged(30, 39)))
	b.epoch.Number = 2
	b.setEpoch()
	r, err := b.store.Commit(context.Background(), f.Txn)
	b.land(f, r, err)
	for _, ticket := range []claims.Ticket{first, second, third} {
		if d, ok := b.ends[ticket]; !ok || !errors.Is(d.Err, claims.ErrEpoch) {
			t.Errorf("%s: %+v", ticket, d)
		}
	}
	if _, err := b.g.Submit(b.now, b.claim()); !errors.Is(err, claims.ErrEpoch) || b.g.Waiting() != 0 || b.g.Next(b.now) != nil {
		t.Errorf("%v, %d wait", err, b.g.Waiting())
	}
}

// TestAStoreThatForgot: a lower revision than one that was known before the transaction was sent, or, of one that writes, the same.
func TestAStoreThatForgot(t *testing.T) {
	for n := range 2 {
		b := newBench(t)
		backup := b.store.Copy()
		for i := range uint64(n) + 1 {
			b.want(claims.Held, b.claim(ranged(10*i, 10*i+9)))
		}
		b.store = backup
		op := b.claim(ranged(30, 39))
		op.Identity.Boot = "another"
		if _, err := b.do(op); !errors.Is(err, claims.ErrUnknown) || !errors.Is(err, claims.ErrForgot) {
			t.Errorf("%d writes: %v", n+1, err)
		}
		if !errors.Is(b.g.Stopped(), claims.ErrEpoch) {
			t.Errorf("%d writes: it goes on: %v", n+1, b.g.Stopped())
		}
	}
}

// TestAStoreOfAnotherCluster: a copy that was restored and has grown since has no lower revision, but another id.
func TestAStoreOfAnotherCluster(t *testing.T) {
	b := newBench(t, func(c *claims.Config) { c.Cluster = 1 })
	b.want(claims.Held, b.claim())
	b.store.Restore(b.store.Copy(), 2)
	if _, err := b.do(b.claim(ranged(30, 39))); !errors.Is(err, claims.ErrUnknown) || !errors.Is(err, claims.ErrForgot) {
		t.Errorf("%v", err)
	}
	if !errors.Is(b.g.Stopped(), claims.ErrEpoch) {
		t.Errorf("it goes on: %v", b.g.Stopped())
	}
}

// TestLostAnswers: what may have been done is unknown, all else is not done; and the boot is read again.
func TestLostAnswers(t *testing.T) {
	b := newBench(t)
	op := b.claim()
	b.want(claims.Held, op)
	claim, same, look := b.submit(b.claim(ranged(20, 29))), b.submit(op), b.submit(claims.Op{Kind: claims.DoLookup, Identity: batch(0, 99)})
	f := b.g.Next(b.now)
	if _, err := b.store.Commit(context.Background(), f.Txn); err != nil {
		t.Fatal(err)
	}
	b.land(f, claims.Result{}, fmt.Errorf("%w: no answer", claims.ErrUnknown))
	if d := b.ends[claim]; !errors.Is(d.Err, claims.ErrUnknown) {
		t.Errorf("%+v", d)
	}
	if d := b.ends[same]; !errors.Is(d.Err, claims.ErrUnavailable) || errors.Is(d.Err, claims.ErrUnknown) {
		t.Errorf("%+v", d)
	}
	b.run()
	if d := b.ends[look]; d.Err != nil || len(d.Answer.Claims) != 2 {
		t.Errorf("%+v", d)
	}
	f2 := b.submit(b.claim(ranged(40, 49)))
	b.land(b.g.Next(b.now), claims.Result{}, claims.ErrUnavailable)
	if d := b.ends[f2]; !errors.Is(d.Err, claims.ErrUnavailable) || errors.Is(d.Err, claims.ErrUnknown) {
		t.Errorf("%+v", d)
	}
}

func of(boot int) func(*claims.Op) {
	return func(o *claims.Op) { o.Identity.Boot = fmt.Sprint(boot) }
}

// TestGrouping: a transaction goes at once if none is under way; else operations wait for as many as fit, or their time.
func TestGrouping(t *testing.T) {
	b := newBench(t, func(c *claims.Config) { c.MaxOps, c.MaxFlights, c.Linger = 4, 3, time.Millisecond })
	b.submit(b.claim(of(1)))
	first := b.g.Next(b.now)
	if first == nil || first.Ops() != 1 {
		t.Fatalf("the first one waits: %+v", first)
	}
	for i := 2; i < 5; i++ {
		b.submit(b.claim(of(i)))
	}
	// The same boot as the first: it can't go.
	held := b.submit(b.claim(ranged(50, 59), of(1)))
	if f := b.g.Next(b.now); f != nil {
		t.Fatalf("%d operations do not wait", f.Ops())
	}
	due, ok := b.g.Due()
	if want := b.now.Add(time.Millisecond); !ok || !due.Equal(want) {
		t.Fatalf("due at %v %v", due, ok)
	}
	b.submit(b.claim(of(5)))
	second := b.g.Next(b.now)
	if second == nil || second.Ops() != 4 {
		t.Fatalf("%+v", second)
	}
	b.submit(b.claim(of(6)))
	b.now = b.now.Add(time.Millisecond)
	third := b.g.Next(b.now)
	if third == nil || third.Ops() != 1 {
		t.Fatalf("%+v", third)
	}
	b.submit(b.claim(of(7)))
	b.now = b.now.Add(time.Second)
	if f := b.g.Next(b.now); f != nil {
		t.Fatal("more are under way than may be")
	}
	if _, ok := b.g.Due(); ok {
		t.Error("it is due, and none can go")
	}
	for _, f := range []*claims.Flight{third, first, second} {
		r, err := b.store.Commit(context.Background(), f.Txn)
		b.land(f, r, err)
	}
	b.run()
	if d, ok := b.ends[held]; !ok || d.Answer.Outcome != claims.Held || b.g.Waiting() != 0 || b.g.Flights() != 0 {
		t.Errorf("%+v, %d wait", d, b.g.Waiting())
	}
}

// TestOneBootInATransaction: operations that do not meet share a part; others follow in their order.
func TestOneBootInATransaction(t *testing.T) {
	b := newBench(t)
	var tickets []claims.Ticket
	op := b.claim()
	for _, o := range []claims.Op{op, b.claim(ranged(20, 29)), b.claim(ranged(0, 9)), b.claim(hashed(blue)), b.claim(ranged(30, 39))} {
		tickets = append(tickets, b.submit(o))
	}
	if sizes := fmt.Sprint(b.run()); sizes != "[3 2]" {
		t.Errorf("transactions of %s operations", sizes)
	}
	var got []claims.Outcome
	for _, ticket := range tickets {
		got = append(got, b.ends[ticket].Answer.Outcome)
	}
	if fmt.Sprint(got) != "[HELD HELD HELD CONTESTED HELD]" {
		t.Errorf("%v", got)
	}
}

// TestFullTransactions: whatever is asked for, a transaction stays within what the store takes.
func TestFullTransactions(t *testing.T) {
	b := newBench(t, func(c *claims.Config) { c.MaxOps = 1000 })
	want := 0
	submit := func(op claims.Op) { b.submit(op); want++ }
	// Narrow parts first, and then some that no longer fit beside them.
	for boot := range 118 {
		submit(b.claim(of(boot)))
	}
	for boot := 200; boot < 210; boot++ {
		for i := range uint64(20) {
			submit(b.claim(ranged(10*i, 10*i+9), of(boot)))
		}
		op := b.claim(of(boot))
		fold := claims.Op{Kind: claims.DoFold, Identity: op.Identity, Heads: everything.Heads}
		for i := range uint64(claims.MaxFold) {
			id := op.Identity
			id.SeqStart, id.SeqEnd = i, i
			fold.Claims = append(fold.Claims, claims.Claim{Identity: id, State: claims.Settled})
		}
		submit(fold)
	}
	n := 0
	for f := b.g.Next(b.now); f != nil; f = b.g.Next(b.now) {
		n += f.Ops()
		widest := 0
		for _, p := range f.Txn.Parts {
			widest = max(widest, len(p.Guards), len(p.Puts)+len(p.Deletes), len(p.Reads))
		}
		if len(f.Txn.Parts)+widest > 128 {
			t.Fatalf("%d parts, the widest of %d requests", len(f.Txn.Parts), widest)
		}
		r, err := b.store.Commit(context.Background(), f.Txn)
		b.land(f, r, err)
	}
	if n != want || b.g.Waiting() != 0 {
		t.Errorf("%d operations, %d wait", n, b.g.Waiting())
	}
}

func TestBounds(t *testing.T) {
	b := newBench(t, func(c *claims.Config) { c.MaxWaiting, c.MaxOfBoot = 3, 2 })
	b.submit(b.claim())
	b.submit(b.claim())
	if _, err := b.g.Submit(b.now, b.claim()); !errors.Is(err, claims.ErrFull) {
		t.Errorf("a third of the boot: %v", err)
	}
	last := b.submit(b.claim(of(2)))
	if _, err := b.g.Submit(b.now, b.claim(of(3))); !errors.Is(err, claims.ErrFull) {
		t.Errorf("a fourth: %v", err)
	}
	if !b.g.Cancel(last) || b.g.Cancel(last) {
		t.Error("canceled once")
	}
	gone := b.submit(b.claim(of(3)))
	f := b.g.Next(b.now)
	if b.g.Cancel(gone) {
		t.Error("it is under way")
	}
	r, err := b.store.Commit(context.Background(), f.Txn)
	b.land(f, r, err)
	b.run()
	if _, told := b.ends[gone]; told || b.g.Waiting() != 0 || len(b.ends) != 2 {
		t.Errorf("%+v, %d wait", b.ends, b.g.Waiting())
	}
	for name, op := range map[string]claims.Op{
		"nothing": {}, "no hash": b.claim(hashed(identity.Digest{})), "no id": b.claim(func(o *claims.Op) { o.ID = claims.ID{} }),
		"no region": b.claim(in("")), "a region in capitals": b.claim(in("East")), "a backward range": b.claim(ranged(5, 4)),
		"no epoch": as(claims.DoComplete, b.claim(), func(o *claims.Op) { o.Epoch = 0 }), "nobody to replace": as(claims.DoTakeOver, b.claim()),
		"a time before 1970": b.claim(func(o *claims.Op) { o.At = -1 }), "an unknown kind": as(99, b.claim()),
	} {
		if _, err := b.g.Submit(b.now, op); !errors.Is(err, claims.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOvertakenAgainAndAgain: an operation that others overtake too often is told so, and is not done.
func TestOvertakenAgainAndAgain(t *testing.T) {
	b := newBench(t, func(c *claims.Config) { c.MaxTries = 3 })
	ticket := b.submit(b.claim())
	for i := range 3 {
		f := b.g.Next(b.now)
		// Somebody else's claim comes and goes meanwhile.
		if i%2 == 0 {
			b.put(claims.Claim{Identity: batch(5, 9), Hash: red, State: claims.Claimed, ID: claims.ID{7}, Stamp: claims.Stamp{Epoch: 1}, Home: "west"})
		} else if _, err := b.store.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Deletes: []string{keys.Claim(boot, 5)}}}}); err != nil {
			t.Fatal(err)
		}
		r, err := b.store.Commit(context.Background(), f.Txn)
		if r.Parts[0].Held {
			t.Fatalf("try %d was not overtaken", i)
		}
		b.land(f, r, err)
	}
	if d := b.ends[ticket]; !errors.Is(d.Err, claims.ErrBusy) {
		t.Errorf("%+v", d)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*claims.Config){
		"no ops": func(c *claims.Config) { c.MaxOps = 0 }, "narrow": func(c *claims.Config) { c.MaxRequests = 60 }, "no flights": func(c *claims.Config) { c.MaxFlights = 0 },
		"negative linger": func(c *claims.Config) { c.Linger = -1 }, "no tries": func(c *claims.Config) { c.MaxTries = 0 },
	} {
		c := claims.DefaultConfig()
		if change(&c); c.Validate() == nil {
			t.Errorf("%s: is taken", name)
		}
	}
}
