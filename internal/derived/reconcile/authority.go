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
	id, err := accept.ReadAuthority(ctx, r.Store)
	if errors.Is(err, accept.ErrNoAuthority) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	r.own.Store(&id)
	return id, nil
}

// CheckAuthority compares the configured authority with the store's own record. It returns
// *accept.AuthorityError if they differ; a store without a record is no error.
func (r *Reconciler) CheckAuthority(ctx context.Context) error {
	if r.AuthorityID == "" {
		_, err := r.authority(ctx)
		return err
	}
	err := accept.EnsureAuthority(ctx, r.Store, r.AuthorityID, false)
	if errors.Is(err, accept.ErrNoAuthority) {
		return nil
	}
	return err
}
