// Package fsck checks a bucket from its bytes alone and reports what is wrong. Every
// identity manifest must have its frame, byte for byte, or a log that says that the frame
// was removed on purpose; every quarantine record must have both frames; the journal must be readable, and
// have them all. It uses no derived state of the services, so it can check their work.
package fsck

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Problem is a stable code of a finding.
type Problem string

// Problems.
const (
	UnknownKey      Problem = "UNKNOWN_KEY"      // a key under our prefix that we never write
	BadManifest     Problem = "BAD_MANIFEST"     // unreadable, or not the identity that its key says
	NewerRecord     Problem = "NEWER_RECORD"     // a newer release wrote the record: check with that release's lmctl
	BadQuarantine   Problem = "BAD_QUARANTINE"   // unreadable, or not what its key says
	BlobMissing     Problem = "BLOB_MISSING"     // no generation of the frame hashes to its digest
	FrameInvalid    Problem = "FRAME_INVALID"    // the frame's bytes are right but it does not decode
	FrameMismatch   Problem = "FRAME_MISMATCH"   // the frame is of another identity, length or count than its manifest says
	BootMissing     Problem = "BOOT_MISSING"     // an accepted batch of a boot that was never claimed
	WinnerMissing   Problem = "WINNER_MISSING"   // a quarantine record whose identity has no manifest
	ForeignManifest Problem = "FOREIGN_MANIFEST" // the manifest carries another authority's id
	BadFrameLog     Problem = "BAD_FRAME_LOG"    // a record of removed frames can't be read: what it names counts as missing
	BadResolution   Problem = "BAD_RESOLUTION"   // a decision about conflicts, what an agent did about one, where it is parked, or a boot clash, that can't be read or contradicts the others
	ResolutionGap   Problem = "RESOLUTION_GAP"   // a decision behind one that is missing

	JournalUnreadable Problem = "JOURNAL_UNREADABLE" // an object of the journal that readers need is damaged, another's or not there
	JournalSpan       Problem = "JOURNAL_SPAN"       // a folded file, or a list, has what its span says it has not
	JournalGap        Problem = "JOURNAL_GAP"        // a segment behind one that is missing
	JournalPastEnd    Problem = "JOURNAL_PAST_END"   // a segment behind the end of its run
	EntryWrong        Problem = "ENTRY_WRONG"        // an entry whose manifest or quarantine record is not there, or is of another frame
	NotJournalled     Problem = "NOT_JOURNALLED"     // an old manifest or quarantine record that the journal does not have
	PositionsAhead    Problem = "POSITIONS_AHEAD"    // a record says that more was read than the journal has
	BadLedgers        Problem = "BAD_LEDGERS"        // the checkpoint of the ledgers can't be read: reconcilers make it again
	DerivedMissing    Problem = "DERIVED_MISSING"    // a derived key is not there; only where they are asked for
)

// Finding is one fault.
type Finding struct {
	Problem Problem
	Key     string
	Detail  string
}

func (f Finding) String() string { return fmt.Sprintf("%s %s: %s", f.Problem, f.Key, f.Detail) }

// maxFindings bounds the findings that are kept; Report.Found counts all.
const maxFindings = 1000

// staleNaN is Prometheus' staleness marker, bit for bit: a record, but not a sample that PromQL counts.
const staleNaN uint64 = 0x7ff0000000000002

// Options of a run.
type Options struct {
	// AuthorityID that manifests must carry; "" allows any.
	AuthorityID string
	// Limits of frames.
	Limits frame.Limits
	// OnBatch is called with every batch that counts and is intact; the batch is valid only during the call. In a region of several
	// it is not called with one whose entry came into the journal while that was read.
	OnBatch func(accept.Manifest, *frame.Batch)
	// OnQuarantine is called with every quarantine record that is intact.
	OnQuarantine func(accept.ConflictRecord)
	// Positions returns, by the keys of records, the positions in the journal that they say to have read, beside
	// those of the ledgers. It is called before the journal is read.
	Positions func(context.Context) (map[string]journal.Positions, error)
	// Unjournalled is the age from which a record that the journal does not have is a finding; 0 is
	// DefaultUnjournalled.
	Unjournalled time.Duration
	// DerivedKeys says that reconcilers write derived keys as objects, so that one that is missing is a finding.
	DerivedKeys bool
}

