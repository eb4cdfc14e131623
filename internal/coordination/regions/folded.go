package regions

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Folded decides about a claim for an identity whose sequence numbers are folded. A span does not say where its identities begin and
// end, and a manifest in it may have been left behind by a claim that was given up. So the manifests tell, as in a recovery: of all
// that share sequence numbers, the one that was decided has the highest stamp.
//
// The answer is Decided, Conflict or RangeConflict, and of any other operation than a claim Moved. Errors wrap claims.ErrUnavailable.
func Folded(ctx context.Context, stores map[claims.Region]Store, op claims.Op, a claims.Answer) (claims.Answer, error) {
	if op.Kind != claims.DoClaim {
		// Only a claim asks for a decision; whoever completes or releases finds that the claim is not its own any more.
		a.Outcome = claims.Moved
		return a, nil
	}
	s := a.Spans[0]
	l := listing{Region: Region{s.Home, stores[s.Home]}}
	if l.Store == nil {
		return a, fmt.Errorf("%w: folded: %w: no bucket of region %s", claims.ErrUnavailable, ErrRegionSettings, s.Home)
	}
	// Who is refused is told by which frame: without its hash no record of the conflict can be written, and the sender would try again for ever.
	by, hash := identity.Batch{Agent: op.Identity.Agent, Boot: op.Identity.Boot, SeqStart: s.Start, SeqEnd: s.End}, identity.Digest{}
	// All numbers of an identity are in one span.
	if s.Start <= op.Identity.SeqStart && op.Identity.SeqEnd <= s.End {
		top, err := l.highest(ctx, op.Identity)
		if err != nil {
			return a, fmt.Errorf("%w: folded: %w", claims.ErrUnavailable, err)
		}
		if by = top.id; by == op.Identity {
			a.Claim = claims.Claim{Identity: by, Hash: top.hash, State: claims.Settled, Home: s.Home, Stamp: top.stamp}
			if a.Outcome = claims.Decided; top.hash != op.Hash {
				a.Outcome = claims.Conflict
			}
			return a, nil
		}
		hash = top.hash
	} else {
		// Whose the numbers are that the span has, the first of them tells.
		first := identity.Batch{Agent: by.Agent, Boot: by.Boot, SeqStart: max(s.Start, op.Identity.SeqStart)}
		first.SeqEnd = first.SeqStart
		top, err := l.highest(ctx, first)
		if err != nil {
			return a, fmt.Errorf("%w: folded: %w", claims.ErrUnavailable, err)
		}
		// What reaches beyond the span was not decided.
		if s.Start <= top.id.SeqStart && top.id.SeqEnd <= s.End {
			by, hash = top.id, top.hash
		}
	}
	a.Outcome, a.Claim = claims.RangeConflict, claims.Claim{Identity: by, Hash: hash, State: claims.Settled, Home: s.Home}
	return a, nil
}

// maxMeeting bounds the manifests that one identity is compared with. More than one are there only where claims of a boot were
// given up for others with other ranges.
const maxMeeting = 64

// highest gives the manifest with the highest stamp of those that share a sequence number with an identity.
func (l *listing) highest(ctx context.Context, id identity.Batch) (manifest, error) {
	// What reaches into the identity begins before it by less than the longest batch.
	from := id.SeqStart - min(id.SeqStart, uint64(frame.DefaultLimits().Records))
	o := objstore.ListOptions{Prefix: layout.AcceptedBoot(id.BootOf()), StartAfter: layout.BootFrom(layout.AcceptedPrefix, id.BootOf(), from)}
	var meet []identity.Batch
	for info, err := range objstore.List(ctx, l.Store, o) {
		var other identity.Batch
		if err == nil {
			other, err = layout.ParseAccepted(info.Key)
		}
		if err != nil {
			return manifest{}, &RegionError{"list manifests", l.Name, err}
		}
		if other.SeqStart > id.SeqEnd {
			break
		}
		if other.Intersects(id) {
			meet = append(meet, other)
		}
	}
	if len(meet) == 0 || len(meet) > maxMeeting {
		return manifest{}, &RegionError{"list manifests", l.Name, fmt.Errorf("%d meet %s, which is settled", len(meet), id)}
	}
	var top manifest
	for i, other := range meet {
		l.id = other
		m, err := l.read(ctx)
		if err != nil {
			return manifest{}, &RegionError{"read a manifest", l.Name, err}
		}
		// One alone needs no stamp.
		if len(meet) > 1 {
			if m.stamp, err = l.affirmed(ctx, m); err != nil {
				return manifest{}, err
			}
		}
		if i == 0 || m.before(top) < 0 {
			top = m
		}
	}
	return top, nil
}

// affirmed is the highest stamp that a manifest stands for.
func (l *listing) affirmed(ctx context.Context, m manifest) (accepted.Stamp, error) {
	for info, err := range objstore.List(ctx, l.Store, objstore.ListOptions{Prefix: layout.Affirmations(m.id)}) {
		var s accepted.Stamp
		if err == nil {
			_, s, err = layout.ParseAffirmation(info.Key)
		}
		if err != nil {
			return s, &RegionError{"list affirmations", l.Name, err}
		}
		if s.Compare(m.stamp) > 0 {
			m.stamp = s
		}
	}
	return m.stamp, nil
}
