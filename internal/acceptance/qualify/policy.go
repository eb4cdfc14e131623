package qualify

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// policy are the checks of the bucket's policy, with the credentials of a collector. They do no
// harm in whatever bucket: every body has a wrong checksum, so that a store without the policy
// refuses it too, for another reason and without writing anything, and only keys are deleted that
// no program writes. A store asks its policy first, before it has read the body.
var policy = []check{
	{"policy: unconditional put of a record", deniedPut},
	{"policy: delete of a record", deniedDelete},
	{"policy: unconditional put of a journal segment", deniedSegment},
	{"policy: delete of a journal segment", deniedSegmentDelete},
	{"policy: folding of the journal", deniedFolding},
	{"policy: unconditional put of the authority", deniedAuthority},
	{"policy: delete of a frame", deniedFrameDelete},
	{"policy: condemning of a frame", deniedCondemning},
	{"policy: change of a frame, a boot, a decision or a log", deniedChange},
	{"policy: copy onto a record or a frame", deniedCopy},
	{"policy: create of records and segments", allowedCreate},
}

// Keys of the probes. They are covered by the policy, and no record has them.
const (
	recordProbe    = layout.AcceptedPrefix + "probe/policy"
	openProbe      = layout.JournalOpenPrefix + "probe"
	segmentProbe   = layout.JournalRunPrefix + "probe/policy"
	foldedProbe    = layout.JournalFoldedPrefix + "probe"
	headProbe      = layout.JournalHeadKey + ".probe"
	beginProbe     = layout.JournalBeginKey + ".probe"
	authorityProbe = layout.AuthorityKey + ".probe"
	conflictProbe  = layout.QuarantinePrefix + "probe/policy"
	frameProbe     = layout.RawBlobsPrefix + "probe/policy"
	markerProbe    = layout.CondemnedPrefix + "probe/policy"
	affirmedProbe  = layout.AffirmedPrefix + "probe/policy"
	bootProbe      = layout.BootsPrefix + "probe/policy"
	decisionProbe  = layout.ResolutionLogPrefix + "probe/policy"
	logProbe       = layout.LogPrefix + "probe/policy"
)

// mismatched is the checksum of other bytes than a probe's.
var mismatched = objstore.PutOptions{SHA256: identity.Sum([]byte("bytes that are not sent"))}

// wantDenied checks that a write that the store can't apply is denied by its policy.
func (p *probe) wantDenied(what, key string, err error) error {
	// The store ignored the checksum, and cleanUp must remove what was written.
	if err == nil || errors.Is(err, objstore.ErrUnknown) {
		p.own(key)
	}
	if errors.Is(err, objstore.ErrChecksum) {
		return fmt.Errorf("%s %s is allowed, want %q", what, key, objstore.ErrDenied)
	}
	return refused(what+" "+key, err, objstore.ErrDenied)
}

// wantPutsDenied checks that no key can be put without a condition.
func (p *probe) wantPutsDenied(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		_, err := p.store.Put(ctx, key, p.body("policy"), mismatched)
		if err := p.wantDenied("an unconditional put of", key, err); err != nil {
			return err
		}
	}
	return nil
}

// wantDeletesDenied checks that no key can be deleted. None of them exists.
func (p *probe) wantDeletesDenied(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := p.store.Delete(ctx, key); !errors.Is(err, objstore.ErrDenied) {
			if err == nil {
				return fmt.Errorf("a delete of %s is allowed, want %q", key, objstore.ErrDenied)
			}
			return fmt.Errorf("a delete of %s: want %q: %w", key, objstore.ErrDenied, err)
		}
	}
	return nil
}

func deniedPut(ctx context.Context, p *probe) error {
	return p.wantPutsDenied(ctx, recordProbe, conflictProbe, affirmedProbe)
}

func deniedDelete(ctx context.Context, p *probe) error {
	return p.wantDeletesDenied(ctx, recordProbe, conflictProbe, affirmedProbe, markerProbe)
}

func deniedSegment(ctx context.Context, p *probe) error {
	return p.wantPutsDenied(ctx, openProbe, segmentProbe, foldedProbe, beginProbe, headProbe)
}

// deniedSegmentDelete: only the reconciler deletes from the journal, after it has folded.
func deniedSegmentDelete(ctx context.Context, p *probe) error {
	return p.wantDeletesDenied(ctx, openProbe, segmentProbe, foldedProbe, headProbe)
}

