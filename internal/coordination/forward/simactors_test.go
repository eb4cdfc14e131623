package forward

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// highest is the greatest stamp of a manifest and its affirmations.
func (w *world) highest(r *simRegion, m accept.Manifest) claims.Stamp {
	top := m.Stamp()
	prefix := strings.TrimSuffix(layout.Affirmation(m.Identity, claims.Stamp{}), fmt.Sprintf("%020d-%020d.json", 0, 0))
	for o, err := range objstore.List(context.Background(), r.store, objstore.ListOptions{Prefix: prefix}) {
		var s claims.Stamp
		if err == nil {
			_, err = fmt.Sscanf(strings.TrimPrefix(o.Key, prefix), "%020d-%020d.json", &s.Epoch, &s.Fence)
		}
		if err != nil {
			w.failf("%s: %v", o.Key, err)
		}
		if s.Compare(top) > 0 {
			top = s
		}
	}
	return top
}

// call is a submission to a collector of a region.
type call struct {
	*actor
	id    identity.Batch
	hash  identity.Digest
	frame []byte
	gen   uint32
	op    claims.Op
}

// collector has one batch accepted, and may die anywhere.
func (w *world) collector(r *simRegion) {
	id, color := w.someIdentity(), w.rnd.IntN(2)
	frame := frameOf(id, color)
	w.start("collector "+string(r.name), r, func(a *actor) {
		c := &call{actor: a, id: id, frame: frame, hash: identity.Sum(frame)}
		for range 1 + w.rnd.IntN(3) {
			if err := c.accept(); err == nil {
				return
			}
		}
	})
}

var errAgain = errors.New("try again")

func (c *call) blob() error {
	for ; c.gen < 9; c.gen++ {
		_, err := bucket{c.actor, c.region.store}.Create(context.Background(), layout.Blob(c.hash, c.gen), c.frame, objstore.PutOptions{SHA256: c.hash})
		if err != nil && !errors.Is(err, objstore.ErrExists) {
			return err
		}
		if _, err = (bucket{c.actor, c.region.store}).Head(context.Background(), layout.Blob(c.hash, c.gen)); err == nil {
			return nil
		} else if !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
	}
	return errAgain
}

