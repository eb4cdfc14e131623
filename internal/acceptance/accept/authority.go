package accept

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// AuthorityKind is the kind of the authority record.
var AuthorityKind = record.Kind{Schema: "lightmetrics.authority.v1", Title: "authority record", MaxBytes: MaxRecordBytes}

// AuthorityRecord names the acceptance authority: one bucket and one prefix.
type AuthorityRecord struct {
	AuthorityID string
}

// Marshal writes the canonical JSON.
func (r AuthorityRecord) Marshal() []byte {
	var e record.Writer
	e.Begin(AuthorityKind, 128)
	e.Text("authority_id", r.AuthorityID)
	return e.End()
}

// ParseAuthorityRecord reads the record; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseAuthorityRecord(b []byte) (AuthorityRecord, error) {
	d := record.NewReader(AuthorityKind, b)
	r := AuthorityRecord{AuthorityID: d.NonEmpty("authority_id", MaxNameBytes)}
	if err := d.End(); err != nil {
		return AuthorityRecord{}, err
	}
	return r, nil
}

// ErrNoAuthority says that the store has no authority record and that the caller did not ask to create one.
var ErrNoAuthority = errors.New("the store has no authority record")

// ReadAuthority returns the id of the store's authority. Errors: ErrNoAuthority, which wraps
// objstore.ErrNotFound too, record.ErrCorrupt, record.ErrNewerVersion, or the store's.
func ReadAuthority(ctx context.Context, g objstore.Getter) (string, error) {
	r, _, err := record.Read(ctx, g, layout.AuthorityKey, AuthorityKind, ParseAuthorityRecord)
	if errors.Is(err, objstore.ErrNotFound) {
		return "", fmt.Errorf("%w: %w", ErrNoAuthority, err)
	}
	return r.AuthorityID, err
}

// AuthorityError says that the store belongs to another authority. A collector must refuse to run.
type AuthorityError struct {
	Want, Got string
}

func (e *AuthorityError) Error() string {
	return fmt.Sprintf("the store is the authority %q, configured is %q", e.Got, e.Want)
}

// authorityRounds bounds the reads and creates of one EnsureAuthority.
const authorityRounds = 4

// EnsureAuthority compares the store's authority record with id. With create it writes
// the record where the store has none. Errors: *AuthorityError (refuse to run),
// ErrNoAuthority, record.ErrCorrupt, record.ErrNewerVersion, *RetryError (call again, after a wait), or a context error.
func EnsureAuthority(ctx context.Context, store Store, id string, create bool) error {
	if err := validName("authority id", id); err != nil {
		return err
	}
	var last error
	for range authorityRounds {
		done, err := ensureAuthority(ctx, store, id, create)
		if done {
			return err
		}
		if e := ctx.Err(); e != nil {
			return fmt.Errorf("ensure authority: %w (%w)", e, err)
		}
		last = err
	}
	// Each round left it open what the record is, so the caller may start only after another call.
	return &RetryError{Reason: ReasonStoreUnavailable, After: DefaultPolicy().RetryAfter, Err: fmt.Errorf("ensure authority: %w", last)}
}

func ensureAuthority(ctx context.Context, store Store, id string, create bool) (done bool, err error) {
	got, err := ReadAuthority(ctx, store)
	switch {
	// Never overwritten: identities accepted under the other authority could be accepted
	// a second time under this one.
	case err == nil && got != id:
		return true, &AuthorityError{Want: id, Got: got}
	case err == nil:
		return true, nil
	// Further rounds would read the same bytes.
	case errors.Is(err, record.ErrCorrupt), errors.Is(err, record.ErrNewerVersion):
		return true, err
	case errors.Is(err, ErrNoAuthority):
		if !create {
			return true, err
		}
		// Before the authority: a bucket that has an authority record and no begin of the journal is one in
		// which batches were accepted without it.
		if err = (journal.Begin{AuthorityID: id, By: journal.ByAuthority}).Create(ctx, store); err != nil {
			break
		}
		if _, err = store.Create(ctx, layout.AuthorityKey, AuthorityRecord{AuthorityID: id}.Marshal(), jsonContent); err == nil {
			return true, nil
		}
	}
	if errors.Is(err, objstore.ErrDenied) || errors.Is(err, objstore.ErrNoBucket) || errors.Is(err, objstore.ErrInvalid) {
		return true, &RetryError{Reason: ReasonStoreDenied, Err: fmt.Errorf("ensure authority: %w", err)}
	}
	return false, err // exists, unknown, conflict, unavailable: the next round reads what is there
}
