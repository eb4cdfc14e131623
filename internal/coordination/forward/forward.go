// Package forward is the state machine of a region's reconciler towards the identity linearizer: it rolls claims forward
// that nobody goes on with, and says what an identity manifest is that stands in no run of the journal.
// docs/protocol/linearizer.md is the protocol, docs/protocol/reconcile.md the order of its steps here.
//
// Nothing is remembered between two calls: each begins with what the linearizer and the bucket say, and each of its writes may be
// repeated, by any number of reconcilers beside collectors. The package is deterministic: no goroutines, no clock and no
// randomness of its own.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Store is the bucket of the region.
type Store interface {
	accept.Store
	objstore.Lister
}

// Linearizer makes changes of claims.
type Linearizer interface {
	// Change makes one change. Errors are those of package claims.
	Change(context.Context, claims.Op) (claims.Answer, error)
}

// Config of a Forwarder.
type Config struct {
	// Region is the one whose claims are rolled forward: that of the bucket.
	Region claims.Region
	// Accept has the store, authority, name, clock and policy that records are written with.
	Accept accept.Config
	Store  Store
	Claims Linearizer
	// Rand is the source of claim ids.
	Rand io.Reader
	// Removed reports whether the batch's frame was removed on purpose; nil is never.
	Removed func(context.Context, identity.Batch) (bool, error)
	// TakeOver is how long a claim of another region has to be held before an audit takes it over.
	TakeOver time.Duration
}

// Forwarder rolls claims forward. It is safe for concurrent use.
type Forwarder struct{ cfg Config }

// New makes a Forwarder.
func New(c Config) (*Forwarder, error) {
	if err := c.Region.Validate(); err != nil {
		return nil, err
	}
	if c.Store == nil || c.Claims == nil || c.Rand == nil || c.Accept.Clock == nil || c.Accept.AuthorityID == "" || c.TakeOver < 0 {
		return nil, errors.New("forward: store, linearizer, randomness, clock and authority are needed")
	}
	c.Accept.Store = c.Store
	if c.Removed == nil {
		c.Removed = func(context.Context, identity.Batch) (bool, error) { return false, nil }
	}
	return &Forwarder{c}, nil
}

// Action is what became of a claim.
type Action string

// Actions.
const (
	// Completed: it became durable, and is to be journalled and settled.
	Completed Action = "completed"
	// Durable: it was durable already, and is to be journalled and settled.
	Durable Action = "durable"
	// Released: nobody has it now.
	Released Action = "released"
	// Moved: somebody went on with it meanwhile, or it is not one to roll forward.
	Moved Action = "moved"
	// Stuck: a person is needed. Its manifest can't be read, its frame is lost, or the region's key has another frame for ever.
	Stuck Action = "stuck"
)

// Actions lists all of them.
func Actions() []Action { return []Action{Completed, Durable, Released, Moved, Stuck} }

// Result of a step.
type Result struct {
	Action Action
	// Replaced: the claim was replaced by one for the frame that the region's key has. Affirmed: this call created the
	// affirmation of its stamp.
	Replaced, Affirmed bool
	// Why it was released or is stuck; for people.
	Why string
	// Entry of the journal and Claim, of one that is to be journalled and settled.
	Entry journal.Entry
	Claim claims.Claim
}

func (r Result) as(a Action, why string, args ...any) Result {
	r.Action, r.Why = a, fmt.Sprintf(why, args...)
	return r
}

// Roll goes on with one claim that a scan has found, until it is durable or released. One that is durable then has to be
// entered into the journal, and after that settled. Errors: nothing is concluded, and the next scan finds it again.
func (f *Forwarder) Roll(ctx context.Context, c claims.Claim) (Result, error) {
	r, err := f.roll(ctx, c)
	if err != nil {
		return Result{}, fmt.Errorf("roll forward %s: %w", c.Identity, err)
	}
	return r, nil
}

func (f *Forwarder) roll(ctx context.Context, c claims.Claim) (Result, error) {
	var r Result
	switch {
	case c.State == claims.Settled:
		return r.as(Moved, ""), nil
	case c.Home != f.cfg.Region:
		return r.as(Moved, ""), nil
	}
	m, err := f.manifest(ctx, c.Identity)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return f.withoutManifest(ctx, c)
	// Which frame the key has for ever is not known, so the claim can be neither completed nor released.
	case record.Opaque(err):
		return r.as(Stuck, "its manifest can't be read: %v", err), nil
	case err != nil:
		return r, err
	case c.State == claims.Durable && m.FrameSHA256 != c.Hash:
		return r.as(Stuck, "it is durable with the hash %s, and the bucket has %s", c.Hash, m.FrameSHA256), nil
	case c.State == claims.Durable:
		return f.durable(Durable, r, m, c), nil
	case m.FrameSHA256 == c.Hash:
		return f.complete(ctx, r, m, c)
	}
	return f.replace(ctx, m, c)
}

// withoutManifest: the collector died before it wrote one. That a late create still may is no harm: whatever is completed
// afterwards has a higher stamp.
func (f *Forwarder) withoutManifest(ctx context.Context, c claims.Claim) (Result, error) {
	var r Result
	switch {
	case c.State == claims.Durable:
		return r.as(Stuck, "it is durable, and the bucket has no manifest of it"), nil
	case c.Recovered:
		return r.as(Stuck, "it was recovered from a manifest that is not there any more"), nil
	}
	return f.release(ctx, r, c)
}

