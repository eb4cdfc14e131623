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

// AuthorityStore is what creating and binding the authority record needs of a store.
type AuthorityStore interface {
	objstore.Getter
	objstore.Creator
	objstore.Replacer
}

// authorityRounds bounds the reads of one EnsureAuthority or MoveAuthority, each with one write at most.
const authorityRounds = 8

// EnsureAuthority checks that the store is the authority id, and binds a record that is not
// bound yet to its place: that of an earlier release, or the one that it writes itself, with
// create, where the store has none. Errors: *AuthorityError (refuse to run), ErrNoAuthority,
// record.ErrCorrupt, record.ErrNewerVersion, objstore.ErrInvalid, *RetryError (call again, after
// a wait), or a context error.
//
// A store that denies the write of a binding keeps the record that it has, and is the authority
// all the same: Bound of the result is false then.
func EnsureAuthority(ctx context.Context, store AuthorityStore, id string, create bool) (Authority, error) {
	if err := validName("authority id", id); err != nil {
		return Authority{}, err
	}
	if err := checkPlace(objstore.PlaceOf(store)); err != nil {
		return Authority{}, err
	}
	return authorityInRounds(ctx, "ensure authority", func() (Authority, bool, error) {
		return ensureAuthority(ctx, store, id, create)
	})
}

// authorityInRounds calls fn until it is done. A round that is not left open what the record is.
func authorityInRounds(ctx context.Context, what string, fn func() (a Authority, done bool, err error)) (Authority, error) {
	var last error
	for range authorityRounds {
		a, done, err := fn()
		if done {
			return a, err
		}
		if e := ctx.Err(); e != nil {
			return Authority{}, fmt.Errorf("%s: %w (%w)", what, e, err)
		}
		last = err
	}
	return Authority{}, &RetryError{Reason: ReasonStoreUnavailable, After: DefaultPolicy().RetryAfter, Err: fmt.Errorf("%s: %w", what, last)}
}

func ensureAuthority(ctx context.Context, store AuthorityStore, id string, create bool) (a Authority, done bool, err error) {
	a, err = ReadAuthority(ctx, store)
	switch {
	// Never overwritten: identities accepted under the other authority could be accepted
	// a second time under this one.
	case (err == nil || a.Problem != nil) && a.AuthorityID != id:
		return a, true, &AuthorityError{Reason: AuthorityOther, Want: id, Got: a.AuthorityID}
	case err == nil && a.bindingDone():
		return a, true, nil
	case err == nil:
		err = a.bind(ctx, store)
		if errors.Is(err, objstore.ErrDenied) {
			return a, true, nil
		}
	// Further rounds would read the same bytes.
	case a.Problem != nil, errors.Is(err, record.ErrCorrupt), errors.Is(err, record.ErrNewerVersion):
		return a, true, err
	case errors.Is(err, ErrNoAuthority):
		if !create {
			return a, true, err
		}
		// Before the authority: a bucket that has an authority record and no begin of the journal is one in
		// which batches were accepted without it.
		if err = (journal.Begin{AuthorityID: id, By: journal.ByAuthority}).Write(ctx, store); err != nil {
			break
		}
		body := AuthorityRecord{AuthorityID: id, Place: objstore.PlaceOf(store)}.Marshal()
		_, err = store.Create(ctx, layout.AuthorityKey, body, jsonContent)
	}
	if err != nil {
		// Exists, changed, unknown, conflict, unavailable: the next round reads what is there.
		done = errors.Is(err, objstore.ErrDenied) || errors.Is(err, objstore.ErrNoBucket) || errors.Is(err, objstore.ErrInvalid)
	}
	if done {
		err = &RetryError{Reason: ReasonStoreDenied, Err: fmt.Errorf("ensure authority: %w", err)}
	}
	return a, done, err
}

// bindingDone reports whether there is nothing to write: the record is bound, with the time, or
// the store is nowhere.
func (a Authority) bindingDone() bool {
	return a.At == objstore.Place{} || a.Bound() && a.BoundAt != 0
}

// bind takes the next of two steps: it writes the place, then, with the time at which the store
// wrote that, the finished binding. No other clock than the store's takes part. Both replace
// only the object that was read, so of several collectors that start at once one binds, and a
// binding is never undone by one that slept.
func (a Authority) bind(ctx context.Context, store AuthorityStore) error {
	next := a.AuthorityRecord
	if next.CreatedAt == 0 {
		next.CreatedAt = max(a.WrittenAt.UnixNano(), 0)
	}
	if !a.Bound() {
		next.Place = a.At
	} else {
		next.BoundAt = max(a.WrittenAt.UnixNano(), 0)
	}
	_, err := store.Replace(ctx, layout.AuthorityKey, next.Marshal(), a.etag, jsonContent)
	return err
}

// ErrMoved says that somebody else changed the authority record meanwhile.
var ErrMoved = errors.New("the authority record was changed meanwhile")

// MoveAuthority binds the record to the place of the store, whatever it was bound to, a replica's
// too, and returns it as it is then. from is what InspectAuthority returned: the caller has seen
// what is replaced, and another record than that is refused with ErrMoved. Other errors are those
// of EnsureAuthority.
//
// It is for an operator who knows that nothing accepts at the old place any more.
func MoveAuthority(ctx context.Context, store AuthorityStore, from Authority) (Authority, error) {
	at := objstore.PlaceOf(store)
	if err := checkPlace(at); err != nil {
		return Authority{}, err
	}
	first := AuthorityRecord{AuthorityID: from.AuthorityID, Place: at, CreatedAt: from.CreatedAt}
	if first.CreatedAt == 0 {
		first.CreatedAt = max(from.WrittenAt.UnixNano(), 0)
	}
	written := false
	return authorityInRounds(ctx, "move authority", func() (a Authority, done bool, err error) {
		a, err = InspectAuthority(ctx, store)
		switch {
		case errors.Is(err, ErrNoAuthority), errors.Is(err, record.ErrCorrupt), errors.Is(err, record.ErrNewerVersion):
			return a, true, err
		case err != nil:
			return a, false, err
		case a.etag == from.etag && !written:
			_, err = store.Replace(ctx, layout.AuthorityKey, first.Marshal(), a.etag, jsonContent)
			// An unknown outcome is read back; only what was read before is replaced.
			if err == nil {
				written = true
			}
		case a.AuthorityID != first.AuthorityID || a.Place != at || a.CreatedAt != first.CreatedAt:
			return a, true, ErrMoved
		case a.BoundAt == 0:
			err = a.bind(ctx, store)
		case a.Problem != nil:
			return a, true, a.Problem
		default:
			return a, true, nil
		}
		if errors.Is(err, objstore.ErrDenied) || errors.Is(err, objstore.ErrNoBucket) || errors.Is(err, objstore.ErrInvalid) {
			return a, true, &RetryError{Reason: ReasonStoreDenied, Err: fmt.Errorf("move authority: %w", err)}
		}
		return a, false, err
	})
}
