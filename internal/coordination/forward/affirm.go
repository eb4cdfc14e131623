package forward

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// affirm writes beside a manifest that it stands under the stamp of a later claim as well. One that exists is as good,
// whatever its content: its key has the stamp.
func (f *Forwarder) affirm(ctx context.Context, m accept.Manifest, c claims.Claim) (created bool, err error) {
	rec := accept.Affirmation{
		AuthorityID: f.cfg.Accept.AuthorityID, Identity: m.Identity, FrameSHA256: m.FrameSHA256, Stamp: c.Stamp, HomeRegion: string(f.cfg.Region),
	}
	_, created, err = objstore.CreateOrGet(ctx, f.cfg.Store, rec.Key(), rec.Marshal(), accept.MaxRecordBytes, objstore.PutOptions{ContentType: "application/json"})
	if errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err) {
		err = nil
	}
	return created, err
}
