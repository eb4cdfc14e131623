package owner

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// unstamped says what manifests without a claim's stamp are worth. Where there is one authority alone a manifest is the acceptance.
// In the bucket of one of several regions it may be of the time before, and of a collector that died before it entered the batch:
// the linearizer has decided about it since, or will, and what counts has an entry of the journal.
type unstamped struct {
	store     objstore.Store
	authority string
}

// counts reports whether the batch of such a manifest counts.
func (u unstamped) counts(ctx context.Context, b accepted.Batch) (bool, error) {
	_, err := u.store.Head(ctx, layout.RegionsKey)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return true, nil
	case errors.Is(err, objstore.ErrDenied):
		return true, nil // a policy of before there were regions
	case err != nil:
		return false, fmt.Errorf("is the bucket one of several regions'? %w", err)
	}
	counted, err := history.Reader{Store: u.store, Authority: u.authority}.Counted(ctx, []accepted.Batch{b})
	if errors.Is(err, history.ErrIncomplete) {
		// Nobody can say. A batch too many in an hour has numbers of its own counted that may have lost; one too few has numbers
		// counted twice.
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return counted[b.Identity], nil
}
