package claims_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// caller is a collector that has one batch at a time accepted: it follows docs/protocol/linearizer.md.
type caller struct {
	w      *world
	n      int
	region claims.Region

	id    identity.Batch
	hash  identity.Digest
	claim claims.ID
	next  func()
	busy  bool // an operation is under way
	held  claims.Claim
	calls uint64
	// answers that were given, of any kind.
	answers int
	ticket  claims.Ticket
	at      *coordinator
	last    claims.Op
	expects func(claims.Answer)
}

func (k *caller) step() {
	switch {
	case k.busy:
		// Some leave before they are answered.
		if k.w.rnd.IntN(40) == 0 && !k.w.quiet && k.at.callers[k.ticket] == k {
			delete(k.at.callers, k.ticket)
			k.at.told[k.ticket] = true
			k.at.Cancel(k.ticket)
			k.busy, k.next = false, nil
		}
	case k.next != nil:
		k.next()
	default:
		k.begin()
	}
}

// begin takes another batch, or does one of the reconciler's tasks.
func (k *caller) begin() {
	w := k.w
	lengths := []uint64{1, 2, 3}
	n := lengths[w.rnd.IntN(len(lengths))]
	start := uint64(w.rnd.IntN(4))
	k.id = identity.Batch{Agent: "a", Boot: string(rune('b' + w.rnd.IntN(2))), SeqStart: start, SeqEnd: start + n - 1}
	k.hash = identity.Digest{1 + byte(w.rnd.IntN(2))}
	k.newClaim()
	switch w.rnd.IntN(9) {
	case 0, 8:
		k.submit(claims.Op{Kind: claims.DoFoldable, Identity: k.id, At: w.now.UnixNano()}, k.fold)
	case 1, 2:
		k.submit(claims.Op{Kind: claims.DoLookup, Identity: k.id}, k.reconcile)
	default:
		k.next = k.ask
	}
}

func (k *caller) newClaim() {
	k.calls++
	k.claim = claims.ID{byte(k.n + 1)}
	binary.BigEndian.PutUint64(k.claim[8:], k.calls)
}

func (k *caller) op(kind claims.Kind, epoch uint64) claims.Op {
	return claims.Op{Kind: kind, Identity: k.id, Hash: k.hash, ID: k.claim, Region: k.region, Epoch: epoch, At: k.w.now.UnixNano()}
}

func (k *caller) submit(op claims.Op, expects func(claims.Answer)) {
	c := k.w.coordinators[k.w.rnd.IntN(len(k.w.coordinators))]
	t, err := c.Submit(k.w.now, op)
	if err != nil {
		if !errors.Is(err, claims.ErrFull) && !errors.Is(err, claims.ErrEpoch) {
			k.w.failf("%v", err)
		}
		k.next = nil
		return
	}
	k.busy, k.ticket, k.at, k.last, k.expects, k.next = true, t, c, op, expects, nil
	c.callers[t] = k
}

// told is the end of an operation.
func (k *caller) told(d claims.Done) {
	k.busy = false
	if d.Err == nil {
		k.expects(d.Answer)
		return
	}
	// The same again, the claim anew, or the sender is told to try again.
	op, expects := k.last, k.expects
	switch k.next = nil; k.w.rnd.IntN(3) {
	case 0:
		k.next = func() { k.submit(op, expects) }
	case 1:
		k.next = k.ask
	}
}

func (k *caller) done() { k.answers++; k.next = nil }

func (k *caller) ask() {
	op := k.op(claims.DoClaim, 0)
	if l, ok := k.w.coordinators[k.w.rnd.IntN(len(k.w.coordinators))].looker.Guess(k.id); ok && k.w.rnd.IntN(2) == 0 {
		op.Looked = l
	}
	k.submit(op, k.claimed)
}

// fold goes on with what may be folded: heads first, then the store; a boot of which nothing is left there is forgotten.
func (k *caller) fold(a claims.Answer) {
	w := k.w
	boot := k.id.BootOf()
	if len(a.Claims) == 0 {
		if k.next = nil; a.Folds.Modified == 0 || w.rnd.IntN(2) == 0 {
			k.done()
			return
		}
		k.next = func() {
			k.submit(claims.Op{Kind: claims.DoForget, Identity: k.id, Base: a.Folds.Modified}, func(claims.Answer) { k.done() })
		}
		return
	}
	k.next = func() {
		var add []folds.Entry
		for _, c := range a.Claims {
			e, err := folds.EntryOf(c)
			if err != nil {
				w.failf("%v", err)
			}
			add = append(add, e)
		}
		m, err := w.folder().Fold(context.Background(), boot, a.Folds, add)
		if err != nil {
			w.failf("%v", err)
		}
		op := claims.Op{Kind: claims.DoFold, Identity: k.id, Base: a.Folds.Modified, Heads: m.Heads, Above: m.Head.Above(), Claims: a.Claims}
		k.next = func() {
			k.submit(op, func(b claims.Answer) {
				if b.Outcome == claims.Applied {
					w.folds++
				}
				k.done()
			})
		}
	}
}