// Report is what a run found. What the journal of a region of several does not count is in Manifests and in Journal.Unasked alone.
type Report struct {
	Manifests   uint64
	Quarantined uint64
	Records     uint64 // of all manifests that count; a record of an overlap counts in each
	Samples     uint64 // float records that are not staleness markers
	FrameBytes  uint64
	// Removed counts accepted batches whose frames were removed on purpose, as a log says: no
	// finding. Of the counts above only Manifests includes them.
	Removed  uint64
	Found    uint64 // all findings, including those beyond the bound of Findings
	Findings []Finding
	Ledgers  map[identity.Boot]*ledger.Ledger
	Journal  Journal
}

// Healthy reports whether there is no finding.
func (r *Report) Healthy() bool { return r.Found == 0 }

// Run reads the journal and everything under accepted/, quarantine/ and resolution/. An error means that the store could
// not be read, and that nothing is known.
func Run(ctx context.Context, store objstore.Reader, o Options) (*Report, error) {
	c := &checker{store: store, o: o, boots: map[identity.Boot]bool{}, dec: frame.NewDecoder(), unasked: map[uint64]counted{},
		removed: framelog.NewIndex(store, o.AuthorityID), seed: maphash.MakeSeed(), r: &Report{Ledgers: map[identity.Boot]*ledger.Ledger{}}}
	switch _, _, err := store.Get(ctx, layout.RegionsKey, objstore.GetOptions{}); {
	case err == nil || objstore.Unreadable(err):
		c.regional = true
	case !errors.Is(err, objstore.ErrNotFound):
		return nil, fmt.Errorf("fsck: %w", err)
	}
	if err := c.journalBefore(ctx); err != nil {
		return nil, fmt.Errorf("fsck: %w", err)
	}
	for _, family := range []struct {
		prefix string
		check  func(context.Context, string) error
	}{{layout.AcceptedPrefix, c.manifest}, {layout.QuarantinePrefix, c.quarantine}} {
		for i, err := range objstore.List(ctx, store, objstore.ListOptions{Prefix: family.prefix}) {
			if err == nil {
				err = family.check(ctx, i.Key)
			}
			if err != nil {
				return nil, fmt.Errorf("fsck: %w", err)
			}
		}
	}
	if err := c.resolutions(ctx); err != nil {
		return nil, fmt.Errorf("fsck: %w", err)
	}
	for _, u := range c.removed.Unread() {
		c.found(BadFrameLog, u.Key, "%v", u.Err)
	}
	if err := c.journalAfter(ctx); err != nil {
		return nil, fmt.Errorf("fsck: %w", err)
	}
	return c.r, nil
}

type checker struct {
	store   objstore.Reader
	o       Options
	r       *Report
	removed *framelog.Index
	boots   map[identity.Boot]bool
	dec     *frame.Decoder
	batch   frame.Batch
	// seed is that of the marks of records and of entries.
	seed             maphash.Seed
	records, entries []mark
	// unasked are manifests that count only with an entry, which the first reading of the journal did not have, by the keys of
	// their marks: what they are counted as where the second one has it. At most maxMissing.
	unasked map[uint64]counted
	// regional: the bucket is that of one of several regions, so another one may have what was accepted.
	regional bool
}

func (c *checker) found(p Problem, key, format string, args ...any) {
	c.r.Found++
	if len(c.r.Findings) < maxFindings {
		c.r.Findings = append(c.r.Findings, Finding{p, key, fmt.Sprintf(format, args...)})
	}
}

// foundRecord reports a record that can't be used: as newer, where a later release wrote it, because there is
// nothing wrong with that one, else as bad.
func (c *checker) foundRecord(bad Problem, key string, err error) {
	if errors.Is(err, record.ErrNewerVersion) {
		bad = NewerRecord
	}
	c.found(bad, key, "%v", err)
}

