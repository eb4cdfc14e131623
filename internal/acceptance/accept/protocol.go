package accept

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Store is what the protocol needs of an object store: strongly consistent reads and
// conditional creates. There is no delete and no overwrite in acceptance.
//
// The protocol sends each request once. Deadlines and further attempts are added by
// objstore.WithPolicy around the store that it gets. With further attempts an object that
// "exists" may be the call's own, so the protocol always compares.
type Store interface {
	objstore.Getter
	objstore.Header
	objstore.Creator
}

// Config of a Protocol. Store, CollectorID and AuthorityID are required.
type Config struct {
	Store Store
	// AuthorityID of the bucket and prefix behind Store; see EnsureAuthority.
	AuthorityID string
	// BoundAt is when the authority was bound to its place: records that a replication wrote
	// later are refused. Zero refuses none.
	BoundAt time.Time
	// CollectorID is this collector's name in the records that it writes.
	CollectorID string
	// Journal gets every outcome before Accept returns it. Nil is only for tests of the protocol alone:
	// followers never see what is in no journal.
	Journal Journal
	// Mode is written into boot records; empty is ModeS3Manifest.
	Mode Mode
	// Clock is run.WallClock; tests have their own.
	Clock Clock
	// Rand is the source of attempt ids: crypto/rand.Reader, except in tests. Must be safe for concurrent use.
	Rand io.Reader
	// Policy is DefaultPolicy when zero.
	Policy Policy
	// SparesMarker reports of a frame that the journal will probably say that no marker of it has to be read; see
	// journal.Ticket. Nil reads them always.
	SparesMarker func(identity.Digest) bool
	// InlineBelow: the records carry frames of fewer bytes, which then need no blob. At most MaxInlineFrame; 0 is
	// none. Collectors with different values may share a bucket.
	InlineBelow int
	// BootCache bounds the verified boot claims kept in memory; 0 means 16,384.
	BootCache int
	Events    Events
}

// Protocol accepts by identity manifest: the mode s3_manifest. It is safe for
// concurrent use, and has no goroutines and no state but the cache of boot claims.
type Protocol struct {
	store       Store
	authorityID string
	collectorID string
	mode        Mode
	clock       Clock
	rand        io.Reader
	policy      Policy
	journal     Journal
	spares      func(identity.Digest) bool
	inlineBelow int
	// boots caches the owners of recently used boots. Boot records never change, so an
	// entry is never stale.
	boots *lru.Cache[identity.Boot, string]
	// holders are identities of conflicts whose accepted batch was given to the journal lately.
	holders *lru.Cache[identity.Batch, struct{}]
	events  Events
}

// New checks the settings; it makes no request.
func New(c Config) (*Protocol, error) {
	if c.Store == nil || c.Clock == nil || c.Rand == nil {
		return nil, errors.New("accept: store, clock and randomness are needed")
	}
	if err := validName("authority id", c.AuthorityID); err != nil {
		return nil, err
	}
	if err := validName("collector id", c.CollectorID); err != nil {
		return nil, err
	}
	if c.Mode == "" {
		c.Mode = ModeS3Manifest
	}
	if !c.Mode.Valid() {
		return nil, fmt.Errorf("accept: mode %q", c.Mode)
	}
	if c.Policy == (Policy{}) {
		c.Policy = DefaultPolicy()
	}
	if err := c.Policy.Validate(); err != nil {
		return nil, fmt.Errorf("accept policy: %w", err)
	}
	if c.InlineBelow < 0 || c.InlineBelow > MaxInlineFrame {
		return nil, fmt.Errorf("accept: inline below %d is not 0 to %d bytes", c.InlineBelow, MaxInlineFrame)
	}
	if c.BootCache == 0 {
		c.BootCache = 16384
	}
	if !c.BoundAt.IsZero() {
		c.Store = noReplicas{c.Store, c.BoundAt}
	}
	return &Protocol{
		store: c.Store, authorityID: c.AuthorityID, collectorID: c.CollectorID, mode: c.Mode,
		clock: c.Clock, rand: c.Rand, policy: c.Policy, journal: c.Journal, spares: c.SparesMarker, inlineBelow: c.InlineBelow, boots: lru.New[identity.Boot, string](int64(c.BootCache)),
		holders: lru.New[identity.Batch, struct{}](maxHolders), events: c.Events,
	}, nil
}

func validName(what, s string) error {
	if s == "" || len(s) > MaxNameBytes || !utf8.ValidString(s) {
		return fmt.Errorf("accept: %s %q is not 1 to %d bytes of UTF-8", what, s, MaxNameBytes)
	}
	return nil
}

