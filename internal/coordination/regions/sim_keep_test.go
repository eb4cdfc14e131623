package regions_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// keeping is a short history of one boot in three regions, of which "us" is retired: claims that are taken over, released and completed,
// recoveries, folds and copies of etcd; then etcd is restored to any of the copies, requests of all of it arrive once more, and the
// epoch is opened. It has what the simulation of everything rarely has.
type keeping struct {
	*world
	rnd      *rand.Rand
	seed     uint64
	k        *regions.Keeper
	o        regions.Opened
	g        *claims.Group
	sent     []claims.Txn
	copies   []*kv.Store
	attempts []attempt
	// truth has what was completed; claims of the retired region may be lost with etcd.
	truth map[identity.Batch]attempt
	ids   uint64
	lose  bool // a request to complete is under way for long
}

// attempt is a claim that was held.
type attempt struct {
	claims.Claim
	by claims.Region
}

var sites = []claims.Region{"asia", "eu", "us"}

func (w *keeping) open() {
	w.t.Helper()
	o, err := w.k.Open(context.Background(), true)
	if err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
	w.o, w.g = o, claims.NewGroup(claims.DefaultConfig(), keys, o.Epoch, o.Revision)
}

// do does an operation as a coordinator does.
func (w *keeping) do(op claims.Op) claims.Answer {
	w.t.Helper()
	if op.Epoch == 0 {
		op.Epoch = w.o.Epoch.Number
	}
	op.At = 1
	folded := w.k.Folded(w.k.Folder(w.o.Epoch, w.o.Retired))
	for range 4 {
		a := w.once(op)
		if a.Outcome != claims.Folded {
			return a
		}
		b, looked, err := folded.Decide(context.Background(), op, a.Folds)
		if err != nil {
			w.t.Fatalf("seed %d: %v", w.seed, err)
		}
		if b.Outcome != 0 {
			return b
		}
		op.Looked = looked
	}
	return claims.Answer{}
}

func (w *keeping) once(op claims.Op) claims.Answer {
	w.t.Helper()
	now := time.Unix(5, 0)
	ticket, err := w.g.Submit(now, op)
	if err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
	for f := w.g.Next(now); f != nil; f = w.g.Next(now) {
		w.sent = append(w.sent, f.Txn)
		var r claims.Result
		err := claims.ErrUnknown
		// Some requests only come later.
		if op.Kind != claims.DoComplete || !w.lose && w.rnd.IntN(4) > 0 {
			r, err = w.kv.Commit(context.Background(), f.Txn)
		}
		for _, d := range w.g.Land(now, f, r, err) {
			if d.Ticket == ticket && (d.Err == nil || errors.Is(d.Err, claims.ErrEpoch)) {
				return d.Answer
			}
		}
	}
	return claims.Answer{}
}

// pass is what misleads most, and chance alone hardly ever brings about: a claim of one region whose manifest stands is released, and
// another region claims the identity for another frame. The request that completes the first one is still under way; or recoveries come
// in between, the first of which finds one manifest alone.
func (w *keeping) pass() {
	id := batch("b", uint64(w.rnd.IntN(3)), 3)
	claim := func(by claims.Region, hash byte) (attempt, bool) {
		a := w.do(claims.Op{Kind: claims.DoClaim, Identity: id, Hash: identity.Digest{hash}, ID: w.id(), Region: by})
		if a.Outcome != claims.Held {
			return attempt{}, false
		}
		w.attempts = append(w.attempts, attempt{a.Claim, by})
		return attempt{a.Claim, by}, !a.Claim.Recovered
	}
	order := w.rnd.Perm(3)
	one, ok := claim(sites[order[0]], 1)
	if !ok {
		return
	}
	w.write(one)
	late := w.stands(one) && w.rnd.IntN(2) == 0
	if late {
		w.lose = true
		w.complete(one)
		w.lose = false
	}
	w.copies = append(w.copies, w.kv.Copy())
	w.do(claims.Op{Kind: claims.DoRelease, Identity: id, Hash: one.Hash, ID: one.ID, Region: one.by, Epoch: one.Stamp.Epoch})
	two, ok := claim(sites[order[1]], 2)
	switch {
	case !ok:
	case late:
		if w.write(two); w.stands(two) {
			w.complete(two)
		}
		if w.rnd.IntN(3) == 0 {
			w.settle(two)
			w.fold()
		}
	default:
		w.recover()
		w.write(two)
		w.recover()
	}
}