// manifest checks one identity manifest, its boot and its frame.
func (c *checker) manifest(ctx context.Context, key string) error {
	id, err := layout.ParseAccepted(key)
	if err != nil {
		c.found(UnknownKey, key, "%v", err)
		return nil
	}
	raw, _, err := c.store.Get(ctx, key, objstore.GetOptions{})
	if err != nil && !objstore.Unreadable(err) {
		return err
	}
	c.r.Manifests++
	var m accept.Manifest
	if err == nil {
		m, err = accept.ParseManifest(raw)
	}
	if err != nil {
		marked := c.mark(key, identity.Digest{})
		marked.unasked = c.regional // a finding already
		c.remember(&c.records, marked)
		c.foundRecord(BadManifest, key, err)
		return nil
	}
	marked := c.mark(key, m.FrameSHA256)
	if marked.unasked = !c.counts(marked, m); marked.unasked {
		c.r.Journal.Unasked++
		if len(c.unasked) < maxMissing {
			c.unasked[marked.key] = counted{}
		}
	}
	c.remember(&c.records, marked)
	switch {
	case m.Identity != id:
		c.found(BadManifest, key, "the manifest is of %s", m.Identity)
		return nil
	case c.o.AuthorityID != "" && m.AuthorityID != c.o.AuthorityID:
		c.found(ForeignManifest, key, "authority %q", m.AuthorityID)
	}
	if err := c.boot(ctx, key, id.BootOf()); err != nil {
		return err
	}
	at := m.AcceptedTime()
	if err := c.derivedKeys(ctx, key, layout.AcceptedByTime(at, id), layout.AcceptedByBlob(m.FrameSHA256, id), layout.RawBlobByTime(at, m.FrameSHA256)); err != nil {
		return err
	}
	var body []byte
	if m.Inline {
		body = accept.InlineFrame(raw)
	} else if body, err = c.frame(ctx, m.FrameSHA256, m.RawBlobKey); err != nil {
		return err
	}
	if body != nil {
		c.account(key, marked, m, body)
		return nil
	}
	removed, err := c.removed.Removed(ctx, id)
	if err != nil {
		return err
	}
	if !removed {
		c.found(BlobMissing, key, "no generation of %s has its bytes", m.FrameSHA256)
		return nil
	}
	c.count(marked, countedOf(m))
	return nil
}

// counted is what a batch adds to the report.
type counted struct {
	boot                    identity.Boot
	numbers                 ledger.Entry
	records, samples, bytes uint64
	// removed: its frame was removed on purpose. Then it adds its numbers alone.
	removed bool
}

// countedOf is what a batch counts as whose frame was removed.
func countedOf(m accept.Manifest) counted {
	return counted{boot: m.Identity.BootOf(), numbers: ledger.Entry{Start: m.Identity.SeqStart, End: m.Identity.SeqEnd, AcceptedAt: m.AcceptedAt}, removed: true}
}

// counts reports whether a manifest says by itself that its batch counts here. Where several regions accept it may be a copy of a
// batch that another one counts, or have lost: then an entry of the journal says so, and what was accepted before the
// journal began.
func (c *checker) counts(marked mark, m accept.Manifest) bool {
	stamped := !m.Stamp().IsZero()
	if c.r.Journal.NotCompared || !stamped && !(c.regional && c.r.Journal.Complete) {
		return true
	}
	_, ok := find(c.entries, marked.key)
	return ok
}

// count adds a batch to the report, or keeps what it would add until its entry is found.
func (c *checker) count(marked mark, n counted) {
	if marked.unasked {
		if _, ok := c.unasked[marked.key]; ok {
			c.unasked[marked.key] = n
		}
		return
	}
	c.r.Records += n.records
	c.r.Samples += n.samples
	c.r.FrameBytes += n.bytes
	if n.removed {
		c.r.Removed++
	}
	l := c.r.Ledgers[n.boot]
	if l == nil {
		l = ledger.New(n.boot)
		c.r.Ledgers[n.boot] = l
	}
	l.Add(n.numbers)
}

// account checks a frame against its manifest and counts it.
func (c *checker) account(key string, marked mark, m accept.Manifest, body []byte) {
	if err := c.dec.Decode(body, &c.batch, c.o.Limits); err != nil {
		c.found(FrameInvalid, key, "%v", err)
		return
	}
	if c.batch.Identity != m.Identity || uint64(len(body)) != m.FrameBytes || c.batch.Records() != m.RecordCount {
		c.found(FrameMismatch, key, "frame of %s, %d bytes, %d records; manifest says %d bytes, %d records",
			c.batch.Identity, len(body), c.batch.Records(), m.FrameBytes, m.RecordCount)
		return
	}
	n := countedOf(m)
	n.records, n.bytes, n.removed = m.RecordCount, m.FrameBytes, false
	for _, g := range c.batch.Groups {
		for _, v := range g.Values {
			if math.Float64bits(v) != staleNaN {
				n.samples++
			}
		}
	}
	c.count(marked, n)
	if c.o.OnBatch != nil && !marked.unasked {
		c.o.OnBatch(m, &c.batch)
	}
}

