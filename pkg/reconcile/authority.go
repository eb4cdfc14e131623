package reconcile

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

// authority is the id that manifests must carry: the configured one, else the
// store's own record, which never changes once it is there. Empty while the store has none.
func (r *Reconciler) authority(ctx context.Context) (string, error) {
	if r.AuthorityID != "" {
		return r.AuthorityID, nil
	}
	if id := r.own.Load(); id != nil {
		return *id, nil
	}
	body, _, err := r.Store.Get(ctx, layout.AuthorityKey, objstore.GetOptions{Limit: accept.MaxRecordBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	rec, err := accept.ParseAuthorityRecord(body)
	if err != nil {
		return "", err
	}
	r.own.Store(&rec.AuthorityID)
	return rec.AuthorityID, nil
}

// CheckAuthority compares the configured authority with the store's own record. It
// gives *accept.AuthorityError when they differ; a store without a record is well.
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
