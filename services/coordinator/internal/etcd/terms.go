package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// TermStore is what StoreTerms needs of the object store.
type TermStore interface {
	objstore.Getter
	objstore.Creator
	objstore.Replacer
}

// StoreTerms counts terms in one object, moved by If-Match. An outcome that is unknown
// costs a number.
type StoreTerms struct{ Store TermStore }

type termRecord struct {
	Term uint64 `json:"term"`
}

// Bounds of a term's object and number: the number fills a fence above etcd's revision.
// Between tries lies a random pause below termPause, doubled with each try up to
// termPauseMax, so that those who want a number at once don't meet again.
const (
	maxTermBytes = 4 << 10
	maxTerm      = 1<<(64-termBits) - 1
	termTries    = 20
	termPause    = time.Millisecond
	termPauseMax = 250 * time.Millisecond
)

// Next moves the count on.
func (t StoreTerms) Next(ctx context.Context) (uint64, error) {
	const key = layout.CoordinatorTermKey
	var last error
	for try := range termTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return 0, fmt.Errorf("move the coordinator's term: %w", ctx.Err())
			case <-time.After(rand.N(min(termPause<<try, termPauseMax))):
			}
		}
		b, info, err := t.Store.Get(ctx, key, objstore.GetOptions{Limit: maxTermBytes})
		var r termRecord
		switch {
		case errors.Is(err, objstore.ErrNotFound):
		case err != nil:
			return 0, fmt.Errorf("read the coordinator's term: %w", err)
		default:
			if err := json.Unmarshal(b, &r); err != nil {
				return 0, fmt.Errorf("read %s: %w", key, err)
			}
		}
		if r.Term >= maxTerm {
			return 0, fmt.Errorf("%s: term %d is the last", key, r.Term)
		}
		r.Term++
		body, put := []byte(encode(r)), objstore.PutOptions{ContentType: "application/json"}
		if info.ETag == "" {
			_, err = t.Store.Create(ctx, key, body, put)
		} else {
			_, err = t.Store.Replace(ctx, key, body, info.ETag, put)
		}
		if err == nil {
			return r.Term, nil
		}
		if ctx.Err() != nil || errors.Is(err, objstore.ErrDenied) || errors.Is(err, objstore.ErrNoBucket) || errors.Is(err, objstore.ErrInvalid) {
			return 0, fmt.Errorf("move the coordinator's term: %w", err)
		}
		last = err // another took the number, or nobody knows who has
	}
	return 0, fmt.Errorf("move the coordinator's term, %d times: %w", termTries, last)
}