// step is one thing that happens before the region is lost.
func (w *keeping) step() {
	switch n := w.rnd.IntN(20); {
	case n < 5: // a claim
		from := uint64(w.rnd.IntN(3))
		op := claims.Op{Kind: claims.DoClaim, Identity: batch("b", from, from+uint64(w.rnd.IntN(2))), Hash: identity.Digest{1 + byte(w.rnd.IntN(2))}, ID: w.id(), Region: sites[w.rnd.IntN(3)]}
		a := w.do(op)
		if a.Outcome == claims.Pending && w.rnd.IntN(2) == 0 {
			op.Kind, op.Expect = claims.DoTakeOver, a.Claim.ID
			a = w.do(op)
		}
		if a.Outcome == claims.Held {
			w.attempts = append(w.attempts, attempt{a.Claim, op.Region})
			if w.rnd.IntN(2) == 0 {
				w.write(w.attempts[len(w.attempts)-1])
			}
		}
	case n < 9: // its manifest
		if a := w.pick(); a != nil {
			w.write(*a)
		}
	case n < 12: // it is completed, if its manifest stands; only what is answered counts
		if a := w.pick(); a != nil && w.stands(*a) {
			w.complete(*a)
		}
	case n < 14: // it is released, by somebody who has read before that there is no manifest
		if a := w.pick(); a != nil {
			w.do(claims.Op{Kind: claims.DoRelease, Identity: a.Identity, Hash: a.Hash, ID: a.ID, Region: a.by, Epoch: a.Stamp.Epoch})
		}
	case n == 14: // it is settled
		if a := w.pick(); a != nil {
			w.settle(*a)
		}
	case n == 15:
		w.fold()
	case n < 18:
		w.copies = append(w.copies, w.kv.Copy())
	case n == 18:
		w.pass()
	default:
		w.recover()
	}
}

func (w *keeping) settle(a attempt) {
	w.do(claims.Op{Kind: claims.DoSettle, Identity: a.Identity, Hash: a.Hash, ID: a.ID, Region: a.by, Epoch: a.Stamp.Epoch})
}

// fold folds everything that is settled.
func (w *keeping) fold() {
	do := func(op claims.Op) (claims.Answer, error) { return w.do(op), nil }
	if _, _, _, err := w.k.Folder(w.o.Epoch, w.o.Retired).Boot(context.Background(), batch("b", 0, 0).BootOf(), folds.Due{Before: 100, Least: 1}, do); err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
}

// pick is an attempt, mostly one of the last; nil where there is none.
func (w *keeping) pick() *attempt {
	if len(w.attempts) == 0 {
		return nil
	}
	if w.rnd.IntN(3) > 0 {
		return &w.attempts[max(0, len(w.attempts)-1-w.rnd.IntN(3))]
	}
	return &w.attempts[w.rnd.IntN(len(w.attempts))]
}

// recover opens another epoch. Copies are made meanwhile, and manifests of claims of before land; then homes go on with what was found.
func (w *keeping) recover() {
	if err := w.k.Distrust(context.Background(), w.o); err != nil {
		w.t.Fatal(err)
	}
	w.before = func(what string) error {
		if what == "etcd" && w.rnd.IntN(3) == 0 {
			w.copies = append(w.copies, w.kv.Copy())
		}
		if a := w.pick(); a != nil && w.rnd.IntN(6) == 0 {
			w.write(*a)
		}
		return nil
	}
	w.open()
	w.before = nil
	for _, c := range w.claimed() {
		a := attempt{c, c.Home}
		if w.attempts = append(w.attempts, a); w.rnd.IntN(2) == 0 && w.stands(a) {
			w.complete(a)
		}
	}
}

