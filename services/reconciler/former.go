package reconciler

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// judge says what becomes of a manifest that stands in no run of the journal.
type judge interface {
	judge(context.Context, accept.Manifest) (audit.Judgement, error)
}

// formerRegion judges manifests of a bucket that was a region's until its linearizer was dissolved. There, a manifest may have lost
// against another region's: its sender was told a conflict, and nobody is left who could be asked. What says so is its quarantine
// record, which is not there of any other manifest.
type formerRegion struct{ store objstore.Getter }

func (f formerRegion) judge(ctx context.Context, m accept.Manifest) (audit.Judgement, error) {
	body, _, err := f.store.Get(ctx, layout.Quarantine(m.Identity, m.FrameSHA256), objstore.GetOptions{Limit: accept.MaxObjectBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return audit.Judgement{Finding: audit.Counted, Entry: m.Entry(journal.AuditedAccepted)}, nil
	}
	var c accept.ConflictRecord
	if err == nil {
		c, err = accept.ParseConflictRecord(body)
	}
	switch {
	case err == nil:
		return audit.Judgement{Finding: audit.Quarantined, Entry: c.Entry()}, nil
	case record.Opaque(err):
		// Its key says enough for the batch not to be counted.
		return audit.Judgement{Finding: audit.Undecided}, nil
	}
	return audit.Judgement{}, err
}
