package accept

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// GlobalConfig of a Global; Region and Claims are required.
type GlobalConfig struct {
	// Region of this collector, which is that of its bucket.
	Region string
	Claims Claims
	// TakeOver is how long a claim of another region has to be seen before this one takes it over, by this collector's clock. Taking
	// over too soon costs the other region its work and no more.
	TakeOver time.Duration
}

// Global accepts as one of several regions: the mode global. The identity linearizer decides which frame an identity belongs to and
// which region counts it; the region's manifest stays the durable record. docs/protocol/linearizer.md has the steps and their
// reasons. It is safe for concurrent use.
type Global struct {
	p   *Protocol
	cfg GlobalConfig
	// seen is when claims of other regions were first met, by their ids.
	seen *lru.Cache[ClaimID, time.Time]
}

// maxSeen bounds the claims of other regions that are remembered.
const maxSeen = 16384

// NewGlobal makes a Global over the steps of p, whose mode must be ModeGlobal.
func NewGlobal(p *Protocol, c GlobalConfig) (*Global, error) {
	if p == nil || c.Claims == nil || p.mode != ModeGlobal {
		return nil, errors.New("accept: a protocol of the mode global and a linearizer are needed")
	}
	if err := validName("region", c.Region); err != nil {
		return nil, err
	}
	if c.TakeOver < 0 {
		return nil, fmt.Errorf("accept: take over after %s", c.TakeOver)
	}
	return &Global{p: p, cfg: c, seen: lru.New[ClaimID, time.Time](maxSeen)}, nil
}

// ClaimBoot is that of Protocol: a boot belongs to one spool in each region.
func (g *Global) ClaimBoot(ctx context.Context, boot identity.Boot, spoolID string) error {
	return g.p.ClaimBoot(ctx, boot, spoolID)
}

// Accept runs the protocol for one submission. Errors are those of Protocol.Accept; where the linearizer does not answer, nothing is
// decided and nothing accepted locally.
func (g *Global) Accept(ctx context.Context, s Submission) (Result, error) {
	res, err := g.accept(ctx, s)
	if err != nil {
		return Result{}, wrap("accept "+s.Identity.String(), err)
	}
	return res, nil
}

func (g *Global) accept(ctx context.Context, s Submission) (Result, error) {
	p := g.p
	if err := s.Validate(); err != nil {
		return Result{}, &RefusedError{Reason: ReasonInvalidSubmission, Err: err}
	}
	if err := p.claimBoot(ctx, s.Identity.BootOf(), s.SpoolID); err != nil {
		return Result{}, err
	}
	c := &globalCall{Global: g, s: s, b: p.blobOf(s), inline: len(s.Frame) < p.inlineBelow}
	// Bytes before anything that names them.
	if !c.inline {
		if err := c.b.ensure(ctx); err != nil {
			return Result{}, err
		}
	}
	claim, err := c.claim(ctx)
	if err != nil {
		return Result{}, err
	}
	// The manifest is made once, so that every attempt writes the same bytes with the same attempt id. It is stamped with the claim
	// that it is written under.
	if c.m, err = s.NewManifest(c.b.gen, p.authorityID, p.collectorID, p.clock, p.rand); err != nil {
		return Result{}, p.retry(ReasonStoreUnavailable, err)
	}
	if c.inline {
		c.m.Inline, c.m.RawBlobKey = true, ""
	}
	c.m.HomeRegion, c.m.ClaimEpoch, c.m.ClaimFence = g.cfg.Region, claim.Claim.Stamp.Epoch, claim.Claim.Stamp.Fence
	switch claim.Outcome {
	case ClaimHeld:
		return c.goOn(ctx, claim.Claim)
	case ClaimConflict, ClaimRangeConflict:
		return c.conflict(ctx, claim)
	}
	if claim.Claim.Home == g.cfg.Region {
		return c.again(ctx, claim.Claim)
	}
	return c.elsewhere(ctx, claim.Claim)
}

// globalCall is one call.
type globalCall struct {
	*Global
	s      Submission
	b      *blob
	m      Manifest
	inline bool
}

