package claims

import (
	"fmt"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/identity"
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
	if d.Outcome == Folded || d.Outcome == Moved {
		d.Folds.At = revision
	}
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
	switch op.Kind {
	case DoFold:
		return d.fold(op), nil
	case DoForget:
		return d.forget(op), nil
	}
	// A claim of an earlier epoch may be gone, or be another's since.
	if op.Kind != DoClaim && op.Epoch != d.epoch.Number {
		return decision{}, fmt.Errorf("%w: the claim is of epoch %d, the linearizer is in %d", ErrEpoch, op.Epoch, d.epoch.Number)
	}
	if op.Kind != DoRelease && d.epoch.Retired(op.Region) {
		return decision{}, fmt.Errorf("%w: %q is none of the regions of epoch %d: it was retired, or is not added yet", ErrNoMember, string(op.Region), d.epoch.Number)
	}
	if !d.base.knows(op.Identity) {
		return decision{}, fmt.Errorf("%w: more than %d", ErrTooMany, most)
	}
	met := d.base.intersecting(op.Identity)
	switch {
	case len(met) == 1 && met[0].Identity == op.Identity:
		d.relyOn(met[0])
		return d.onClaim(op, met[0].Claim), nil
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
	if !d.seen(op.Identity, op.Looked) {
		return decision{Answer: Answer{Outcome: Folded, Epoch: d.epoch.Number, Folds: d.folds()}}, nil
	}
	return d.writes(Held, Claim{
		Identity: op.Identity, Hash: op.Hash, State: Claimed, ID: op.ID, Stamp: Stamp{Epoch: d.epoch.Number},
		Home: op.Region, ClaimedAt: op.At, Bound: op.Looked.Bound,
	}), nil
}

// seen reports whether a claim has looked at everything that may be folded of the boot. Where the store knows of no heads, the part
// notes those that the claim has looked at.
func (d *draft) seen(id identity.Batch, l Looked) bool {
	switch {
	case d.base.headsAt > 0:
		return above(id, d.base.above) || l.Suffices(d.folds())
	case d.heads != nil:
		return above(id, d.above) || l.Heads.covers(d.heads)
	case !l.Suffices(d.folds()):
		return false
	}
	d.heads, d.above, d.looked = l.Heads, l.Above, l.Since
	return true
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
	case c.Recovered && c.Home == op.Region:
		return d.answer(Held, c)
	}
	return d.answer(Pending, c)
}

// takeOver puts another holder in the place of the last one. What may have been counted in its home region stays there.
func (d *draft) takeOver(op Op, c Claim) decision {
	switch {
	case c.Hash == op.Hash && c.State == Claimed && c.ID == op.ID && c.Home == op.Region:
		return d.answer(Held, c) // the answer was lost
	case c.Hash != op.Hash || c.ID != op.Expect || c.State != Claimed:
		return d.found(op, c)
	case c.Recovered:
		return d.answer(Contested, c)
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
	// A caller that says its region releases only what is its own.
	if op.Region != "" && c.Home != op.Region {
		return d.answer(Moved, c)
	}
	// The hash of one that is bound is folded: nobody else gets the identity.
	if c.ID != op.ID || c.Hash != op.Hash || c.State != Claimed || c.Recovered {
		return d.answer(Moved, c)
	}
	d.remove(c)
	a := d.answer(Released, Claim{})
	a.changes = true
	return a
}

// fold deletes claims that heads have, and notes these heads. Nothing is done where it is not as the folder found it.
func (d *draft) fold(op Op) decision {
	moved := decision{Answer: Answer{Outcome: Moved, Epoch: d.epoch.Number, Folds: d.folds()}}
	// A fold of more claims than one operation takes notes the same heads again.
	noted := d.base.headsAt > 0 && slices.Equal(d.base.heads, op.Heads)
	if d.base.headsAt != op.Base && !noted {
		return moved
	}
	for _, c := range op.Claims {
		if i, there := d.base.find(c.Identity.SeqStart); !there || d.base.claims[i].Claim != c {
			return moved
		}
	}
	for _, c := range op.Claims {
		i, _ := d.base.find(c.Identity.SeqStart)
		d.relyOn(d.base.claims[i])
		d.remove(c)
	}
	if d.alone = true; !noted {
		d.heads, d.above = op.Heads, op.Above
	}
	a := d.answer(Applied, Claim{})
	a.changes = true
	return a
}

// above reports that an identity begins where nothing is folded. The last number of all has none above it.
func above(id identity.Batch, from uint64) bool {
	return id.SeqStart >= from && from != math.MaxUint64
}

// folds is what the part was decided by; at adds when it was so.
func (d *draft) folds() Folds { return d.base.folds(d.epoch.Number, 0) }

// forget deletes the heads of a boot without claims. Who has read less than all of the folds since is refused then.
func (d *draft) forget(op Op) decision {
	if d.base.headsAt == 0 || d.base.headsAt != op.Base || len(d.base.claims) > 0 {
		return decision{Answer: Answer{Outcome: Moved, Epoch: d.epoch.Number, Folds: d.folds()}}
	}
	d.alone, d.forgets = true, true
	a := d.answer(Applied, Claim{})
	a.changes = true
	return a
}
