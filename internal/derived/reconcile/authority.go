package reconcile

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
)

// authority returns the id that manifests must carry: the configured one, else that of the
// store's record, which never changes once it exists. It is empty while the store has no record.
func (r *Reconciler) authority(ctx context.Context) (string, error) {
	if r.AuthorityID != "" {
		return r.AuthorityID, nil
	}
	if id := r.own.Load(); id != nil {
		return *id, nil
	}
	a, err := accept.ReadAuthority(ctx, r.Store)
	if errors.Is(err, accept.ErrNoAuthority) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	r.own.Store(&a.AuthorityID)
	return a.AuthorityID, nil
}

// CheckAuthority checks that the store is the configured authority, or any, and no copy of it. It
// returns *accept.AuthorityError if it is not; a store without a record is no error.
func (r *Reconciler) CheckAuthority(ctx context.Context) error {
	return accept.CheckAuthority(ctx, r.Store, r.AuthorityID)
}