// claim takes the identity, or finds out who has it. Of the outcomes HELD means that this call goes on, also with a claim of its own
// region that another call made; CONFLICT, RANGE CONFLICT and DECIDED are final. All else is RETRY.
func (c *globalCall) claim(ctx context.Context) (ClaimAnswer, error) {
	ch := ClaimChange{Step: TakeClaim, Identity: c.s.Identity, Hash: c.s.SHA256}
	if _, err := io.ReadFull(c.p.rand, ch.ID[:]); err != nil {
		return ClaimAnswer{}, c.p.retry(ReasonLinearizer, fmt.Errorf("read randomness: %w", err))
	}
	a, err := c.change(ctx, ch)
	if err != nil {
		return a, err
	}
	switch a.Outcome {
	case ClaimHeld, ClaimConflict, ClaimRangeConflict:
		return a, nil
	case ClaimDecided:
		// What is durable there and not settled may be in no journal yet; its home's reconciler settles it.
		if a.Claim.Home != c.cfg.Region && !a.Claim.Settled {
			return a, c.p.retry(ReasonClaimPending, fmt.Errorf("region %s has accepted it, and not journalled yet", a.Claim.Home))
		}
		return a, nil
	case ClaimPending:
		return c.pending(ctx, ch, a.Claim)
	}
	return a, c.p.retry(ReasonClaimContested, fmt.Errorf("another claim stands in the way: %s of region %s", a.Claim.Identity, a.Claim.Home))
}

// pending: another call has claimed the identity for the same frame. Calls of one region share the claim; that of another region is
// taken over once it was there for a while, unless somebody may have been answered by it.
func (c *globalCall) pending(ctx context.Context, ch ClaimChange, there Claim) (ClaimAnswer, error) {
	wait := func() (ClaimAnswer, error) {
		return ClaimAnswer{}, c.p.retry(ReasonClaimPending, fmt.Errorf("region %s has claimed it", there.Home))
	}
	switch {
	case there.Home == c.cfg.Region:
		return ClaimAnswer{Outcome: ClaimHeld, Claim: there}, nil
	case there.Fixed:
		return wait()
	}
	now := c.p.clock.Now()
	first, ok := c.seen.Get(there.ID)
	if !ok {
		c.seen.Put(there.ID, now, 1)
	}
	if !ok && c.cfg.TakeOver > 0 || now.Sub(first) < c.cfg.TakeOver {
		return wait()
	}
	ch.Step, ch.Expect, ch.Epoch = TakeClaimOver, there.ID, there.Stamp.Epoch
	a, err := c.change(ctx, ch)
	if err != nil || a.Outcome == ClaimHeld {
		c.p.events.claimTakenOver(err == nil)
		return a, err
	}
	return wait()
}

// goOn writes the manifest under a claim of this region, and completes it.
func (c *globalCall) goOn(ctx context.Context, claim Claim) (Result, error) {
	res, err := c.b.decide(ctx, c.m)
	if err != nil {
		return Result{}, err
	}
	if res.Outcome == Conflict {
		return Result{}, c.replace(ctx, claim, res.Manifest)
	}
	if res.Manifest.Stamp().Compare(claim.Stamp) < 0 {
		if err := c.affirm(ctx, res.Manifest, claim.Stamp); err != nil {
			return Result{}, err
		}
	}
	if err := c.keep(ctx, res.Manifest); err != nil {
		return Result{}, err
	}
	// Epoch and claim are looked at again after the manifest: refused, nothing is answered, and the sender comes again.
	a, err := c.change(ctx, ClaimChange{Step: CompleteClaim, Identity: c.s.Identity, Hash: c.s.SHA256, ID: claim.ID, Epoch: claim.Stamp.Epoch})
	switch {
	case err != nil:
		return Result{}, err
	case a.Outcome != ClaimDecided || a.Claim.Home != c.cfg.Region:
		return Result{}, c.p.retry(ReasonClaimPending, errors.New("the claim has moved on while the manifest was written"))
	}
	return c.enterAndSettle(ctx, res, a.Claim)
}