func (k *caller) claimed(a claims.Answer) {
	c := a.Claim
	switch a.Outcome {
	case claims.Held:
		k.holds(c)
	case claims.Pending:
		// Somebody's with our hash: take it over, or let the sender try again.
		if k.next = nil; k.w.rnd.IntN(2) == 0 || k.w.quiet {
			k.newClaim()
			op := k.op(claims.DoTakeOver, a.Epoch)
			op.Expect = c.ID
			// Of a recovered claim its home region alone can go on; in the end somebody there does.
			if c.Recovered && c.Home == k.region {
				k.w.failf("the home region has to wait for %+v", c)
			}
			if c.Recovered && k.w.quiet {
				k.region = c.Home
				op = k.op(claims.DoClaim, 0)
			}
			k.next = func() { k.submit(op, k.claimed) }
		}
	case claims.Decided:
		k.decided(a)
	case claims.Conflict:
		k.w.conflict(k.id, k.hash, c.Hash)
		k.done()
	case claims.RangeConflict:
		k.w.ranged = append(k.w.ranged, k.id)
		if _, ok := k.w.acked[k.id]; ok {
			k.w.failf("%s has a range conflict after it was acknowledged", k.id)
		}
		k.done()
	case claims.Folded:
		k.folded(a)
	case claims.Contested, claims.Moved:
		k.contested(a)
	default:
		k.w.failf("%s answers a claim", a.Outcome)
	}
}

// contested: the sender tries again. What nobody completes, the reconciler of its home does, or releases.
func (k *caller) contested(a claims.Answer) {
	if k.next = nil; a.Claim.State == claims.Claimed && (k.w.quiet || k.w.rnd.IntN(3) == 0) {
		k.settleClaim(a.Claim, a.Epoch)
	}
}

// decided: the home region answers, after its journal has the batch; others only once that is noted.
func (k *caller) decided(a claims.Answer) {
	c := a.Claim
	if c.Hash != k.hash {
		k.w.failf("%s is decided for another hash", k.id)
	}
	m, ok := k.w.manifests[c.Home][k.id]
	if !ok || m.hash != c.Hash {
		k.w.failf("%s is decided and has no manifest in %s", k.id, c.Home)
	}
	if c.Home != k.region {
		if c.State == claims.Settled {
			k.w.ack(k.id, k.hash)
			k.done()
			return
		}
		k.next = nil // RETRY
		if k.w.quiet {
			k.done()
		}
		return
	}
	k.w.count(k.id, c.Home)
	k.w.ack(k.id, k.hash)
	k.claim = c.ID
	op := k.op(claims.DoSettle, a.Epoch)
	k.next = func() { k.submit(op, func(claims.Answer) { k.done() }) }
}

// folded: heads of folds say which hash the identity has, or that it is free; then it is claimed with what was looked at.
func (k *caller) folded(a claims.Answer) {
	at := k.at
	k.next = func() {
		f, err := at.looker.Look(context.Background(), k.id, k.hash, a.Folds)
		if err != nil {
			k.w.failf("%v", err)
		}
		if k.next = nil; !f.Looked.Suffices(a.Folds) {
			k.w.failf("%+v was looked at, and the store had said %+v", f.Looked, a.Folds)
		}
		switch f.Verdict {
		case folds.Free:
			op := k.op(claims.DoClaim, 0)
			op.Looked = f.Looked
			k.next = func() { k.submit(op, k.claimed) }
			return
		case folds.Same:
			if k.w.counted[k.id] != f.Entry.Home {
				k.w.failf("%s is folded with the home %s, and counted in %s", k.id, f.Entry.Home, k.w.counted[k.id])
			}
			k.w.ack(k.id, k.hash)
		case folds.OtherHash:
			m, there := k.w.manifests[f.Entry.Home][k.id]
			if !there || folds.DigestOf(m.hash) != f.Entry.Digest {
				k.w.failf("%s is folded for another frame than that of its home", k.id)
			}
			k.w.conflict(k.id, k.hash, m.hash)
		default:
			k.w.ranged = append(k.w.ranged, k.id)
			if _, ok := k.w.acked[k.id]; ok {
				k.w.failf("%s meets %+v, and was acknowledged", k.id, f.Entry)
			}
		}
		k.done()
	}
}

