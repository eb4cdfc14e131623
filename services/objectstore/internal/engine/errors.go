package engine

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// Decisions that callers branch on.
var (
	// ErrNotFound: the key, or the bucket of a bucket operation, is absent.
	ErrNotFound = errors.New("not found")
	// ErrNoBucket: the bucket of an object operation does not exist.
	ErrNoBucket = errors.New("no such bucket")
	// ErrBucketExists: the bucket to create is there already.
	ErrBucketExists = errors.New("bucket exists")
	// ErrBucketNotEmpty: the bucket to delete holds objects.
	ErrBucketNotEmpty = errors.New("bucket not empty")
	// ErrPrecondition: a condition did not hold; nothing was written.
	ErrPrecondition = errors.New("precondition failed")
	// ErrPoisoned: a write or fsync failed before; the store only reads until it is opened again.
	ErrPoisoned = errors.New("store is poisoned by a failed write")
	// ErrClosed: the engine is closed or not running.
	ErrClosed = errors.New("store is closed")
	// ErrCorrupt: stored bytes do not match their checksum. The error is a *CorruptError.
	ErrCorrupt = errors.New("corrupt")
	// ErrUncertain: writes of unknown keys were lost, and one of them may decide the condition.
	ErrUncertain = errors.New("not decidable: the log is damaged")
	// ErrFull: the disk is full but for the reserve. Deletes work.
	ErrFull = errors.New("disk is full")
	// ErrUnavailable: places of bodies do not answer; the request may be sent again.
	ErrUnavailable = body.ErrUnavailable
	// ErrIndexDamaged: the index has to be built again from the log.
	ErrIndexDamaged = errors.New("index is damaged")
	// ErrNoUpload: the multipart upload does not exist, or has ended.
	ErrNoUpload = errors.New("no such upload")
	// ErrPartChanged: a part was replaced between reading and completing.
	ErrPartChanged = errors.New("a part was replaced meanwhile")
	// ErrNoKey: bytes are encrypted with a key that was not given, or would have to be encrypted and there is no key.
	ErrNoKey = errors.New("no key")
	// ErrLocked: a retention or a legal hold protects the object.
	ErrLocked = errors.New("protected by object lock")
	// ErrLockNeedsVersions: object lock can be turned on only in a bucket with versioning.
	ErrLockNeedsVersions = errors.New("object lock needs versioning")
	// ErrLockOn: the versioning of a bucket with object lock cannot be suspended.
	ErrLockOn = errors.New("object lock is on")
	// ErrQuota: the write would let its bucket grow beyond its quota. Deletes work.
	ErrQuota = errors.New("the bucket's quota is used up")
	// ErrTooLarge: a record's name or metadata is over its limit.
	ErrTooLarge = errors.New("too large")
)

// MarkerError says that the version which was asked for is a delete marker. Version is its id; empty: the null version.
type MarkerError struct {
	Version  string
	Modified time.Time
}

func (e *MarkerError) Error() string { return "the version is a delete marker" }

// CorruptError names the place of damaged bytes.
type CorruptError struct {
	File   string
	Offset int64
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("corrupt: %s at byte %d: %s", e.File, e.Offset, e.Reason)
}

// Is makes errors.Is(err, ErrCorrupt) hold.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }
