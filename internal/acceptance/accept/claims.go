package accept

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ErrClaimDenied: the linearizer refuses this collector, or its region takes no part. Nothing was done, and trying again mends nothing.
var ErrClaimDenied = errors.New("the identity linearizer refuses this collector")

// Claims decides which frame an identity belongs to, and which region counts it, where several regions accept: the identity
// linearizer, as its part in acceptance needs it. docs/protocol/linearizer.md is the protocol.
type Claims interface {
	// Change makes one change and answers what holds then. With an error nothing is known, unless it wraps ErrClaimDenied.
	Change(context.Context, ClaimChange) (ClaimAnswer, error)
	// Settle notes, later and with others, that the region's journal has the batch. It does not wait. What is forgotten the
	// region's reconciler settles.
	Settle(ClaimChange)
}

// ClaimID names an attempt at an identity: 16 random bytes.
type ClaimID [16]byte

// ClaimStep is what a change does.
type ClaimStep uint8

// Steps of a claim.
const (
	// TakeClaim takes the identity for the hash, or tells who has it.
	TakeClaim ClaimStep = iota + 1
	// TakeClaimOver puts the caller in the place of the holder Expect.
	TakeClaimOver
	// CompleteClaim makes it durable: the manifest is in the region.
	CompleteClaim
	// ReplaceClaim makes it one for the frame whose manifest is in the region.
	ReplaceClaim
	// SettleClaim notes that the region's journal has the batch.
	SettleClaim
)

// ClaimChange is one change of the caller's region.
type ClaimChange struct {
	Step     ClaimStep
	Identity identity.Batch
	Hash     identity.Digest
	ID       ClaimID
	// Expect is the holder that TakeClaimOver replaces.
	Expect ClaimID
	// Epoch of the claim; of all steps but TakeClaim.
	Epoch uint64
}

// ClaimOutcome is the answer to a change.
type ClaimOutcome uint8

// Outcomes of changes.
const (
	// ClaimHeld: the claim is the caller's, under the ID of the answer.
	ClaimHeld ClaimOutcome = iota + 1
	// ClaimPending: another holder has it, for the same hash.
	ClaimPending
	// ClaimDecided: the identity is this hash's, with a durable manifest in the home region.
	ClaimDecided
	// ClaimConflict: the identity is another hash's.
	ClaimConflict
	// ClaimRangeConflict: another identity that is decided shares sequence numbers with this one.
	ClaimRangeConflict
	// ClaimContested: a claim that may yet be released stands in the way.
	ClaimContested
	// ClaimMoved: the claim is not the caller's any more.
	ClaimMoved
)

// ClaimAnswer is the answer to a change.
type ClaimAnswer struct {
	Outcome ClaimOutcome
	// Claim that decided; the zero Claim where there is none.
	Claim Claim
}

// Claim is what the linearizer has of an identity.
type Claim struct {
	Identity identity.Batch
	Hash     identity.Digest
	ID       ClaimID
	// Home is the region that counts the batch.
	Home  string
	Stamp identity.Stamp
	// Settled: the journal of the home has the batch.
	Settled bool
	// Fixed: neither hash nor home can change, since somebody may have been answered before etcd was restored.
	Fixed bool
	// Bound: the hash can't change, since somebody may have been answered by a region that was retired.
	Bound bool
}
