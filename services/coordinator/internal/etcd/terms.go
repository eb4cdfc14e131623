package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// TermStore is what StoreTerms needs of the object store.
type TermStore interface {
	objstore.Getter
	objstore.Creator
	objstore.Replacer
}

// TermKind is the kind of the object that counts terms.
var TermKind = record.Kind{Schema: "lightmetrics.coordinator_term.v1", Title: "coordinator's term", MaxBytes: 4 << 10}

// StoreTerms counts terms in one object, moved by If-Match. An outcome that is unknown
// costs a number.
type StoreTerms struct{ Store TermStore }

// Term is the object: the last number that was given.
type Term struct {
	Term uint64 `json:"term"`
}

// ParseTerm reads the object. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseTerm(b []byte) (Term, error) {
	var t Term
	err := TermKind.Unmarshal(b, &t)
	return t, err
}

// maxTerm fills a fence above etcd's revision.
const maxTerm = 1<<(64-termBits) - 1

// contention bounds how often others may be faster; those who want a number at once do not
// meet again. The store has attempts of its own at what fails.
var contention = retry.Policy{Attempts: 20, Base: 2 * time.Millisecond, Cap: 250 * time.Millisecond}

// Next moves the count on.
func (t StoreTerms) Next(ctx context.Context) (n uint64, err error) {
	err = retry.Retrier{Policy: contention, Clock: run.WallClock{}, Jitter: rand.Float64}.Do(ctx, func(ctx context.Context) (err error) {
		n, err = t.next(ctx)
		return err
	}, func(err error) bool {
		// Another took the number, or nobody knows who has.
		return errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrPreconditionFailed) || errors.Is(err, objstore.ErrConflict) || errors.Is(err, objstore.ErrUnknown)
	})
	if err != nil {
		return 0, fmt.Errorf("move the coordinator's term: %w", err)
	}
	return n, nil
}

func (t StoreTerms) next(ctx context.Context) (uint64, error) {
	const key = layout.CoordinatorTermKey
	last, info, err := record.Read(ctx, t.Store, key, TermKind, ParseTerm)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return 0, err
	}
	if last.Term >= maxTerm {
		return 0, fmt.Errorf("%s: term %d is the last", key, last.Term)
	}
	next := Term{last.Term + 1}
	body, put := TermKind.Marshal(next), objstore.PutOptions{ContentType: "application/json"}
	// There is no object yet: the first term creates it, and of two coordinators one is refused.
	if info.ETag == "" {
		_, err = t.Store.Create(ctx, key, body, put)
	} else {
		_, err = t.Store.Replace(ctx, key, body, info.ETag, put)
	}
	return next.Term, err
}