func (f *Forwarder) release(ctx context.Context, r Result, c claims.Claim) (Result, error) {
	a, err := f.change(ctx, claims.DoRelease, c, c.Hash)
	switch {
	case err != nil:
		return r, err
	case a.Outcome == claims.Released:
		return r.as(Released, ""), nil
	}
	return r.as(Moved, ""), nil
}

// replace: the region's key has another frame for ever, so the claim can't be completed for its own.
func (f *Forwarder) replace(ctx context.Context, m accept.Manifest, c claims.Claim) (Result, error) {
	var r Result
	switch {
	case c.Recovered:
		return r.as(Stuck, "it is decided for the hash %s, and the region's key has %s", c.Hash, m.FrameSHA256), nil
	case c.Bound:
		r.Why = fmt.Sprintf("it is decided for the hash %s, and the region's key has %s: another region may have room", c.Hash, m.FrameSHA256)
		return f.release(ctx, r, c)
	}
	a, err := f.change(ctx, claims.DoReplace, c, m.FrameSHA256)
	switch {
	case err != nil:
		return r, err
	case a.Outcome != claims.Held:
		return r.as(Moved, ""), nil
	}
	r.Replaced = true
	return f.complete(ctx, r, m, a.Claim)
}

// complete makes a claim durable whose manifest is there, with its hash.
func (f *Forwarder) complete(ctx context.Context, r Result, m accept.Manifest, c claims.Claim) (Result, error) {
	switch d := m.Stamp().Compare(c.Stamp); {
	// The claim is older than what the bucket has: the scan was late.
	case d > 0:
		return r.as(Moved, ""), nil
	// Else the next recovery might prefer a late manifest of another claim.
	case d < 0:
		created, err := f.affirm(ctx, m, c)
		if err != nil {
			return r, err
		}
		r.Affirmed = created
	}
	// After the manifest was read, as on every path to an acknowledgement.
	lost, err := f.keep(ctx, c.Identity)
	switch {
	case err != nil:
		return r, err
	case lost != "" && !c.Recovered:
		// Nobody was answered. A sender that has the bytes claims the identity again, and they are written.
		r.Why = lost
		return f.release(ctx, r, c)
	case lost != "":
		return r.as(Stuck, "%s", lost), nil
	}
	a, err := f.change(ctx, claims.DoComplete, c, c.Hash)
	switch {
	case err != nil:
		return r, err
	case a.Outcome != claims.Decided || a.Claim.Home != f.cfg.Region:
		return r.as(Moved, ""), nil
	}
	return f.durable(Completed, r, m, a.Claim), nil
}

// keep makes sure of the frame; lost says what is wrong.
func (f *Forwarder) keep(ctx context.Context, id identity.Batch) (lost string, err error) {
	standing, err := accept.Keep(ctx, f.cfg.Accept, f.cfg.Store, layout.Accepted(id))
	if err != nil || standing == accept.Stands {
		return "", err
	}
	removed, err := f.cfg.Removed(ctx, id)
	if err != nil || removed {
		return "", err
	}
	return "its frame is not in the bucket any more", nil
}

// durable is what is to be journalled and settled.
func (f *Forwarder) durable(a Action, r Result, m accept.Manifest, c claims.Claim) Result {
	r.Action, r.Claim = a, c
	r.Entry = m.Entry(journal.AuditedAccepted)
	// The manifest may have been written under an earlier claim.
	r.Entry.HomeRegion, r.Entry.ClaimEpoch = string(f.cfg.Region), c.Stamp.Epoch
	return r
}

// Settle notes that the journal has the batch. Its entry must be durable.
func (f *Forwarder) Settle(ctx context.Context, c claims.Claim) error {
	if c.State == claims.Settled {
		return nil
	}
	if _, err := f.change(ctx, claims.DoSettle, c, c.Hash); err != nil {
		return fmt.Errorf("settle %s: %w", c.Identity, err)
	}
	return nil
}

// change makes a change of a claim, under its own id: the calls of a region share it.
func (f *Forwarder) change(ctx context.Context, k claims.Kind, c claims.Claim, hash identity.Digest) (claims.Answer, error) {
	return f.cfg.Claims.Change(ctx, claims.Op{Kind: k, Identity: c.Identity, Hash: hash, ID: c.ID, Region: f.cfg.Region, Epoch: c.Stamp.Epoch, At: max(f.cfg.Accept.Clock.Now().UnixNano(), 0)})
}

// manifest reads the region's manifest of an identity. Errors wrap objstore.ErrNotFound where there is none, and are record.Opaque
// where it can't be used.
func (f *Forwarder) manifest(ctx context.Context, id identity.Batch) (accept.Manifest, error) {
	key := layout.Accepted(id)
	b, _, err := f.cfg.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
	if objstore.Unreadable(err) {
		return accept.Manifest{}, accept.ManifestKind.Corrupt(key, "%v", err)
	}
	if err != nil {
		return accept.Manifest{}, err
	}
	m, err := accept.ParseManifest(b)
	if err == nil && (m.Identity != id || m.AuthorityID != f.cfg.Accept.AuthorityID) {
		err = accept.ManifestKind.Corrupt(key, "it is of %s and the authority %q", m.Identity, m.AuthorityID)
	}
	return m, accept.ManifestKind.Wrap(key, err)
}
