package forward

import (
	"context"
	"fmt"
	"io"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Verdict says what an identity manifest is that stands in no run of the region's journal.
type Verdict string

// Verdicts.
const (
	// Ours: the identity is this hash's, and this region is its home. The entry is to be written, then Settle.
	Ours Verdict = "ours"
	// Secondary: the identity is this hash's, and another region is its home, which counts it. No entry.
	Secondary Verdict = "secondary"
	// Loser: the identity, or one that its range meets, is another hash's. A quarantine record says so; no entry.
	Loser Verdict = "loser"
	// Open: somebody else may yet complete or release a claim that stands in the way. Ask again later; no entry.
	Open Verdict = "open"
	// Frameless: nobody has the identity, and the manifest's frame is lost. No entry, until its sender comes again.
	Frameless Verdict = "frameless"
)

// Verdicts lists all of them.
func Verdicts() []Verdict { return []Verdict{Ours, Secondary, Loser, Open, Frameless} }

// Asked is the answer about a manifest.
type Asked struct {
	Verdict Verdict
	// Entry of the journal, and Claim to settle afterwards, of one that is ours; of a loser the entry of its quarantine record.
	Entry journal.Entry
	Claim claims.Claim
	// Home is the region that counts the batch; of a secondary copy.
	Home claims.Region
}

// Ask asks the linearizer about a manifest of the region that stands in no run of its journal. What nobody has decided is
// claimed, as a collector would. An error says that the linearizer or the bucket did not answer: nothing may be entered.
func (f *Forwarder) Ask(ctx context.Context, m accept.Manifest) (Asked, error) {
	out, err := f.ask(ctx, m)
	if err != nil {
		return Asked{}, fmt.Errorf("ask about %s: %w", m.Identity, err)
	}
	return out, nil
}

func (f *Forwarder) ask(ctx context.Context, m accept.Manifest) (Asked, error) {
	op := claims.Op{Kind: claims.DoClaim, Identity: m.Identity, Hash: m.FrameSHA256, Region: f.cfg.Region, At: max(f.cfg.Accept.Clock.Now().UnixNano(), 0)}
	if _, err := io.ReadFull(f.cfg.Rand, op.ID[:]); err != nil {
		return Asked{}, err
	}
	a, err := f.cfg.Claims.Change(ctx, op)
	if err != nil {
		return Asked{}, err
	}
	// A claim of this region for this hash is shared, whoever holds it: nothing but its home and its hash says what becomes of it.
	if a.Outcome == claims.Pending && a.Claim.Home == f.cfg.Region {
		a.Outcome = claims.Held
	}
	if a.Outcome == claims.Pending && f.mayTakeOver(a.Claim) {
		op.Kind, op.Expect, op.Epoch = claims.DoTakeOver, a.Claim.ID, a.Epoch
		if a, err = f.cfg.Claims.Change(ctx, op); err != nil {
			return Asked{}, err
		}
	}
	return f.judge(ctx, m, a)
}

// mayTakeOver: what was recovered belongs to its home; anybody else's holder has had its time.
func (f *Forwarder) mayTakeOver(c claims.Claim) bool {
	held := f.cfg.Accept.Clock.Now().Sub(time.Unix(0, c.ClaimedAt))
	return !c.Recovered && held >= f.cfg.TakeOver
}

// judge turns the linearizer's answer into a verdict.
func (f *Forwarder) judge(ctx context.Context, m accept.Manifest, a claims.Answer) (Asked, error) {
	c := a.Claim
	switch a.Outcome {
	case claims.Held:
		r, err := f.complete(ctx, Result{}, m, c)
		switch {
		case err != nil:
			return Asked{}, err
		case r.Action == Completed:
			return Asked{Verdict: Ours, Entry: r.Entry, Claim: r.Claim}, nil
		case r.Action == Released || r.Action == Stuck:
			return Asked{Verdict: Frameless}, nil
		}
	case claims.Decided:
		if c.Home != f.cfg.Region {
			return Asked{Verdict: Secondary, Home: c.Home}, nil
		}
		r := f.durable(Durable, Result{}, m, c)
		return Asked{Verdict: Ours, Entry: r.Entry, Claim: r.Claim}, nil
	case claims.Conflict, claims.RangeConflict:
		// Who has the numbers is known, and not with which frame; the record of the conflict would have to say it.
		if c.Hash.IsZero() || c.Hash == m.FrameSHA256 {
			break
		}
		e, err := f.quarantine(ctx, m, c)
		return Asked{Verdict: Loser, Entry: e}, err
	}
	return Asked{Verdict: Open}, nil
}

// quarantine writes the record of a manifest whose identity, or range, is another frame's. The record is what answers and
// operators find it by; what holds its blob is the manifest, which stays.
func (f *Forwarder) quarantine(ctx context.Context, m accept.Manifest, by claims.Claim) (journal.Entry, error) {
	rec := accept.ConflictRecord{
		AuthorityID: f.cfg.Accept.AuthorityID, Identity: m.Identity, AcceptedSHA256: by.Hash, AcceptedBlobKey: layout.Blob(by.Hash, 0), // of the home's bucket
		SubmittedBlobKey: m.RawBlobKey, SubmittedSHA256: m.FrameSHA256, AcceptedManifestKey: layout.Accepted(m.Identity),
		ObservedAt: max(f.cfg.Accept.Clock.Now().UnixNano(), 0), CollectorID: f.cfg.Accept.CollectorID,
	}
	if by.Identity != m.Identity {
		rec.Met = by.Identity
	}
	var frame []byte
	content := objstore.PutOptions{ContentType: "application/json"}
	if m.Inline {
		var err error
		if frame, err = accept.ReadFrame(ctx, f.cfg.Store, m.FrameKey(), m.FrameSHA256, m.FrameBytes); err != nil {
			return journal.Entry{}, err
		}
		rec.SubmittedBytes, content.ContentType = m.FrameBytes, "application/octet-stream"
	}
	key := layout.Quarantine(m.Identity, m.FrameSHA256)
	body, created, err := objstore.CreateOrGet(ctx, f.cfg.Store, key, rec.MarshalWith(frame), accept.MaxObjectBytes, content)
	if err != nil {
		return journal.Entry{}, err
	}
	if created {
		return rec.Entry(), nil
	}
	// A collector has made it, for a sender of the same frame.
	rec, err = accept.ParseConflictRecord(body)
	if err == nil && (rec.Identity != m.Identity || rec.SubmittedSHA256 != m.FrameSHA256 || rec.AuthorityID != f.cfg.Accept.AuthorityID) {
		err = accept.ConflictKind.Corrupt("", "it is of %s %s and the authority %q", rec.Identity, rec.SubmittedSHA256, rec.AuthorityID)
	}
	return rec.Entry(), accept.ConflictKind.Wrap(key, err)
}
