package claims

import (
	"fmt"
	"slices"
)

// decision is an answer that holds if the part of its draft is done.
type decision struct {
	Answer
	// stamps: Claim is written by the part as claimed, and its fence is the part's revision.
	stamps bool
	// changes: the part writes something for the operation.
	changes bool
}

// at is the answer of a part that was done at a revision.
func (d decision) at(revision int64) Answer {
	if d.stamps {
		d.Claim = stamped(d.Claim, revision)
	}
	return d.Answer
}

func (d *draft) answer(o Outcome, c Claim) decision {
	return decision{Answer: Answer{Outcome: o, Epoch: d.epoch.Number, Claim: c}}
}

// writes is the answer with a claim that the part writes.
func (d *draft) writes(o Outcome, c Claim) decision {
	d.put(c)
	return decision{Answer: Answer{Outcome: o, Epoch: d.epoch.Number, Claim: c}, stamps: true, changes: true}
}

// decide adds an operation to the part. Errors are final: nothing of the operation is in the part. most bounds the claims
// of a boot.
func (d *draft) decide(op Op, most int) (decision, error) {
	if op.Kind == DoFold {
		return d.fold(op), nil
	}
	// A claim of an earlier epoch may be gone, or be another's since.
	if op.Kind != DoClaim && op.Epoch != d.epoch.Number {
		return decision{}, fmt.Errorf("%w: the claim is of epoch %d, the linearizer is in %d", ErrEpoch, op.Epoch, d.epoch.Number)
	}
	if op.Kind != DoRelease && d.epoch.retired(op.Region) {
		return decision{}, fmt.Errorf("%w: region %q is none of this epoch", ErrInvalid, op.Region)
	}
	if !d.base.knows(op.Identity) {
		return decision{}, fmt.Errorf("%w: more than %d", ErrTooMany, most)
	}
	met := d.base.intersecting(op.Identity)
	switch {
	case len(met) == 1 && met[0].Identity == op.Identity:
		d.relyOn(met[0])
		return d.onClaim(op, met[0].Claim), nil
	case len(d.base.summary.Intersecting(op.Identity.SeqStart, op.Identity.SeqEnd)) > 0:
		return d.onFolded(op), nil
	case len(met) > 0:
		return d.onOthers(op, met), nil
	}
	d.relyOnGap(op.Identity)
	return d.onNothing(op, most)
}

// onNothing: no claim shares a sequence number with the identity.
func (d *draft) onNothing(op Op, most int) (decision, error) {
	switch op.Kind {
	case DoRelease:
		return d.answer(Released, Claim{}), nil
	case DoClaim:
	default:
		return d.answer(Moved, Claim{}), nil
	}
	if d.base.more || len(d.base.claims)+len(d.puts) >= most {
		return decision{}, fmt.Errorf("%w: %d", ErrTooMany, most)
	}
	return d.writes(Held, Claim{
		Identity: op.Identity, Hash: op.Hash, State: Claimed, ID: op.ID, Stamp: Stamp{Epoch: d.epoch.Number},
		Home: op.Region, ClaimedAt: op.At,
	}), nil
}

// onFolded: the summary has sequence numbers of the identity. Whether it is one of those that were folded, its home's
// manifest tells.
func (d *draft) onFolded(op Op) decision {
	a := d.answer(Folded, Claim{})
	a.Spans = slices.Clone(d.base.summary.Intersecting(op.Identity.SeqStart, op.Identity.SeqEnd))
	return a
}

// onOthers: identities with another range stand in the way. Only one that is decided stays for certain.
func (d *draft) onOthers(op Op, met []stored) decision {
	by := met[0]
	if i := slices.IndexFunc(met, func(s stored) bool { return s.final() }); i >= 0 {
		by = met[i]
	}
	d.relyOn(by)
	switch {
	case op.Kind == DoRelease:
		// Where another range is claimed, this identity has no claim.
		return d.answer(Released, Claim{})
	case op.Kind != DoClaim:
		return d.answer(Moved, by.Claim)
	case by.final():
		return d.answer(RangeConflict, by.Claim)
	}
	return d.answer(Contested, by.Claim)
}

// onClaim: the identity has a claim.
func (d *draft) onClaim(op Op, c Claim) decision {
	switch op.Kind {
	case DoClaim:
		return d.claim(op, c)
	case DoTakeOver:
		return d.takeOver(op, c)
	case DoComplete:
		return d.complete(op, c)
	case DoSettle:
		return d.settle(op, c)
	case DoReplace:
		return d.replace(op, c)
	}
	return d.release(op, c)
}