func (w *keeping) id() (id claims.ID) {
	w.ids++
	binary.BigEndian.PutUint64(id[8:], w.ids)
	id[0] = 1
	return id
}

// manifestKey is the key of the manifest of an attempt.
func (w *keeping) read(a attempt) (accept.Manifest, bool) {
	b, _, err := w.buckets[a.by].Get(context.Background(), layout.Accepted(a.Identity), objstore.GetOptions{})
	if err != nil {
		return accept.Manifest{}, false
	}
	m, err := accept.ParseManifest(b)
	if err != nil {
		w.t.Fatal(err)
	}
	return m, true
}

// write brings the manifest of an attempt into its region, whether the claim is still there or not.
func (w *keeping) write(a attempt) {
	m := manifestOf(a.by, a.Identity, a.Hash, a.Stamp)
	_, _ = w.buckets[a.by].Create(context.Background(), m.Key(), m.Marshal(), objstore.PutOptions{})
	if m, there := w.read(a); there && m.FrameSHA256 == a.Hash && m.Stamp().Compare(a.Stamp) < 0 {
		_, _ = w.buckets[a.by].Create(context.Background(), layout.Affirmation(a.Identity, a.Stamp), []byte("{}"), objstore.PutOptions{})
	}
}

// stands reports whether the attempt's manifest is there, and says that it stands for it.
func (w *keeping) stands(a attempt) bool {
	m, there := w.read(a)
	if !there || m.FrameSHA256 != a.Hash {
		return false
	}
	w.write(a)
	return true
}

func (w *keeping) complete(a attempt) {
	got := w.do(claims.Op{Kind: claims.DoComplete, Identity: a.Identity, Hash: a.Hash, ID: a.ID, Region: a.by, Epoch: a.Stamp.Epoch})
	if got.Outcome != claims.Decided || got.Claim.Home != a.by {
		return
	}
	if was, there := w.truth[a.Identity]; there && (was.Hash != a.Hash || was.by != a.by) {
		w.t.Fatalf("seed %d: %s is complete as %+v and as %+v", w.seed, a.Identity, was, a)
	}
	w.truth[a.Identity] = a
}

// claimed are the claims in etcd.
func (w *keeping) claimed() (out []claims.Claim) {
	for _, e := range wholeEtcd(w.kv, keys.Claims()) {
		boot, start, err := keys.ParseClaim(e.Key)
		c, err2 := claims.ParseClaim(boot, start, e.Value)
		if err != nil || err2 != nil {
			w.t.Fatal(err, err2)
		}
		if c.State == claims.Claimed {
			c.Stamp.Fence = uint64(e.Modified)
		}
		out = append(out, c)
	}
	return out
}

// said is what the epoch that is open says of an identity and a frame: "own", another "frame", or "free".
func (w *keeping) said(id identity.Batch, hash identity.Digest) string {
	for _, c := range w.claimed() {
		switch {
		case c.Identity == id && c.Hash == hash:
			return "own"
		case c.Identity.Intersects(id):
			return "frame"
		}
	}
	known := claims.Folds{At: 1 << 40, Epoch: w.o.Epoch.Number}
	a, looked, err := w.k.Folded(w.k.Folder(w.o.Epoch, w.o.Retired)).Decide(context.Background(), claims.Op{Kind: claims.DoClaim, Identity: id, Hash: hash}, known)
	switch {
	case err != nil:
		return err.Error()
	case a.Outcome == claims.Decided || looked.Bound:
		return "own"
	case a.Outcome != 0:
		return "frame"
	}
	return "free"
}