// again: the region has accepted the batch before, so everything that a duplicate verifies is verified.
func (c *globalCall) again(ctx context.Context, claim Claim) (Result, error) {
	res, err := c.b.decide(ctx, c.m)
	switch {
	case err != nil:
		return Result{}, err
	case res.Outcome == Conflict:
		return Result{}, c.p.corrupt(StepManifest, res.ManifestKey, ReasonCorruptManifest, ManifestKind.Corrupt("", "it has the hash %s, and %s was decided", res.Manifest.FrameSHA256, claim.Hash))
	}
	// Another call completed it: this one has counted nothing.
	if res.Outcome = Duplicate; res.Manifest.AttemptID == c.m.AttemptID {
		c.p.events.manifestRestored(res.ManifestKey)
	}
	if err := c.keep(ctx, res.Manifest); err != nil {
		return Result{}, err
	}
	return c.enterAndSettle(ctx, res, claim)
}

// keep makes sure of the frame, as every answer does that relies on its bytes: the marker is read after the manifest was observed.
func (c *globalCall) keep(ctx context.Context, there Manifest) error {
	if there.Inline {
		if !c.inline {
			c.p.events.blobUnneeded(layout.Blob(c.b.sha, c.b.gen))
		}
		return nil
	}
	if c.inline {
		// A collector that writes blobs made the manifest, and may have died.
		if err := c.b.ensure(ctx); err != nil {
			return err
		}
	}
	return c.b.verifyNotCondemned(ctx)
}

// enterAndSettle journals a batch of this region, and has its claim settled.
func (c *globalCall) enterAndSettle(ctx context.Context, res Result, claim Claim) (Result, error) {
	outcome := journal.Duplicate
	if res.Outcome == Accepted {
		outcome = journal.Accepted
	}
	e := res.Manifest.Entry(outcome)
	// The manifest may have been written under an earlier claim, or under none.
	e.HomeRegion, e.ClaimEpoch = c.cfg.Region, claim.Stamp.Epoch
	var err error
	if res.Position, err = c.journal(ctx, e); err != nil {
		return Result{}, err
	}
	if !claim.Settled {
		c.cfg.Claims.Settle(ClaimChange{Step: SettleClaim, Identity: c.s.Identity, Hash: c.s.SHA256, ID: claim.ID, Epoch: claim.Stamp.Epoch})
	}
	return res, nil
}

// elsewhere: another region counts the batch, and its journal has it.
func (c *globalCall) elsewhere(ctx context.Context, claim Claim) (Result, error) {
	m := c.m
	m.HomeRegion, m.ClaimEpoch, m.ClaimFence = claim.Home, claim.Stamp.Epoch, claim.Stamp.Fence
	e := m.Entry(journal.Elsewhere)
	e.Generation, e.Inline = 0, false // this bucket promises no frame of it
	at, err := c.journal(ctx, e)
	if err != nil {
		return Result{}, err
	}
	if !c.inline {
		// Nothing here refers to the blob that this call wrote before it knew.
		c.p.events.blobUnneeded(layout.Blob(c.b.sha, c.b.gen))
	}
	return Result{Outcome: Duplicate, Manifest: m, ManifestKey: layout.Accepted(m.Identity), Elsewhere: true, Position: at}, nil
}