// holds: write the manifest, or find the one that is there.
func (k *caller) holds(c claims.Claim) {
	// Calls of the home region share a recovered claim.
	if c.Recovered {
		k.claim = c.ID
	}
	if c.ID != k.claim || c.Home != k.region || c.Hash != k.hash || c.Stamp.Fence == 0 || c.Stamp.Epoch == 0 {
		k.w.failf("not the claim of caller %d: %+v", k.n, c)
	}
	k.held = c
	k.next = k.write
}

func (k *caller) write() {
	id, c, at := k.id, k.held, k.w.manifests[k.region]
	create := func() {
		if _, there := at[id]; !there {
			at[id] = manifest{c.Hash, c.Stamp}
		}
	}
	switch n := k.w.rnd.IntN(6); {
	case n == 0 && !k.w.quiet:
		k.w.lateCreates = append(k.w.lateCreates, create) // unknown: create again
		return
	case n == 1 && !k.w.quiet:
		k.next = nil // the collector dies
		return
	}
	create()
	m := at[id]
	if m.hash != c.Hash {
		// The key of this region is another frame's for ever: claim for that one, and complete it.
		op := k.op(claims.DoReplace, c.Stamp.Epoch)
		op.Hash = m.hash
		k.next = func() { k.submit(op, func(a claims.Answer) { k.replaced(op.Hash, a) }) }
		return
	}
	if older(m.stamp, c.Stamp) {
		at[id] = manifest{m.hash, c.Stamp} // affirmed
	}
	op := k.op(claims.DoComplete, c.Stamp.Epoch)
	op.ID = c.ID
	k.next = func() { k.submit(op, k.claimed) }
}

func (k *caller) replaced(hash identity.Digest, a claims.Answer) {
	if a.Outcome != claims.Held {
		k.next = nil
		return
	}
	k.hash = hash
	k.holds(a.Claim)
}

func older(a, b claims.Stamp) bool {
	return a.Epoch < b.Epoch || a.Epoch == b.Epoch && a.Fence < b.Fence
}

// reconcile goes on with one of the claims that a lookup has found.
func (k *caller) reconcile(a claims.Answer) {
	k.next = nil
	if a.Outcome != claims.Found {
		k.w.failf("%s answers a lookup", a.Outcome)
	}
	for i, c := range a.Claims {
		if !c.Identity.Intersects(k.id) || i > 0 && a.Claims[i-1].Identity.Compare(c.Identity) >= 0 {
			k.w.failf("lookup of %s found %+v", k.id, a.Claims)
		}
	}
	if len(a.Claims) > 0 {
		k.settleClaim(a.Claims[0], a.Epoch)
	} else {
		k.done()
	}
}

// settleClaim is what the reconciler of the home region does: complete, settle, or fence and release.
func (k *caller) settleClaim(c claims.Claim, epoch uint64) {
	k.id, k.hash, k.region = c.Identity, c.Hash, c.Home
	m, there := k.w.manifests[c.Home][c.Identity]
	switch {
	case c.State == claims.Durable:
		k.w.count(k.id, c.Home)
		k.claim = c.ID
		op := k.op(claims.DoSettle, epoch)
		k.next = func() { k.submit(op, func(claims.Answer) { k.done() }) }
	case c.State == claims.Settled:
		k.done()
	case c.Recovered:
		if !there || m.hash != c.Hash {
			k.w.failf("recovered without a manifest: %+v", c)
		}
		k.holds(c)
	case there && m.hash == c.Hash:
		// Fenced by an id of its own, so that the stamp of the affirmation is the newest.
		k.takeThen(c, epoch, k.claimed)
	default:
		k.takeThen(c, epoch, func(a claims.Answer) {
			if k.next = nil; a.Outcome != claims.Held {
				return
			}
			op := k.op(claims.DoRelease, epoch)
			k.next = func() { k.submit(op, func(claims.Answer) { k.done() }) }
		})
	}
}

func (k *caller) takeThen(c claims.Claim, epoch uint64, then func(claims.Answer)) {
	k.newClaim()
	op := k.op(claims.DoTakeOver, epoch)
	op.Expect = c.ID
	k.next = func() { k.submit(op, then) }
	if bytes.Equal(op.ID[:], c.ID[:]) {
		k.w.failf("a claim id came twice")
	}
}