// found is the answer to an operation that finds a claim which it does not change.
func (d *draft) found(op Op, c Claim) decision {
	switch {
	case c.Hash != op.Hash && c.final():
		return d.answer(Conflict, c)
	case c.Hash == op.Hash && c.State != Claimed:
		return d.answer(Decided, c)
	}
	return d.answer(Moved, c)
}

func (d *draft) claim(op Op, c Claim) decision {
	switch {
	case c.State != Claimed || c.Hash != op.Hash && c.Bound:
		return d.found(op, c)
	case c.Hash != op.Hash:
		return d.answer(Contested, c)
	// The same id with another region would write a manifest that the claim does not know of.
	case c.ID == op.ID && c.Home == op.Region:
		return d.answer(Held, c) // the answer was lost
	// Nobody takes such a claim over, so the calls of its home go on under its id, whoever made it.
	case (c.Recovered || c.Bound) && c.Home == op.Region:
		return d.answer(Held, c)
	}
	return d.answer(Pending, c)
}

// takeOver puts another holder in the place of the last one. What may have been counted in its home region stays there,
// and so does what is written anew there, unless that region is gone for good: re-homing is a take-over too.
func (d *draft) takeOver(op Op, c Claim) decision {
	rehome := c.Home != op.Region && d.epoch.retired(c.Home) && c.Hash == op.Hash
	switch {
	case c.Hash == op.Hash && c.State == Claimed && c.ID == op.ID && c.Home == op.Region:
		return d.answer(Held, c) // the answer was lost
	case c.Hash != op.Hash || c.ID != op.Expect || c.State != Claimed && !rehome:
		return d.found(op, c)
	case (c.Recovered || c.Bound) && !rehome:
		return d.answer(Contested, c)
	case rehome && (c.final() || c.Recovered):
		// Somebody may have been told that this hash was accepted.
		c.State, c.Bound, c.Recovered = Claimed, true, false
	}
	c.ID, c.Home, c.ClaimedAt, c.DurableAt, c.Stamp = op.ID, op.Region, op.At, 0, Stamp{Epoch: d.epoch.Number}
	return d.writes(Held, c)
}

// complete makes a claim durable. Its home region asks for it, which alone knows that manifest and blob are there.
func (d *draft) complete(op Op, c Claim) decision {
	if c.Hash != op.Hash || c.State != Claimed || c.ID != op.ID || c.Home != op.Region {
		return d.found(op, c)
	}
	c.State, c.DurableAt, c.Recovered, c.Bound = Durable, op.At, false, false
	d.put(c)
	a := d.answer(Decided, c)
	a.changes = true
	return a
}

func (d *draft) settle(op Op, c Claim) decision {
	if c.Hash != op.Hash || c.State != Durable || c.ID != op.ID || c.Home != op.Region {
		return d.found(op, c)
	}
	c.State = Settled
	d.put(c)
	a := d.answer(Decided, c)
	a.changes = true
	return a
}

// replace claims for the hash whose manifest stands in the home region: no other can ever be completed there.
func (d *draft) replace(op Op, c Claim) decision {
	switch {
	case c.State != Claimed || c.ID != op.ID || c.Home != op.Region:
		return d.found(op, c)
	case c.Hash == op.Hash:
		return d.answer(Held, c) // the answer was lost
	case c.Recovered || c.Bound:
		return d.answer(Contested, c)
	}
	c.Hash, c.Stamp = op.Hash, Stamp{Epoch: d.epoch.Number}
	return d.writes(Held, c)
}

func (d *draft) release(op Op, c Claim) decision {
	if c.ID != op.ID || c.Hash != op.Hash || c.State != Claimed || c.Recovered || c.Bound {
		return d.answer(Moved, c)
	}
	d.remove(c)
	a := d.answer(Released, Claim{})
	a.changes = true
	return a
}

// maxFold bounds the claims that one operation folds: each is a request of the transaction.
const maxFold = 32

// fold moves settled claims that became durable before op.At into the summary.
func (d *draft) fold(op Op) decision {
	sum, n := d.base.summary, 0
	for _, s := range d.base.claims {
		if n == maxFold {
			break
		}
		if s.State != Settled || s.DurableAt >= op.At {
			continue
		}
		next := sum.With(Span{Start: s.Identity.SeqStart, End: s.Identity.SeqEnd, Home: s.Home})
		// A summary that is full takes only what makes a span longer.
		if len(next.Spans) > MaxSpans || len(next.homes()) > MaxHomes {
			continue
		}
		sum = next
		d.relyOn(s)
		d.remove(s.Claim)
		n++
	}
	a := d.answer(FoldedAway, Claim{})
	if a.Count, a.changes = n, n > 0; n > 0 {
		d.folded = &sum
	}
	return a
}
