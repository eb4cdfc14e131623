package coordinator

import (
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// claimChanges of the API and what they are in the core.
var claimChanges = map[coordinatorv1.ClaimChange]claims.Kind{
	coordinatorv1.ClaimChange_CLAIM_CHANGE_CLAIM:     claims.DoClaim,
	coordinatorv1.ClaimChange_CLAIM_CHANGE_TAKE_OVER: claims.DoTakeOver,
	coordinatorv1.ClaimChange_CLAIM_CHANGE_COMPLETE:  claims.DoComplete,
	coordinatorv1.ClaimChange_CLAIM_CHANGE_SETTLE:    claims.DoSettle,
	coordinatorv1.ClaimChange_CLAIM_CHANGE_REPLACE:   claims.DoReplace,
	coordinatorv1.ClaimChange_CLAIM_CHANGE_RELEASE:   claims.DoRelease,
}

// claimOutcomes of the core and what they are in the API. Those of folds do not travel.
var claimOutcomes = map[claims.Outcome]coordinatorv1.ClaimOutcome{
	claims.Held:          coordinatorv1.ClaimOutcome_CLAIM_OUTCOME_HELD,
	claims.Pending:       coordinatorv1.ClaimOutcome_CLAIM_OUTCOME_PENDING,
	claims.Decided:       coordinatorv1.ClaimOutcome_CLAIM_OUTCOME_DECIDED,
	claims.Conflict:      coordinatorv1.ClaimOutcome_CLAIM_OUTCOME_CONFLICT,
	claims.RangeConflict: coordinatorv1.ClaimOutcome_CLAIM_OUTCOME_RANGE_CONFLICT,
	claims.Contested:     coordinatorv1.ClaimOutcome_CLAIM_OUTCOME_CONTESTED,
	claims.Moved:         coordinatorv1.ClaimOutcome_CLAIM_OUTCOME_MOVED,
	claims.Released:      coordinatorv1.ClaimOutcome_CLAIM_OUTCOME_RELEASED,
}

// invert is the map from values to keys.
func invert[K, V comparable](m map[K]V) map[V]K {
	out := make(map[V]K, len(m))
	for k, v := range m {
		out[v] = k
	}
	return out
}

var (
	claimChangesOf  = invert(claimChanges)
	claimOutcomesOf = invert(claimOutcomes)
)

func encodeBatch(id identity.Batch) *coordinatorv1.ClaimIdentity {
	return &coordinatorv1.ClaimIdentity{AgentId: id.Agent, BootId: id.Boot, SeqStart: id.SeqStart, SeqEnd: id.SeqEnd}
}

func decodeBatch(id *coordinatorv1.ClaimIdentity) identity.Batch {
	return identity.Batch{Agent: id.GetAgentId(), Boot: id.GetBootId(), SeqStart: id.GetSeqStart(), SeqEnd: id.GetSeqEnd()}
}

// encodeID leaves the id of nothing out.
func encodeID(id claims.ID) []byte {
	if id.IsZero() {
		return nil
	}
	return id[:]
}

func decodeID(b []byte) (id claims.ID, err error) {
	if len(b) != 0 && len(b) != len(id) {
		return id, fmt.Errorf("%w: a claim id has %d bytes, not %d", claims.ErrInvalid, len(b), len(id))
	}
	copy(id[:], b)
	return id, nil
}

func encodeOp(op claims.Op) *coordinatorv1.ClaimRequest {
	return &coordinatorv1.ClaimRequest{
		Change: claimChangesOf[op.Kind], Identity: encodeBatch(op.Identity), FrameSha256: op.Hash[:], ClaimId: encodeID(op.ID),
		ExpectClaimId: encodeID(op.Expect), Region: string(op.Region), Epoch: op.Epoch,
	}
}

// decodeOp gives a change as an operation; the caller adds its clock. Errors wrap claims.ErrInvalid.
func decodeOp(r *coordinatorv1.ClaimRequest) (claims.Op, error) {
	op := claims.Op{Identity: decodeBatch(r.GetIdentity()), Region: claims.Region(r.GetRegion()), Epoch: r.GetEpoch()}
	var known bool
	if op.Kind, known = claimChanges[r.GetChange()]; !known {
		return op, fmt.Errorf("%w: %s is not a change", claims.ErrInvalid, r.GetChange())
	}
	var err error
	if op.Hash, err = identity.DigestFromBytes(r.GetFrameSha256()); err != nil {
		return op, fmt.Errorf("%w: frame_sha256: %w", claims.ErrInvalid, err)
	}
	if op.ID, err = decodeID(r.GetClaimId()); err != nil {
		return op, err
	}
	if op.Expect, err = decodeID(r.GetExpectClaimId()); err != nil {
		return op, err
	}
	return op, op.Validate()
}

func encodeIdentityClaim(c claims.Claim) *coordinatorv1.IdentityClaim {
	if c.State == 0 {
		return nil
	}
	return &coordinatorv1.IdentityClaim{
		Identity: encodeBatch(c.Identity), FrameSha256: c.Hash[:], State: coordinatorv1.ClaimState(c.State), ClaimId: encodeID(c.ID),
		Epoch: c.Stamp.Epoch, Fence: c.Stamp.Fence, HomeRegion: string(c.Home), Recovered: c.Recovered, Bound: c.Bound,
		ClaimedAtUnixNs: c.ClaimedAt, DurableAtUnixNs: c.DurableAt,
	}
}

// decodeIdentityClaim reads a claim; without one it is the zero value.
func decodeIdentityClaim(p *coordinatorv1.IdentityClaim) (claims.Claim, error) {
	if p == nil {
		return claims.Claim{}, nil
	}
	c := claims.Claim{
		Identity: decodeBatch(p.GetIdentity()), State: claims.State(p.GetState()), Stamp: claims.Stamp{Epoch: p.GetEpoch(), Fence: p.GetFence()},
		Home: claims.Region(p.GetHomeRegion()), Recovered: p.GetRecovered(), Bound: p.GetBound(), ClaimedAt: p.GetClaimedAtUnixNs(), DurableAt: p.GetDurableAtUnixNs(),
	}
	var err error
	if c.Hash, err = identity.DigestFromBytes(p.GetFrameSha256()); err != nil {
		return c, err
	}
	if c.ID, err = decodeID(p.GetClaimId()); err != nil {
		return c, err
	}
	if c.State < claims.Claimed || c.State > claims.Settled {
		return c, fmt.Errorf("claim %s: %s", c.Identity, c.State)
	}
	return c, c.Identity.Validate()
}

func encodeSpans(spans []claims.Span) []*coordinatorv1.ClaimSpan {
	out := make([]*coordinatorv1.ClaimSpan, len(spans))
	for i, s := range spans {
		out[i] = &coordinatorv1.ClaimSpan{SeqStart: s.Start, SeqEnd: s.End, HomeRegion: string(s.Home)}
	}
	return out
}

func decodeSpans(spans []*coordinatorv1.ClaimSpan) []claims.Span {
	var out []claims.Span
	for _, s := range spans {
		out = append(out, claims.Span{Start: s.GetSeqStart(), End: s.GetSeqEnd(), Home: claims.Region(s.GetHomeRegion())})
	}
	return out
}
