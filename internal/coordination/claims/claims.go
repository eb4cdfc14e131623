// Package claims is the identity linearizer without its network: which frame an identity belongs to, where several
// regions accept batches. It decides what becomes of claims, and which of them share a transaction of the small
// key-value store that holds them (KV: etcd, or memory). docs/protocol/linearizer.md has the protocol that collectors
// follow with it.
//
// The package is deterministic. A Group takes operations, gives out transactions, and turns their results into
// answers; who runs the transactions, and when, is the caller's.
package claims

import (
	"encoding/hex"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Region names one acceptance authority of several.
type Region string

// maxRegion bounds a region's name.
const maxRegion = 64

// Validate refuses what can't be a region: 1 to 64 of a-z, 0-9 and "-".
func (r Region) Validate() error {
	if r == "" || len(r) > maxRegion {
		return fmt.Errorf("%w: region has %d bytes, not 1 to %d", ErrInvalid, len(r), maxRegion)
	}
	for i := range len(r) {
		if c := r[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("%w: region %q has more than a-z, 0-9 and -", ErrInvalid, string(r))
		}
	}
	return nil
}

// ID names one attempt to have an identity accepted. It is random: a caller that got no answer asks again with the
// same id and gets the answer that the claim is its own.
type ID [16]byte

// IsZero: no claim has this id.
func (c ID) IsZero() bool { return c == ID{} }

func (c ID) String() string { return hex.EncodeToString(c[:]) }

// Stamp orders the claims of one identity: epochs first, and within one the revisions at which the store took the
// claims. A manifest carries the stamp of the claim that it was written under.
type Stamp = accepted.Stamp

// State of a claim.
type State uint8

// States. A claim that was released is not there.
const (
	// Claimed: somebody may be writing the manifest. Nothing was acknowledged in this epoch.
	Claimed State = 1
	// Durable: the manifest is in the home region, and is the identity's.
	Durable State = 2
	// Settled: and the home region's journal has the batch, so that any region may answer for it.
	Settled State = 3
)

func (s State) String() string {
	switch s {
	case Claimed:
		return "CLAIMED"
	case Durable:
		return "DURABLE"
	case Settled:
		return "SETTLED"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Claim is what the store holds of one identity.
type Claim struct {
	// Identity is in the record's key, but for its end.
	Identity identity.Batch
	Hash     identity.Digest
	State    State
	// ID of the last claim or take-over; of a durable claim, of the one that was completed.
	ID    ID
	Stamp Stamp
	// Home is the region whose copy counts.
	Home Region
	// Recovered: the claim was made from manifests after the store had forgotten. It may have been acknowledged and counted
	// in its home region, which alone can complete it.
	Recovered bool
	// Bound: the identity is this hash's for good, whatever the state says: it is folded, its home region was retired, and another
	// one writes the manifest again.
	Bound bool
	// ClaimedAt, of the holder, and DurableAt are Unix nanoseconds by clocks of coordinators: for people, and for scans that leave
	// out what is young. Nothing is decided by them.
	ClaimedAt, DurableAt int64
}

// final reports whether the identity is the hash's for good.
func (c Claim) final() bool { return c.State != Claimed || c.Bound }

// Kind of an operation.
type Kind uint8

// Kinds of operations.
const (
	// DoClaim takes the identity for Hash, or says who has it.
	DoClaim Kind = iota + 1
	// DoTakeOver puts ID and Region in the place of the holder Expect of a claim with the same hash.
	DoTakeOver
	// DoComplete makes the claim of ID durable, whose home is Region.
	DoComplete
	// DoSettle notes that the journal of the home region has the batch of the durable claim of ID.
	DoSettle
	// DoReplace puts Hash in the place of the hash of the claim of ID: another frame's manifest stands in its home region.
	DoReplace
	// DoRelease deletes the claim of ID. Region may be empty.
	DoRelease
	// DoLookup gives the claims that intersect the identity, and what is known of the boot's folds.
	DoLookup
	// DoFoldable gives the settled claims of the boot that became durable before At, up to MaxFoldable, and what is known of its
	// folds. Of this and what follows only the boot of the identity counts.
	DoFoldable
	// DoFold deletes Claims, which Heads have, and notes Heads in the place of those of revision Base.
	DoFold
	// DoForget forgets the heads of revision Base of a boot without claims.
	DoForget
)

var kindNames = [...]string{"", "claim", "take over", "complete", "settle", "replace", "release", "look up", "list what may be folded", "fold", "forget"}

func (k Kind) String() string {
	if int(k) < len(kindNames) && k > 0 {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Op is one operation.
type Op struct {
	Kind     Kind
	Identity identity.Batch
	Hash     identity.Digest
	ID       ID
	// Expect is the holder that a take-over replaces.
	Expect ID
	Region Region
	// Epoch in which the caller's claim was made; of all but DoClaim and what needs no claim.
	Epoch uint64
	// At is the coordinator's clock, Unix nanoseconds; of DoFoldable, the horizon.
	At int64
	// Looked are the heads of folds, of DoClaim, in which the caller did not find the identity, nor one that meets it.
	Looked Looked
	// Base is the revision at which DoFold and DoForget found the boot's heads; 0 is none.
	Base int64
	// Heads, of DoFold, have Claims, which are in order, and nothing from Above on.
	Heads  Heads
	Above  uint64
	Claims []Claim
}

// ofBoot: the operation is about folds, and needs no claim.
func (o Op) ofBoot() bool { return o.Kind >= DoFoldable && o.Kind <= DoForget }

// reads: the operation changes nothing and decides nothing.
func (o Op) reads() bool { return o.Kind == DoLookup || o.Kind == DoFoldable }

// Validate refuses what no state of the store could make sense of.
func (o Op) Validate() error {
	if err := o.Identity.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if o.Kind < DoClaim || o.Kind > DoForget {
		return fmt.Errorf("%w: %s", ErrInvalid, o.Kind)
	}
	if o.Kind == DoFold {
		return o.validateFold()
	}
	if o.Kind == DoLookup || o.ofBoot() {
		return nil
	}
	if err := o.Looked.validate(); err != nil {
		return err
	}
	switch {
	case o.Hash.IsZero():
		return fmt.Errorf("%w: no hash", ErrInvalid)
	case o.ID.IsZero():
		return fmt.Errorf("%w: no claim id", ErrInvalid)
	case o.Kind == DoTakeOver && (o.Expect.IsZero() || o.Expect == o.ID):
		return fmt.Errorf("%w: a take-over needs the holder that it replaces, and an id of its own", ErrInvalid)
	case o.Kind != DoClaim && o.Epoch == 0:
		return fmt.Errorf("%w: no epoch", ErrInvalid)
	case o.At < 0:
		return fmt.Errorf("%w: time %d is negative", ErrInvalid, o.At)
	case o.Kind == DoRelease && o.Region == "": // callers of before a release said its region
		return nil
	}
	return o.Region.Validate()
}

// Outcome of an operation.
type Outcome uint8

// Outcomes. Claim of the answer is the claim that decided.
const (
	// Held: the claim is that of the operation's ID. Write the manifest, then complete.
	Held Outcome = iota + 1
	// Pending: another holder has claimed the identity for the same hash.
	Pending
	// Decided: the identity is this hash's, with a durable manifest in the home region.
	Decided
	// Conflict: the identity is another hash's.
	Conflict
	// RangeConflict: another identity, decided, shares sequence numbers with this one without being equal.
	RangeConflict
	// Contested: a claim that may yet be released stands in the way. No answer to a sender follows from it.
	Contested
	// Moved: the claim is not that of the operation's ID any more, or gone; Claim is what is there now, if anything.
	Moved
	// Released: there is no claim of the operation's ID.
	Released
	// Folded: nothing stands in the way, but the identity may be folded, in heads that the operation did not look at: Folds of the
	// answer says in which. Look at them; if it is free there, claim it with what you have Looked at.
	Folded
	// Found: the answer of operations that read.
	Found
	// Applied: the answer of DoFold and DoForget. What is not as the operation says is Moved.
	Applied
)

var outcomeNames = [...]string{"", "HELD", "PENDING", "DECIDED", "CONFLICT", "RANGE_CONFLICT", "CONTESTED", "MOVED", "RELEASED", "FOLDED", "FOUND", "APPLIED"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) && o > 0 {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// Answer to an operation.
type Answer struct {
	Outcome Outcome
	// Epoch in which the answer holds.
	Epoch uint64
	// Claim that decided; one without a State is none.
	Claim Claim
	// Claims of operations that read.
	Claims []Claim
	// Folds is what the store knows of the boot's folds; of Folded and Found.
	Folds Folds
	// Spans of sequence numbers that are folded, where somebody has looked; the Group has not.
	Spans []Span
}

// Errors of operations. Only ErrUnknown leaves open whether the operation was done.
var (
	ErrInvalid = errors.New("the operation is not valid")
	// ErrFull: too many operations wait; another try later may find room.
	ErrFull = errors.New("too many operations wait")
	// ErrTooMany: the boot has too many claims that are not folded.
	ErrTooMany = errors.New("the boot has too many unsettled claims")
	// ErrBusy: others changed the boot again and again meanwhile.
	ErrBusy = errors.New("others keep changing the boot")
	// ErrEpoch: the linearizer's epoch is not the one of the operation.
	ErrEpoch = errors.New("the epoch has moved on")
	// ErrNoMember: the region takes no part in the epoch: it was retired, or is not added yet. It is an ErrInvalid.
	ErrNoMember error = noMember{}
	// ErrDissolved: the linearizer has ended, and nothing is done any more.
	ErrDissolved = errors.New("the identity linearizer was dissolved")
	// ErrDenied: who asks may not do that, or not for that region.
	ErrDenied = errors.New("the linearizer refuses this caller")
	// ErrUnavailable: the store did not answer, and the operation was not done.
	ErrUnavailable = errors.New("the store of claims is not there")
	// ErrUnknown: the store did not answer, and the operation may have been done, or be done later.
	ErrUnknown = errors.New("the store of claims did not say what became of the operation")
	// ErrCanceled: the caller has left before the operation was sent.
	ErrCanceled = errors.New("canceled")
)

type noMember struct{}

func (noMember) Error() string        { return "the region takes no part" }
func (noMember) Is(target error) bool { return target == ErrInvalid }

// Error names the operation and its identity.
type Error struct {
	Op  Kind
	Key identity.Batch
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, e.Key, e.Err) }
func (e *Error) Unwrap() error { return e.Err }
