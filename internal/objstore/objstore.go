// Package objstore is the small object-store interface that the core is written
// against. Back ends: s3 (production), mem (tests, simulation), fault (a
// decorator that injects faults). All pass internal/objstore/storetest.
package objstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Errors that callers branch on. Every error of a back end wraps exactly one of
// these, or is a context error that wraps ErrUnknown for a write.
var (
	// ErrNotFound: the key had no object at the time of the request.
	ErrNotFound = errors.New("not found")
	// ErrExists: a conditional create found an object (412).
	ErrExists = errors.New("exists")
	// ErrPreconditionFailed: If-Match did not hold (412), or the key is absent (404).
	ErrPreconditionFailed = errors.New("precondition failed")
	// ErrConflict: a conflicting conditional write was in flight (409). Nothing was
	// written, and nothing is known about the key. Send the request again.
	ErrConflict = errors.New("conditional request conflict")
	// ErrUnknown: a write may have been applied, or may be applied at any later time
	// (timeout, reset, 5xx). Resolve by creating again or by reading back, never by guessing.
	ErrUnknown = errors.New("outcome unknown")
	// ErrUnavailable: a read failed, and a later attempt may succeed.
	ErrUnavailable = errors.New("unavailable")
	// ErrChecksum of a write: the store refused a body that does not match its checksum;
	// nothing was written. Of a read: the object exists, but its bytes are repeatedly not
	// those that were stored. It is damaged, not absent, and the store is not down.
	ErrChecksum = errors.New("checksum mismatch")
	// ErrDenied: the credentials or a policy do not allow the request (401, 403).
	ErrDenied = errors.New("denied")
	// ErrNoBucket: the bucket does not exist.
	ErrNoBucket = errors.New("no such bucket")
	// ErrInvalid: the request can never succeed (bad key, too large, not supported).
	ErrInvalid = errors.New("invalid request")
)

// Unreadable reports whether a read failed because of the object itself: it is larger than
// the limit, or damaged at rest. Another attempt fails as well; the store itself works.
func Unreadable(err error) bool {
	return errors.Is(err, ErrInvalid) || errors.Is(err, ErrChecksum)
}

// Error carries the operation and key of a failed request. Err wraps one of the sentinels.
type Error struct {
	Op  string // "get", "head", "put", "create", "replace", "delete", "list"
	Key string
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("%s %q: %v", e.Op, e.Key, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Info describes a stored object.
type Info struct {
	Key          string
	Size         int64
	ETag         string // opaque, quoted as the store gives it
	LastModified time.Time
	// SHA256 is the checksum that the store verified and kept; zero when it has none.
	SHA256 identity.Digest
	// Replica says that the store's replication wrote the object, from another bucket. Get and
	// Head fill it; a listing does not tell.
	Replica bool
	// Version is the object's version id where the bucket is versioned; else empty. Get and Head fill it; a listing does not tell.
	Version string
}

// GetOptions selects what Get returns.
type GetOptions struct {
	// Offset and Length select a range, in bytes. Length 0 means to the end; a range past the
	// end is shortened. An Offset at or after the end is ErrInvalid, except 0 of an empty object.
	Offset, Length int64
	// Limit in bytes: a larger object, or range, is refused with ErrInvalid before it is read; 0 means 64 MiB.
	Limit int64
}

// PutOptions are the options of a write.
type PutOptions struct {
	// SHA256 of the body; it is sent, and the store verifies it. If it is zero, the back end computes it.
	SHA256 identity.Digest
	// ContentType, such as application/json.
	ContentType string
	// Tags are hints for people and lifecycle tools; no decision depends on them.
	Tags map[string]string
}

// DefaultGetLimit is GetOptions.Limit when it is 0.
const DefaultGetLimit = 64 << 20

// MaxListLimit is the most entries of a page.
const MaxListLimit = 1000

// ListOptions select a page.
type ListOptions struct {
	Prefix     string
	StartAfter string // only keys and common prefixes greater than this
	Limit      int    // at most this many keys and common prefixes; 0 means 1,000, the maximum
	Delimiter  string // "" or "/": keys that contain it after Prefix are grouped into CommonPrefixes
}

// Page is a part of a listing, in key order (UTF-8 bytes). A failed listing is an
// error, never an empty page.
type Page struct {
	Objects        []Info // Key, Size, ETag, LastModified; no SHA256
	CommonPrefixes []string
	// Next is the StartAfter of the next page; empty at the end.
	Next string
	// Date is the store's time of the answer, to the second; zero where the store does not say.
	Date time.Time
}

// Getter reads objects. Reads are strongly consistent.
type Getter interface {
	// Get reads an object into memory.
	Get(ctx context.Context, key string, o GetOptions) ([]byte, Info, error)
}

// Header describes objects without their bytes.
type Header interface {
	// Head describes an object, its checksum included where the store keeps one.
	Head(ctx context.Context, key string) (Info, error)
}

// Lister lists objects; List and Groups go through all pages.
type Lister interface {
	// List reads one page.
	List(ctx context.Context, o ListOptions) (Page, error)
}

// Reader is the read half of a store.
type Reader interface {
	Getter
	Header
	Lister
}

// Creator creates objects that must not exist yet.
type Creator interface {
	// Create writes the object if the key is absent (If-None-Match: *). Three outcomes:
	// nil is created, ErrExists is exists, ErrUnknown is unknown; ErrConflict, ErrChecksum,
	// ErrDenied, ErrNoBucket and ErrInvalid are refusals that wrote nothing. An error that
	// wraps both ErrUnknown and another one stands for several attempts (see Retry): then an
	// object that exists may be the caller's own.
	Create(ctx context.Context, key string, body []byte, o PutOptions) (Info, error)
}

// Replacer replaces objects that have not changed since they were read.
type Replacer interface {
	// Replace writes the object if its ETag still is etag (If-Match).
	Replace(ctx context.Context, key string, body []byte, etag string, o PutOptions) (Info, error)
}

// Putter writes objects that no decision depends on.
type Putter interface {
	// Put writes the object, and replaces an existing one.
	Put(ctx context.Context, key string, body []byte, o PutOptions) (Info, error)
}

// Deleter removes objects.
type Deleter interface {
	// Delete removes the object; an absent key is no error.
	Delete(ctx context.Context, key string) error
}

// VersionDeleter is implemented by stores that know versions.
type VersionDeleter interface {
	// DeleteVersion removes one version of an object for good, and no other; an absent one is no error.
	DeleteVersion(ctx context.Context, key, version string) error
}

// DeleteVersion removes the version of an object that Get or Head described, where the store knows versions. Else, and where
// the version is empty, it removes the object. On a versioned bucket a Delete hides the object behind a delete marker, and its
// bytes stay.
func DeleteVersion(ctx context.Context, s Deleter, key, version string) error {
	if v, ok := s.(VersionDeleter); ok && version != "" {
		return v.DeleteVersion(ctx, key, version)
	}
	return s.Delete(ctx, key)
}

// Writer is the write half of a store.
type Writer interface {
	Creator
	Replacer
	Putter
	Deleter
}

// Store is both halves.
type Store interface {
	Reader
	Writer
}
