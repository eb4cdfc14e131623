// Package journal is the log of everything that was answered "accepted", "duplicate" or
// "conflict". A collector gives such an answer only after the batch stands in a durable segment
// of its own run of the journal. So whoever has read all runs has seen every batch that any
// sender was told to be accepted, however many collectors are slow, paused or dead; and finding
// batches costs requests for each run, not for each batch or boot.
//
// The identity manifest's conditional create stays the only point of acceptance: the journal is
// derived, and a batch that is accepted and in no segment is found by the full audit.
//
// Writer writes the segments of a run. Follower reads all runs, and proves through which time
// it has seen everything. Folder moves what segments have into few large files, so that the
// segments can be deleted. docs/protocol/journal.md has the rules and the reasons, docs/format/journal.md
// the bytes. The package is deterministic: no goroutines, no clock, no randomness of its own.
package journal

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// RunID names a run: one life of one writer. It is random, held in memory only, and never used
// again: a second life in an old run would answer from segments that nobody reads any more.
type RunID [16]byte

func (r RunID) String() string { return hex.EncodeToString(r[:]) }

// Compare orders runs bytewise.
func (r RunID) Compare(o RunID) int { return cmp.Compare(string(r[:]), string(o[:])) }

// MarshalText writes lower-case hex.
func (r RunID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, r[:]), nil }

// UnmarshalText reads what MarshalText writes.
func (r *RunID) UnmarshalText(b []byte) error {
	var got RunID
	if n, err := hex.Decode(got[:], b[:min(len(b), 2*len(got))]); err != nil || n != len(got) || got.String() != string(b) {
		return fmt.Errorf("run id %.64q is not 32 digits of lower-case hex", b)
	}
	*r = got
	return nil
}

// ParseRunID reads the hex form.
func ParseRunID(s string) (r RunID, err error) { return r, r.UnmarshalText([]byte(s)) }

// NewRunID draws a run id.
func NewRunID(rand io.Reader) (r RunID, err error) {
	if _, err = io.ReadFull(rand, r[:]); err != nil {
		return RunID{}, fmt.Errorf("draw a run id: %w", err)
	}
	return r, nil
}

// Position is one segment of one run. The answer to a batch carries it, as a token with which a
// reader can wait until the batch is visible.
type Position struct {
	Run     RunID
	Segment uint64
}

func (p Position) String() string {
	var b [64]byte
	return string(strconv.AppendUint(append(hex.AppendEncode(b[:0], p.Run[:]), ':'), p.Segment, 10))
}

// Key is the key of the segment.
func (p Position) Key() string { return layout.JournalSegment(p.Run, p.Segment) }

// ParsePosition reads what String writes.
func ParsePosition(s string) (Position, error) {
	var p Position
	if len(s) < 34 || s[32] != ':' {
		return p, fmt.Errorf("journal position %.80q is not <run>:<segment>", s)
	}
	err := p.Run.UnmarshalText([]byte(s[:32]))
	if err == nil {
		_, err = fmt.Sscanf(s[33:], "%d", &p.Segment)
	}
	if err != nil || p.String() != s {
		return Position{}, fmt.Errorf("journal position %.80q is not <run>:<segment>", s)
	}
	return p, nil
}

// Outcome is what an entry says of its batch.
type Outcome uint8

// Outcomes. The numbers are part of the format.
const (
	// Accepted: the submission created the manifest.
	Accepted Outcome = 1
	// Duplicate: the manifest existed with the same hash, or a conflict found it, and the entry is about the batch that
	// holds the identity. It may stand in another run as well, or in none, if the collector that created it died before it
	// could write.
	Duplicate Outcome = 2
	// Conflict: the manifest existed with another hash. The entry is about the frame that was
	// submitted and is in quarantine.
	Conflict Outcome = 3
	// AuditedAccepted and AuditedConflict: an audit found the manifest, or the quarantine record, in no run.
	AuditedAccepted Outcome = 4
	AuditedConflict Outcome = 5
	// Elsewhere: a duplicate whose home is another region, which HomeRegion names. It was answered here, and the batch is none
	// of this region: there is no manifest here, or one that does not count, and nobody counts the entry.
	Elsewhere Outcome = 6
)