// standing is the read of the marker, after the manifest.
func (c *call) standing() error {
	for {
		_, err := bucket{c.actor, c.region.store}.Head(context.Background(), layout.Condemned(c.hash, c.gen))
		if errors.Is(err, objstore.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		c.gen++
		if err := c.blob(); err != nil {
			return err
		}
	}
}

func (c *call) change(k claims.Kind, op claims.Op) (claims.Answer, error) {
	op.Kind, op.At = k, c.w.now.UnixNano()
	return linear{c.actor}.Change(context.Background(), op)
}

func (c *call) accept() error {
	c.gen = 0
	if err := c.blob(); err != nil {
		return err
	}
	c.op = claims.Op{Identity: c.id, Hash: c.hash, ID: c.w.claimID(), Region: c.region.name, Epoch: c.w.epoch.Number}
	a, err := c.change(claims.DoClaim, c.op)
	if err != nil {
		return err
	}
	if a.Outcome == claims.Pending && a.Claim.Home == c.region.name {
		a.Outcome = claims.Held
	}
	if a.Outcome == claims.Pending {
		c.op.Expect, c.op.Epoch, c.op.ID = a.Claim.ID, a.Epoch, c.w.claimID()
		if a, err = c.change(claims.DoTakeOver, c.op); err != nil {
			return err
		}
	}
	switch a.Outcome {
	case claims.Held:
		return c.held(a.Claim)
	case claims.Decided:
		return c.decided(a.Claim)
	case claims.Conflict, claims.RangeConflict:
		c.refuse(c.id, c.hash)
		return nil
	}
	return errAgain
}

// held: the manifest, and everything behind it.
func (c *call) held(claim claims.Claim) error {
	c.op.ID, c.op.Epoch = claim.ID, claim.Stamp.Epoch
	b, key := bucket{c.actor, c.region.store}, layout.Accepted(c.id)
	m := accept.Manifest{
		AuthorityID: "authority", Identity: c.id, FrameSHA256: c.hash, FrameBytes: uint64(len(c.frame)), RawBlobKey: layout.Blob(c.hash, c.gen),
		AcceptedAt: c.w.now.UnixNano(), CollectorID: c.name, WireVersion: 1, FrameVersion: 1, AttemptID: claim.ID.String(), RecordCount: c.id.Count(), MinTime: 1, MaxTime: 2,
		HomeRegion: string(c.region.name), ClaimEpoch: claim.Stamp.Epoch, ClaimFence: claim.Stamp.Fence,
	}
	// Some die with the create under way.
	if c.w.oneIn(6) {
		store, late := c.region.store, m.Marshal()
		c.w.late = append(c.w.late, func() { _, _ = store.Create(context.Background(), key, late, objstore.PutOptions{}) })
		panic(killed{})
	}
	body, created, err := objstore.CreateOrGet(context.Background(), b, key, m.Marshal(), accept.MaxObjectBytes, objstore.PutOptions{})
	if err != nil {
		return err
	}
	mine := c.hash
	if !created {
		if m, err = accept.ParseManifest(body); err != nil {
			c.w.failf("%v", err)
		}
		if m.FrameSHA256 != c.hash && claim.Bound {
			return errAgain
		}
		if m.FrameSHA256 != c.hash {
			c.op.Hash, mine = m.FrameSHA256, m.FrameSHA256
			a, err := c.change(claims.DoReplace, c.op)
			if err != nil || a.Outcome != claims.Held {
				return errors.Join(errAgain, err)
			}
			claim = a.Claim
		}
		if m.Stamp().Compare(claim.Stamp) < 0 {
			if _, _, err := objstore.CreateOrGet(context.Background(), b, layout.Affirmation(c.id, claim.Stamp), []byte("{}"), 100, objstore.PutOptions{}); err != nil {
				return err
			}
		}
	}
	if mine == c.hash {
		if err := c.standing(); err != nil {
			return err
		}
	} else if st, err := accept.Keep(context.Background(), accept.Config{Store: b, AuthorityID: "authority", CollectorID: c.name, Clock: simClock{c.w}}, b, key); err != nil || st != accept.Stands {
		return errors.Join(errAgain, err)
	}
	a, err := c.change(claims.DoComplete, c.op)
	if err != nil || a.Outcome != claims.Decided || a.Claim.Home != c.region.name {
		return errors.Join(errAgain, err)
	}
	return c.home(m, a.Claim)
}

// decided: what the home answers, and what others do.
func (c *call) decided(claim claims.Claim) error {
	switch {
	case claim.Home != c.region.name && claim.State == claims.Settled:
		c.ack(c.id, c.hash)
		return nil
	case claim.Home != c.region.name:
		return errAgain
	}
	b, _, err := bucket{c.actor, c.region.store}.Get(context.Background(), layout.Accepted(c.id), objstore.GetOptions{})
	if err != nil {
		return err
	}
	m, err := accept.ParseManifest(b)
	if err != nil || m.FrameSHA256 != claim.Hash {
		c.w.failf("%s is decided in %s, and its manifest is not there: %v", c.id, claim.Home, err)
	}
	if err := c.standing(); err != nil {
		return err
	}
	return c.home(m, claim)
}

// home enters, answers and settles.
func (c *call) home(m accept.Manifest, claim claims.Claim) error {
	run := c.writer()
	e := m.Entry(journal.Duplicate)
	e.HomeRegion, e.ClaimEpoch = string(c.region.name), claim.Stamp.Epoch
	if _, err := run.Add(e); err != nil {
		c.w.failf("%v", err)
	}
	if err := run.Close(context.Background()); err != nil {
		return err
	}
	c.pause()
	if claim.Hash == c.hash {
		c.ack(c.id, c.hash)
	} else {
		c.ackDecided(c.id, claim.Hash)
		c.refuse(c.id, c.hash)
	}
	if c.w.rnd.IntN(2) == 0 {
		op := c.op
		op.ID, op.Hash, op.Epoch = claim.ID, claim.Hash, claim.Stamp.Epoch
		_, _ = c.change(claims.DoSettle, op)
	}
	return nil
}

func (a *actor) ack(id identity.Batch, hash identity.Digest) {
	if was, ok := a.w.acked[id]; ok && was != hash || a.w.refused[id][hash] {
		a.w.failf("%s was answered with two hashes", id)
	}
	a.w.stats["acked"]++
	a.w.acked[id] = hash
}

// ackDecided: the sender of another frame hears that this one holds the identity.
func (a *actor) ackDecided(id identity.Batch, hash identity.Digest) {
	if was, ok := a.w.acked[id]; ok && was != hash {
		a.w.failf("%s was answered with two hashes", id)
	}
}

func (a *actor) refuse(id identity.Batch, hash identity.Digest) {
	if a.w.acked[id] == hash {
		a.w.failf("%s is in conflict after it was accepted", id)
	}
	if a.w.refused[id] == nil {
		a.w.refused[id] = map[identity.Digest]bool{}
	}
	a.w.stats["refused"]++
	a.w.refused[id][hash] = true
}

// schedule runs a world to its end.
func schedule(t testing.TB, seed uint64) *world {
	w := newWorld(t, seed)
	living := func() *simRegion {
		for {
			if r := w.regions[w.rnd.IntN(len(w.regions))]; !r.retired {
				return r
			}
		}
	}
	retires := w.rnd.IntN(3) == 0
	for steps := 150 + w.rnd.IntN(500); steps > 0; steps-- {
		w.now = w.now.Add(time.Duration(w.rnd.IntN(4000)) * time.Millisecond)
		switch n := w.rnd.IntN(100); {
		case n < 12 && len(w.actors) < 8:
			w.collector(living())
		case n < 16 && len(w.actors) < 10:
			w.reconciler(living(), 1+w.rnd.IntN(3))
		case n < 17 && len(w.actors) < 10:
			w.audit(living())
		case n < 20 && len(w.actors) < 12:
			w.collect(living())
		case n == 20 && w.rnd.IntN(2) == 0:
			w.copies = append(w.copies, w.kv.Copy())
		case n == 20 && w.rnd.IntN(3) == 0:
			var gone *simRegion
			if retires {
				gone, retires = living(), false
			}
			w.recover(gone)
		case n < 24 && len(w.late) > 0:
			i := w.rnd.IntN(len(w.late))
			do := w.late[i]
			w.late = append(w.late[:i], w.late[i+1:]...)
			do()
		case n < 26 && len(w.actors) > 0:
			w.step(w.actors[w.rnd.IntN(len(w.actors))], false)
		case len(w.actors) > 0:
			w.step(w.actors[w.rnd.IntN(len(w.actors))], true)
		}
	}
	w.settleDown()
	w.check()
	return w
}

// settleDown: every process is gone, and then reconcilers and audits alone go on.
func (w *world) settleDown() {
	for len(w.actors) > 0 {
		w.step(w.actors[0], false)
	}
	for _, do := range w.late {
		do()
	}
	// What came late, and another restore: now nothing may win that did not before.
	if w.rnd.IntN(2) == 0 {
		w.recover(nil)
	}
	w.late, w.quiet = nil, true
	for range 4 {
		w.now = w.now.Add(2 * time.Minute)
		for _, r := range w.regions {
			if r.retired {
				continue
			}
			w.reconciler(r, 1)
			w.audit(r)
			for len(w.actors) > 0 {
				w.step(w.actors[w.rnd.IntN(len(w.actors))], true)
				w.now = w.now.Add(time.Second)
			}
		}
	}
}

// check is what holds in the end.
func (w *world) check() {
	by := map[identity.Batch]*simRegion{}
	for _, r := range w.regions {
		if r.retired {
			continue
		}
		for id, e := range w.entries(r) {
			if other := by[id]; other != nil {
				w.failf("%s is counted in %s and %s", id, other.name, r.name)
			}
			by[id] = r
			if was, ok := w.decided[id]; !ok || was != e.SHA256 {
				w.failf("the journal of %s has %s with %s, which was decided for %s", r.name, id, e.SHA256, was)
			}
		}
	}
	held := map[identity.Batch]claims.Claim{}
	for _, c := range w.all() {
		held[c.Identity] = c
		home := w.region(c.Home)
		if home.retired {
			w.failf("%s is held for %s, which was retired", c.Identity, c.Home)
		}
		switch {
		// It may have been acknowledged before the restore, so nobody but a person, or its sender, may go on with it.
		case c.State == claims.Claimed && c.Recovered && !w.standing(home, accept.Manifest{FrameSHA256: c.Hash}):
			w.stats["frameless and recovered in the end"]++
		case c.State != claims.Settled:
			w.failf("%s is %s for ever: %+v", c.Identity, c.State, c)
		default:
			e := w.entries(home)[c.Identity]
			if e == nil || e.SHA256 != c.Hash {
				w.failf("%s is settled, and not in the journal of %s", c.Identity, home.name)
			}
			w.checkFrame(home, c)
		}
	}
	for id, hash := range w.acked {
		if r := by[id]; r == nil && w.folded[id] != hash {
			w.failf("%s was acknowledged, and no region counts it", id)
		} else if r != nil && w.entries(r)[id].SHA256 != hash {
			w.failf("%s was acknowledged with another hash", id)
		}
	}
	w.checkManifests(by, held)
}

// checkFrame: what is settled has its bytes, in a generation that is not condemned.
func (w *world) checkFrame(r *simRegion, c claims.Claim) {
	for gen := range uint32(20) {
		_, err := r.store.Head(context.Background(), layout.Blob(c.Hash, gen))
		_, condemned := r.store.Head(context.Background(), layout.Condemned(c.Hash, gen))
		if err == nil && condemned != nil {
			return
		}
	}
	w.failf("the frame of %s is not in %s", c.Identity, r.name)
}

// checkManifests: each manifest is counted, a secondary copy, a loser with its record, or waits for its sender.
func (w *world) checkManifests(by map[identity.Batch]*simRegion, held map[identity.Batch]claims.Claim) {
	for _, r := range w.regions {
		if r.retired {
			continue
		}
		for _, m := range w.manifests(r) {
			winner, decided := w.decided[m.Identity]
			_, err := r.store.Head(context.Background(), layout.Quarantine(m.Identity, m.FrameSHA256))
			switch {
			case by[m.Identity] == r && winner == m.FrameSHA256:
				w.stats["counted"]++
			case decided && winner == m.FrameSHA256:
				w.stats["secondary in the end"]++
				if err == nil {
					w.failf("%s is in quarantine in %s, and won", m.Identity, r.name)
				}
			case err == nil:
				w.stats["losers in the end"]++
			case decided:
				w.failf("%s lost in %s, and nothing says so", m.Identity, r.name)
			default:
				if c, ok := held[m.Identity]; ok && c.Recovered || w.contested(held, m.Identity) {
					break
				}
				if st := w.standing(r, m); st {
					w.failf("%s in %s is nobody's in the end", m.Identity, r.name)
				}
				w.stats["frameless in the end"]++
			}
		}
	}
}

// contested: a claim that nobody can go on with stands in the way.
func (w *world) contested(held map[identity.Batch]claims.Claim, id identity.Batch) bool {
	for other, c := range held {
		if other.Intersects(id) && c.State == claims.Claimed {
			return true
		}
	}
	return false
}

// standing: the bytes of the manifest's frame are there, or a range that was decided meets it.
func (w *world) standing(r *simRegion, m accept.Manifest) bool {
	for gen := range uint32(20) {
		if _, err := r.store.Head(context.Background(), layout.Blob(m.FrameSHA256, gen)); err == nil {
			return true
		}
	}
	return false
}

// TestSimulation: whatever dies, comes late, is restored or retired, each batch is counted once, nothing that was acknowledged is
// missing, and in the end no claim is held.
func TestSimulation(t *testing.T) {
	n := uint64(1200)
	if testing.Short() {
		n = 300
	}
	sum := map[string]int{}
	for seed := range n {
		if t.Failed() {
			return
		}
		for what, c := range schedule(t, seed).stats {
			sum[what] += c
		}
	}
	t.Logf("%v", sum)
	if testing.Short() {
		return // too few for what is rare
	}
	for _, what := range []string{"acked", "bound", "refused", "collected", "recoveries", "retired", "replaced", "affirmed", "settled", "counted", "secondary in the end", "losers in the end",
		string(Completed), string(Durable), string(Released), string(Moved), string(Ours), string(Secondary), string(Loser), string(Open), string(Frameless)} {
		if sum[what] == 0 {
			t.Errorf("no schedule has %q", what)
		}
	}
}