// deniedFolding: only the reconciler writes folded files and moves the head, also where the
// condition holds.
func deniedFolding(ctx context.Context, p *probe) error {
	if err := p.wantCreatesDenied(ctx, foldedProbe, headProbe); err != nil {
		return err
	}
	return p.wantReplacesDenied(ctx, foldedProbe, headProbe)
}

// wantCreatesDenied checks that no key can be created, though the condition holds.
func (p *probe) wantCreatesDenied(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		_, err := p.store.Create(ctx, key, p.body("policy"), mismatched)
		if err := p.wantDenied("a create of", key, err); err != nil {
			return err
		}
	}
	return nil
}

// deniedFrameDelete: frames go by the proof of garbage collection, or by retention.
func deniedFrameDelete(ctx context.Context, p *probe) error {
	return p.wantDeletesDenied(ctx, frameProbe)
}

// deniedCondemning: a marker makes a frame unusable, and none is ever taken back.
func deniedCondemning(ctx context.Context, p *probe) error {
	return p.wantCreatesDenied(ctx, markerProbe)
}

// deniedChange: what is created once is neither overwritten nor removed, also by who knows what is there, and only reconcilers
// write what operators decide.
func deniedChange(ctx context.Context, p *probe) error {
	for _, check := range []func() error{
		func() error {
			return p.wantPutsDenied(ctx, frameProbe, bootProbe, decisionProbe, markerProbe, logProbe)
		},
		func() error {
			return p.wantReplacesDenied(ctx, recordProbe, conflictProbe, affirmedProbe, frameProbe, bootProbe, decisionProbe, markerProbe, logProbe, openProbe, segmentProbe)
		},
		func() error { return p.wantDeletesDenied(ctx, bootProbe, decisionProbe, logProbe, beginProbe) },
		func() error { return p.wantCreatesDenied(ctx, decisionProbe) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// wantReplacesDenied checks that no key can be replaced by who names an ETag.
func (p *probe) wantReplacesDenied(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		_, err := p.store.Replace(ctx, key, p.body("policy"), absentTag, mismatched)
		if !errors.Is(err, objstore.ErrDenied) && !silent(err) {
			return fmt.Errorf("a replace of %s is allowed, want %q", key, objstore.ErrDenied)
		}
		if err := p.wantDenied("a replace of", key, err); err != nil {
			return err
		}
	}
	return nil
}

// Copier copies an object onto a key that must be absent. Back ends over a network implement it.
type Copier interface {
	CopyAbsent(ctx context.Context, key, from string) error
}

// deniedCopy: a copy is a create whose bytes the sender has never seen. What would be copied is not there.
func deniedCopy(ctx context.Context, p *probe) error {
	c, ok := p.back.(Copier)
	if !ok {
		return skipped("the store has no copies")
	}
	for _, key := range []string{recordProbe, conflictProbe, affirmedProbe, frameProbe, bootProbe, decisionProbe, logProbe, openProbe, segmentProbe, foldedProbe} {
		switch err := c.CopyAbsent(ctx, key, layout.ProbePrefix+p.opts.RunID+"/no-such-object"); {
		case errors.Is(err, objstore.ErrDenied):
		case silent(err):
			return err
		default:
			return fmt.Errorf("a copy onto %s is allowed, want %q", key, objstore.ErrDenied)
		}
	}
	return nil
}

func deniedAuthority(ctx context.Context, p *probe) error {
	if err := p.wantPutsDenied(ctx, authorityProbe); err != nil {
		return err
	}
	return p.wantDeletesDenied(ctx, authorityProbe)
}

// allowedCreate: a policy that denies too much stops acceptance, and that is found here and not
// at the first batch.
func allowedCreate(ctx context.Context, p *probe) error {
	for _, key := range []string{recordProbe, conflictProbe, openProbe, segmentProbe} {
		_, err := p.store.Create(ctx, key, p.body("policy"), mismatched)
		if err == nil || errors.Is(err, objstore.ErrUnknown) {
			p.own(key)
		}
		if err := refused("a create of "+key+" with a wrong checksum", err, objstore.ErrChecksum); err != nil {
			return err
		}
	}
	return nil
}