// boot checks, once per boot, that its record exists.
func (c *checker) boot(ctx context.Context, key string, b identity.Boot) error {
	if c.boots[b] {
		return nil
	}
	c.boots[b] = true
	if _, err := c.store.Head(ctx, layout.Boot(b)); errors.Is(err, objstore.ErrNotFound) {
		c.found(BootMissing, key, "no %s", layout.Boot(b))
	} else if err != nil {
		return err
	}
	return nil
}

// quarantine checks one quarantine record: its frame, its winner.
func (c *checker) quarantine(ctx context.Context, key string) error {
	id, digest, err := layout.ParseQuarantine(key)
	if err != nil {
		c.found(UnknownKey, key, "%v", err)
		return nil
	}
	raw, _, err := c.store.Get(ctx, key, objstore.GetOptions{})
	if err != nil && !objstore.Unreadable(err) {
		return err
	}
	c.r.Quarantined++
	c.remember(&c.records, c.mark(key, digest))
	var q accept.ConflictRecord
	if err == nil {
		q, err = accept.ParseConflictRecord(raw)
	}
	if err != nil {
		c.foundRecord(BadQuarantine, key, err)
		return nil
	}
	switch {
	case q.Identity != id || q.SubmittedSHA256 != digest || q.AcceptedSHA256 == digest:
		c.found(BadQuarantine, key, "the record is of %s, submitted %s, accepted %s", q.Identity, q.SubmittedSHA256, q.AcceptedSHA256)
		return nil
	}
	if err := c.derivedKeys(ctx, key, layout.QuarantineByBlob(digest, id)); err != nil {
		return err
	}
	winner, _, err := c.store.Get(ctx, layout.Accepted(id), objstore.GetOptions{})
	if c.regional && (err == nil || errors.Is(err, objstore.ErrNotFound)) {
		// The winner may be another region's, or a batch that only shares numbers. What stands here may be the loser.
	} else if errors.Is(err, objstore.ErrNotFound) {
		c.found(WinnerMissing, key, "no %s", layout.Accepted(id))
		return nil
	} else if err != nil && !objstore.Unreadable(err) { // a damaged winner is already a finding under its own key
		return err
	}
	if m, err := accept.ParseManifest(winner); err == nil && m.FrameSHA256 != q.AcceptedSHA256 && !c.regional {
		c.found(BadQuarantine, key, "accepted is %s, the record says %s", m.FrameSHA256, q.AcceptedSHA256)
		return nil
	}
	var body []byte
	if q.Inline() {
		body = accept.InlineFrame(raw)
	} else if body, err = c.frame(ctx, digest, q.SubmittedBlobKey); err != nil {
		return err
	}
	if body == nil {
		c.found(BlobMissing, key, "no generation of the quarantined %s has its bytes", digest)
		return nil
	}
	if c.o.OnQuarantine != nil {
		c.o.OnQuarantine(q)
	}
	return nil
}

// frame reads the generation at first, then any other, whose bytes hash to d; nil when there is none.
func (c *checker) frame(ctx context.Context, d identity.Digest, first string) ([]byte, error) {
	body, err := c.generation(ctx, d, first)
	if body != nil || err != nil {
		return body, err
	}
	for i, err := range objstore.List(ctx, c.store, objstore.ListOptions{Prefix: layout.BlobStem(d)}) {
		if err != nil {
			return nil, err
		}
		if i.Key == first {
			continue
		}
		if body, err := c.generation(ctx, d, i.Key); body != nil || err != nil {
			return body, err
		}
	}
	return nil, nil
}

func (c *checker) generation(ctx context.Context, d identity.Digest, key string) ([]byte, error) {
	body, _, err := c.store.Get(ctx, key, objstore.GetOptions{})
	if errors.Is(err, objstore.ErrNotFound) || objstore.Unreadable(err) {
		return nil, nil
	}
	if err != nil || identity.Sum(body) != d {
		return nil, err
	}
	return body, nil
}