// Accept runs the protocol for one submission: claim the boot, blob, manifest,
// then the condemned marker of the blob relied on, and the journal beside it, whatever the
// outcome. On the common path of a claimed boot that is three requests, and a share of a segment. Of a frame that the
// manifest carries it is one request: nothing is relied on but the manifest itself.
func (p *Protocol) Accept(ctx context.Context, s Submission) (Result, error) {
	res, err := p.accept(ctx, s)
	if err != nil {
		return Result{}, wrap("accept "+s.Identity.String(), err)
	}
	return res, nil
}

func (p *Protocol) accept(ctx context.Context, s Submission) (Result, error) {
	if err := s.Validate(); err != nil {
		return Result{}, &RefusedError{Reason: ReasonInvalidSubmission, Err: err}
	}
	if err := p.claimBoot(ctx, s.Identity.BootOf(), s.SpoolID); err != nil {
		return Result{}, err
	}
	b := p.blobOf(s)
	inline := len(s.Frame) < p.inlineBelow
	if !inline {
		if err := b.ensure(ctx); err != nil {
			return Result{}, err
		}
	}
	// The manifest is made once, so that every attempt writes the same bytes with the same attempt id.
	m, err := s.NewManifest(b.gen, p.authorityID, p.collectorID, p.clock, p.rand)
	if err != nil {
		return Result{}, p.retry(ReasonStoreUnavailable, err)
	}
	if inline {
		m.Inline, m.RawBlobKey = true, ""
	}
	res, err := b.decide(ctx, m)
	if err != nil {
		return Result{}, err
	}
	// carried: the record that stands for the submitted frame has its bytes, so nobody relies on a blob of it.
	carried := res.Manifest.Inline
	if res.Outcome == Conflict {
		if carried, err = b.quarantine(ctx, &res, inline); err != nil {
			return Result{}, err
		}
	}
	switch {
	case inline && !carried:
		// A collector that writes blobs made the record, and may have died: this call makes sure of a blob as if
		// it wrote blobs itself. The reference is older than what it finds, and the marker is read after both.
		if err := b.ensure(ctx); err != nil {
			return Result{}, err
		}
		m.Inline, m.RawBlobKey = false, layout.Blob(b.sha, b.gen)
	case !inline && carried:
		p.events.blobUnneeded(layout.Blob(b.sha, b.gen))
	}
	// From here on the outcome is a fact, so its entry may be on its way while the marker is read. The
	// answer waits for both.
	entry, err := p.enter(res, m)
	if err != nil {
		return Result{}, err
	}
	// A segment that names an epoch of condemned names is as good as the marker, for the entries that it was checked for when
	// its bytes were fixed. Where this call hopes for that, it reads the marker only if the segment does not say so.
	hopes := !carried && entry != nil && p.spares != nil && p.spares(b.sha)
	// The marker is read last, on every path: only after the reference to the frame was
	// observed does an absent marker prove that the garbage collector can't miss it.
	if !carried && !hopes {
		if err := b.verifyNotCondemned(ctx); err != nil {
			return Result{}, err
		}
	}
	if res.Position, err = p.awaitEntry(ctx, entry); err != nil {
		return Result{}, err
	}
	if hopes {
		if err := b.verifyUnlessSpared(ctx, entry.Spared()); err != nil {
			return Result{}, err
		}
	}
	return res, nil
}

// blobOf is the frame of a submission, before anything was written.
func (p *Protocol) blobOf(s Submission) *blob {
	return &blob{p: p, frame: s.Frame, sha: s.SHA256, id: s.Identity, hour: timegrid.HourOfNS(s.MaxTime)}
}

// Validate checks what the records need. The hash itself is not computed: the store verifies it.
func (s Submission) Validate() error {
	if err := s.Identity.Validate(); err != nil {
		return err
	}
	switch {
	case len(s.Frame) == 0:
		return errors.New("frame is empty")
	case s.SHA256.IsZero():
		return errors.New("frame has no hash")
	case s.Records != s.Identity.Count():
		return fmt.Errorf("%w: %d records, the range has %d", identity.ErrInvalid, s.Records, s.Identity.Count())
	case s.MaxTime < s.MinTime:
		return errors.New("max time is before min time")
	}
	return ValidSpoolID(s.SpoolID)
}

// ValidSpoolID checks the length and the encoding; empty is valid.
func ValidSpoolID(s string) error {
	if len(s) > MaxNameBytes || !utf8.ValidString(s) {
		return fmt.Errorf("spool id %q is not up to %d bytes of UTF-8", s, MaxNameBytes)
	}
	return nil
}

// wrap adds the operation inside the typed errors, so that they stay outermost and callers can switch on their type.
func wrap(op string, err error) error {
	switch e := err.(type) {
	case *RetryError:
		return &RetryError{Reason: e.Reason, After: e.After, Err: fmt.Errorf("%s: %w", op, e.Err)}
	case *RefusedError:
		return &RefusedError{Reason: e.Reason, Err: fmt.Errorf("%s: %w", op, e.Err)}
	}
	return fmt.Errorf("%s: %w", op, err)
}