func TestWhatIsKeptOfARetiredRegion(t *testing.T) {
	seeds, first := uint64(4000), uint64(0)
	if n, err := strconv.ParseUint(os.Getenv("REGIONS_SIM_SCHEDULES"), 10, 32); err == nil && n > seeds {
		seeds = n
	}
	if n, err := strconv.ParseUint(os.Getenv("REGIONS_SIM_SEED"), 10, 63); err == nil {
		first = n
	}
	if testing.Short() {
		seeds = 400
	}
	counts := map[string]int{}
	for seed := first; seed < first+seeds; seed++ {
		w := &keeping{world: newWorld(t, sites...), rnd: rand.New(rand.NewPCG(seed, 84)), seed: seed, truth: map[identity.Batch]attempt{}}
		w.k = w.keeper(sites...)
		w.open()
		for range 20 + w.rnd.IntN(60) {
			w.step()
		}
		w.retire(counts)
	}
	t.Logf("%d schedules: %v", seeds, counts)
	for _, what := range []string{"died", "ended", "the last copy", "own of eu", "own of us", "replayed"} {
		if counts[what] == 0 {
			t.Errorf("%q never happened", what)
		}
	}
}

// retire loses the region, retires it, restores etcd, and compares what is said then with the truth.
func (w *keeping) retire(counts map[string]int) {
	w.t.Helper()
	ctx := context.Background()
	w.copies = append(w.copies, w.kv.Copy())
	away := func(what string) error {
		if what == "us" {
			return errDown
		}
		return nil
	}
	n, dies := 0, w.rnd.IntN(80)
	w.before = func(what string) error {
		if n++; n > dies && w.rnd.IntN(2) == 0 {
			return fmt.Errorf("%w: %w", objstore.ErrUnknown, errDead)
		}
		if what == "etcd" && w.rnd.IntN(3) == 0 {
			w.copies = append(w.copies, w.kv.Copy())
		}
		return away(what)
	}
	last := len(w.copies) - 1 // from here on a copy has everything that was decided
	_, err := w.k.Retire(ctx, "us", false)
	w.before = away
	if s, err := w.k.Status(ctx); err != nil || len(s.Records["asia"].Retired) == 0 || len(s.Records["eu"].Retired) == 0 {
		return // it has not begun, and etcd lost with a region at once is another matter
	}
	ended := err == nil
	counts[map[bool]string{true: "ended", false: "died"}[ended]]++
	for range 1 + w.rnd.IntN(2) {
		at := w.rnd.IntN(len(w.copies))
		if w.rnd.IntN(2) == 0 {
			at = last + w.rnd.IntN(len(w.copies)-last)
		}
		w.kv.Restore(w.copies[at], 1+uint64(w.rnd.IntN(2)))
		if at < last && !ended {
			// Etcd was lost with the region at once: nobody may know any more what was decided there.
			for id, a := range w.truth {
				if a.by == "us" {
					delete(w.truth, id)
				}
			}
		} else if at >= last {
			counts["the last copy"]++
		}
		for range w.rnd.IntN(30) {
			if len(w.sent) > 0 {
				r, err := w.kv.Commit(ctx, w.sent[w.rnd.IntN(len(w.sent))])
				if err == nil && r.Held && slices.ContainsFunc(r.Parts, func(p claims.PartResult) bool { return p.Held }) {
					counts["replayed"]++
				}
			}
		}
		s, err := w.k.Status(ctx)
		if err == nil && s.Open == nil {
			// The copy is of the epoch that is open, as the same cluster: whoever has served it notices.
			err = w.k.Distrust(ctx, regions.Opened{Epoch: s.Epoch})
		}
		if err != nil {
			w.t.Fatal(err)
		}
		// Where etcd was restored before the retirement has ended an operator has to say that what only the region had may be forgotten.
		if _, err := w.k.Open(ctx, true); errors.Is(err, regions.ErrForgets) && !ended {
			counts["forced"]++
			if w.o, err = w.k.Retire(ctx, "us", true); err != nil {
				w.t.Fatalf("seed %d: %v", w.seed, err)
			}
		}
		w.open()
		ended = true
	}
	for id, a := range w.truth {
		got := w.said(id, a.Hash)
		if counts[got+" of "+string(a.by)]++; got != "own" {
			w.t.Fatalf("seed %d: of %s, which is %.4s of %s with stamp %v, is said: %s", w.seed, id, a.Hash, a.by, a.Stamp, got)
		}
	}
}
