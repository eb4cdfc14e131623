// Package accept is the acceptance protocol: a batch is accepted exactly when its
// identity manifest is created by a conditional create. The steps, the reasons and
// the races are in docs/protocol/acceptance.md.
//
// The core is a deterministic state machine over interfaces (store, clock,
// randomness): no goroutines, no time.Now, so that a seeded scheduler can replay any interleaving.
package accept

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Submission is one decoded and validated frame. All fields are derived from
// Frame's bytes, never from transport metadata; SpoolID and Traceparent are the exceptions.
type Submission struct {
	// Frame is the exact bytes that are stored. Not retained after Accept returns.
	Frame    []byte
	Identity identity.Batch
	// SHA256 of Frame.
	SHA256 identity.Digest
	// Records is Identity.Count().
	Records uint64
	// MinTime and MaxTime of the samples, Unix nanoseconds.
	MinTime, MaxTime int64
	WireVersion      uint32
	FrameVersion     uint32
	// SpoolID is the sender's random spool id. The empty id is compared like any other.
	SpoolID string
	// Traceparent is W3C trace context; optional.
	Traceparent string
}

// Outcome of a submission. The zero value is not an outcome.
type Outcome uint8

// Outcomes.
const (
	Accepted  Outcome = iota + 1 // durable, counted by this submission
	Duplicate                    // durable, accepted before with the same bytes
	Conflict                     // another frame holds the identity; this one is quarantined
)

func (o Outcome) String() string {
	switch o {
	case Accepted:
		return "accepted"
	case Duplicate:
		return "duplicate"
	case Conflict:
		return "conflict"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// Result of a submission that has an outcome.
type Result struct {
	Outcome Outcome
	// Manifest is the identity's acceptance record: this call's, or the one that existed before.
	Manifest Manifest
	// ManifestKey and ManifestBytes as stored.
	ManifestKey   string
	ManifestBytes []byte
	// QuarantineKey of the submitted frame; only for Conflict. Empty where the record does not exist
	// yet: local_spool writes it at the landing.
	QuarantineKey string
	// Elsewhere: the accepted batch is another region's, or one of other sequence numbers; ManifestKey is not in this bucket, ManifestBytes
	// are unknown, and of a duplicate nothing here refers to the frame.
	Elsewhere bool
	// Met is, of a Conflict, the accepted identity, if it is another one that shares sequence numbers with the submitted one; else zero.
	Met identity.Batch
	// Position of the journal's segment that has this outcome. Zero in local_spool before the landing.
	Position journal.Position
}

// Acceptor decides submissions. Implementations: Protocol (s3_manifest) and
// spool.Spool (local_spool).
type Acceptor interface {
	// Accept returns a Result when the outcome is known and durable, else an error:
	// *RetryError (the outcome is unknown), *RefusedError (never retry), or a context error.
	Accept(ctx context.Context, s Submission) (Result, error)
}

// Reason is a stable code that callers branch on.
type Reason string

// Reasons of RetryError.
const (
	ReasonStoreUnavailable Reason = "STORE_UNAVAILABLE" // timeouts, 5xx, unresolved unknown outcomes
	ReasonStoreDenied      Reason = "STORE_DENIED"      // 403, missing bucket: not ready, alarm
	// ReasonStoreRefused: the store can't serve this one request (400, 405, 501, a key longer
	// than its file system allows). Raises an alarm, but other submissions may pass.
	ReasonStoreRefused    Reason = "STORE_REFUSED"
	ReasonContended       Reason = "CONTENDED"        // 409s or condemned generations beyond the bound
	ReasonCorruptManifest Reason = "CORRUPT_MANIFEST" // the manifest is there but unreadable: an operator must check it
	// ReasonCorruptBootRecord is the same for a boot record.
	ReasonCorruptBootRecord Reason = "CORRUPT_BOOT_RECORD"
	// ReasonCorruptCondemnedHour: the record of the batch's hour does not tell which generations are condemned.
	ReasonCorruptCondemnedHour Reason = "CORRUPT_CONDEMNED_HOUR"
	// ReasonNewerRecord: a newer release wrote a record that this collector must not interpret.
	ReasonNewerRecord Reason = "NEWER_RECORD"
	// ReasonReplica: a replication of the store wrote the record; see ErrReplica.
	ReasonReplica Reason = "REPLICA"
	// ReasonJournalUnavailable: the outcome is in the bucket, but not yet in the journal.
	ReasonJournalUnavailable Reason = "JOURNAL_UNAVAILABLE"
	// ReasonLinearizer: the identity linearizer did not answer, or not yet. Nothing is accepted without it.
	ReasonLinearizer Reason = "LINEARIZER_UNAVAILABLE"
	// ReasonLinearizerDenied: it refuses this collector's credentials, or that it acts for its region; or the region takes no part.
	ReasonLinearizerDenied Reason = "LINEARIZER_DENIED"
	// ReasonClaimPending: another region, or another call, is accepting the same frame, or has not journalled it yet.
	ReasonClaimPending Reason = "CLAIM_PENDING"
	// ReasonClaimContested: a claim by another frame, or of other sequence numbers, that may yet be given up stands in the way.
	ReasonClaimContested Reason = "CLAIM_CONTESTED"
	// ReasonHomeLost: the frame is decided, and this region can't have it, because its key has another; another region may.
	ReasonHomeLost Reason = "HOME_LOST"
	// ReasonSpoolFull and ReasonSpoolFailed are those of local_spool.
	ReasonSpoolFull   Reason = "SPOOL_FULL"
	ReasonSpoolFailed Reason = "SPOOL_FAILED" // a local disk error: nothing is accepted until a restart
)

// Reasons of RefusedError.
const (
	ReasonBootIDClash       Reason = "BOOT_ID_CLASH"      // the boot id belongs to another spool
	ReasonInvalidSubmission Reason = "INVALID_SUBMISSION" // the caller derived it wrongly from the frame
)

// RetryError says that the outcome is unknown: the sender keeps the bytes and sends the same again.
type RetryError struct {
	Reason Reason
	After  time.Duration // hint; 0 is none
	Err    error
}

func (e *RetryError) Error() string { return fmt.Sprintf("retry (%s): %v", e.Reason, e.Err) }

// Unwrap returns the cause.
func (e *RetryError) Unwrap() error { return e.Err }

// RefusedError says that this submission can never be accepted.
type RefusedError struct {
	Reason Reason
	Err    error
}

func (e *RefusedError) Error() string { return fmt.Sprintf("refused (%s): %v", e.Reason, e.Err) }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// Clock is the time of day. It only stamps records: no decision of the protocol depends on it.
type Clock interface{ Now() time.Time }

// ErrNotQualified is wrapped by every failure of the start-up probe.
var ErrNotQualified = errors.New("store is not qualified")