func (o Outcome) String() string {
	switch o {
	case Accepted:
		return "accepted"
	case Duplicate:
		return "duplicate"
	case Conflict:
		return "conflict"
	case AuditedAccepted:
		return "audited_accepted"
	case AuditedConflict:
		return "audited_conflict"
	case Elsewhere:
		return "elsewhere"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// Conflict reports whether the entry is about a frame in quarantine, and not about an accepted batch.
func (o Outcome) Conflict() bool { return o == Conflict || o == AuditedConflict }

// Counts reports whether the entry is about a batch that this region has accepted: no frame in quarantine, and no batch
// that another region counts.
func (o Outcome) Counts() bool { return o.valid() && !o.Conflict() && o != Elsewhere }

func (o Outcome) valid() bool { return o >= Accepted && o <= Elsewhere }

// Entry has what followers need of an identity manifest, or of a quarantine record, so that
// nobody has to read it.
type Entry struct {
	ID      identity.Batch
	Outcome Outcome
	// SHA256 and Bytes of the accepted frame; of a conflict those of the frame in quarantine, whose Bytes
	// may be 0 and whose times may be At, where an audit had nothing but its record.
	SHA256 identity.Digest
	Bytes  uint64
	// Generation of the blob that a reader tries first. It may be condemned later.
	Generation uint32
	// Inline: the manifest, or the quarantine record, carries the frame. Generation is 0.
	Inline bool
	// At is when the batch was accepted, of a conflict when it was observed, by the collector's
	// clock; MinTime and MaxTime are those of the samples. Unix nanoseconds.
	At, MinTime, MaxTime int64
	// HomeRegion is the region that counts the batch, and ClaimEpoch the epoch of its claim; empty where there are no regions.
	HomeRegion string
	ClaimEpoch uint64
}

// Batch is the reference to the accepted batch. It must be called only where the outcome Counts.
func (e *Entry) Batch() accepted.Batch {
	return accepted.Batch{
		Identity: e.ID, FrameSHA256: e.SHA256, FrameBytes: e.Bytes, RawBlobKey: e.FrameKey(),
		AcceptedAt: e.At, MinTime: e.MinTime, MaxTime: e.MaxTime, HomeRegion: e.HomeRegion, ClaimEpoch: e.ClaimEpoch,
	}
}

// FrameKey is the key of the object that a reader takes the frame from first; of a batch that is elsewhere there may be none.
func (e *Entry) FrameKey() string {
	switch {
	case !e.Inline:
		return layout.Blob(e.SHA256, e.Generation)
	case e.Outcome.Conflict():
		return layout.Quarantine(e.ID, e.SHA256)
	}
	return layout.Accepted(e.ID)
}

// maxRegionBytes bounds HomeRegion.
const maxRegionBytes = 64

// Validate refuses values that no accepted batch and no conflict has.
func (e *Entry) Validate() error {
	if err := e.ID.Validate(); err != nil {
		return err
	}
	switch {
	case !e.Outcome.valid():
		return fmt.Errorf("%s: outcome %d", e.ID, e.Outcome)
	case e.SHA256.IsZero():
		return fmt.Errorf("%s: the frame's hash is zero", e.ID)
	case e.Bytes == 0 && !e.Outcome.Conflict(): // a quarantine record does not say how long its frame is
		return fmt.Errorf("%s: the frame has no bytes", e.ID)
	case e.Inline && e.Generation != 0:
		return fmt.Errorf("%s: generation %d of a frame that has no blob", e.ID, e.Generation)
	case e.MaxTime < e.MinTime:
		return fmt.Errorf("%s: the last sample is before the first", e.ID)
	case len(e.HomeRegion) > maxRegionBytes:
		return fmt.Errorf("%s: a home region of %d bytes, at most %d", e.ID, len(e.HomeRegion), maxRegionBytes)
	// The bucket of this region promises no frame of it.
	case e.Outcome == Elsewhere && (e.HomeRegion == "" || e.Inline || e.Generation != 0):
		return fmt.Errorf("%s: a batch that is elsewhere has a home region, and no frame here", e.ID)
	}
	return nil
}

// Compare is the order of entries in a file: by identity; then conflicts after the accepted batch,
// by hash; then the rest, so that equal sets of entries are equal bytes.
func (e *Entry) Compare(o *Entry) int {
	return cmp.Or(e.ID.Compare(o.ID), cmp.Compare(e.Outcome, o.Outcome), cmp.Compare(string(e.SHA256[:]), string(o.SHA256[:])),
		cmp.Compare(e.At, o.At), cmp.Compare(e.place(), o.place()), cmp.Compare(e.Bytes, o.Bytes),
		cmp.Compare(e.MinTime, o.MinTime), cmp.Compare(e.MaxTime, o.MaxTime),
		cmp.Compare(e.ClaimEpoch, o.ClaimEpoch), cmp.Compare(e.HomeRegion, o.HomeRegion))
}

// place is what the column of generations has in a file with frames that records carry: 0 for these, else one more than
// the generation.
func (e *Entry) place() uint64 {
	if e.Inline {
		return 0
	}
	return uint64(e.Generation) + 1
}

// Ticket is an entry that was given to a writer, and is perhaps not durable yet.
type Ticket interface {
	// Wait returns the position of the entry's segment once that is durable. If ctx ends first the entry
	// is written all the same, which is harmless: what it says of its batch is true already.
	Wait(ctx context.Context) (Position, error)
	// Spared reports, after Wait has returned a position, that the entry's segment names an epoch of condemned names that does
	// not have its frame: an answer needs no marker read.
	Spared() bool
}

// Store is what the journal needs of an object store. It must be strongly consistent.
type Store interface {
	objstore.Getter
	objstore.Lister
	objstore.Creator
	objstore.Replacer
	objstore.Deleter
}