// conflict: another frame has the identity, or identities that are decided have some of its numbers.
func (c *globalCall) conflict(ctx context.Context, a ClaimAnswer) (Result, error) {
	there := Manifest{AuthorityID: c.p.authorityID, Identity: c.s.Identity, FrameSHA256: a.Claim.Hash, HomeRegion: a.Claim.Home}
	switch {
	// Who has the numbers is known, and not with which frame; a record of the conflict would have to say it.
	case a.Claim.Hash.IsZero(), a.Claim.Hash == c.s.SHA256:
		return Result{}, c.p.retry(ReasonClaimContested, fmt.Errorf("its numbers are those of %s in region %s", a.Claim.Identity, a.Claim.Home))
	}
	there.RawBlobKey = layout.Blob(a.Claim.Hash, 0) // of the home's bucket
	res := Result{Outcome: Conflict, Manifest: there, ManifestKey: layout.Accepted(c.s.Identity), Elsewhere: a.Claim.Home != c.cfg.Region || a.Outcome == ClaimRangeConflict}
	if a.Outcome == ClaimRangeConflict {
		res.Met = a.Claim.Identity
	}
	carried, err := c.b.quarantine(ctx, &res, c.inline)
	if err != nil {
		return Result{}, err
	}
	if c.inline && !carried {
		if err := c.b.ensure(ctx); err != nil {
			return Result{}, err
		}
		c.m.Inline, c.m.RawBlobKey = false, layout.Blob(c.b.sha, c.b.gen)
	}
	if !carried {
		if err := c.b.verifyNotCondemned(ctx); err != nil {
			return Result{}, err
		}
	}
	// The batch that has the identity was journalled by its home before it was settled, or its reconciler will do it.
	e := c.m.Entry(journal.Conflict)
	e.HomeRegion, e.ClaimEpoch = "", 0
	if res.Position, err = c.journal(ctx, e); err != nil {
		return Result{}, err
	}
	return res, nil
}

// replace: the region's key has another frame for ever, so the claim is made one for that frame. The region's reconciler completes
// it, which has what is needed to make sure of that frame; then this sender gets the answer conflict.
func (c *globalCall) replace(ctx context.Context, claim Claim, there Manifest) error {
	if claim.Fixed || claim.Bound {
		return c.p.retry(ReasonHomeLost, fmt.Errorf("it is decided for this frame, and the region's key has %s", there.FrameSHA256))
	}
	a, err := c.change(ctx, ClaimChange{Step: ReplaceClaim, Identity: c.s.Identity, Hash: there.FrameSHA256, ID: claim.ID, Epoch: claim.Stamp.Epoch})
	if err != nil {
		return err
	}
	c.p.events.claimReplaced(a.Outcome == ClaimHeld)
	return c.p.retry(ReasonClaimContested, fmt.Errorf("the region has a manifest of the frame %s, which is completed first", there.FrameSHA256))
}

// affirm writes that the manifest stands for a later claim as well: else a recovery may prefer a late manifest of another region.
// One that exists is as good, whatever its content: its key has the stamp.
func (c *globalCall) affirm(ctx context.Context, m Manifest, s identity.Stamp) error {
	rec := Affirmation{AuthorityID: c.p.authorityID, Identity: m.Identity, FrameSHA256: m.FrameSHA256, Stamp: s, HomeRegion: c.cfg.Region}
	_, created, err := objstore.CreateOrGet(ctx, c.p.store, rec.Key(), rec.Marshal(), MaxRecordBytes, jsonContent)
	if errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err) {
		err = nil
	}
	if err != nil {
		return c.p.failed(ctx, StepAffirmation, err)
	}
	if created {
		c.p.events.affirmed(rec.Key())
	}
	return nil
}

// change asks the linearizer.
func (c *globalCall) change(ctx context.Context, ch ClaimChange) (ClaimAnswer, error) {
	a, err := c.cfg.Claims.Change(ctx, ch)
	switch {
	// A caller that has left decided nothing. A deadline that passed did so because of the linearizer, and the sender's answer names that.
	case err != nil && ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return a, fmt.Errorf("claim: %w (%w: %v)", ctx.Err(), context.Cause(ctx), err)
	case errors.Is(err, ErrClaimDenied):
		return a, c.p.retry(ReasonLinearizerDenied, err)
	case err != nil:
		return a, c.p.retry(ReasonLinearizer, err)
	}
	return a, nil
}

// journal enters an outcome and waits until the entry is durable.
func (c *globalCall) journal(ctx context.Context, e journal.Entry) (journal.Position, error) {
	if c.p.journal == nil {
		return journal.Position{}, nil
	}
	t, err := c.p.journal.Add(e)
	if err != nil {
		return journal.Position{}, c.p.retry(ReasonJournalUnavailable, err)
	}
	return c.p.awaitEntry(ctx, t)
}
