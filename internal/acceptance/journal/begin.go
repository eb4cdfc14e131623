package journal

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// BeginKind is the kind of the record that the journal is complete.
var BeginKind = record.Kind{Schema: "lightmetrics.journal_begin.v1", Title: "begin of the journal", MaxBytes: 4 << 10}

// How a journal became complete.
const (
	// ByAuthority: the authority began with the journal, so every batch was journalled before it was answered.
	ByAuthority = "authority"
	// ByAudit: a full audit wrote entries for what was accepted before the journal began.
	ByAudit = "audit"
)

// Begin says that the journal has every batch that was ever answered. Without it the bucket may
// have accepted batches from before the journal, which only a full audit finds; until then no
// follower may say that it has seen everything.
type Begin struct {
	// AuthorityID of the bucket.
	AuthorityID string `json:"authority_id"`
	// By is ByAuthority or ByAudit.
	By string `json:"by"`
	// Audit is the key of the audit's record; empty for ByAuthority.
	Audit string `json:"audit,omitempty"`
}

// ParseBegin reads the record; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseBegin(b []byte) (Begin, error) {
	var r Begin
	err := BeginKind.Unmarshal(b, &r)
	if err == nil && (r.AuthorityID == "" || r.By != ByAuthority && r.By != ByAudit) {
		err = fmt.Errorf("by %.40q, of the authority %.40q", r.By, r.AuthorityID)
	}
	return r, BeginKind.Wrap(layout.JournalBeginKey, err)
}

// Create writes the record; one that exists is as good.
func (r Begin) Create(ctx context.Context, s objstore.Creator) error {
	_, err := s.Create(ctx, layout.JournalBeginKey, BeginKind.Marshal(r), headContent)
	if err != nil && !errors.Is(err, objstore.ErrExists) {
		return fmt.Errorf("create %q: %w", layout.JournalBeginKey, err)
	}
	return nil
}

// HasBegun reports whether the journal is complete for what was answered. Once it is, it stays so.
func HasBegun(ctx context.Context, g objstore.Getter) (bool, error) {
	_, _, err := record.Read(ctx, g, layout.JournalBeginKey, BeginKind, ParseBegin)
	if errors.Is(err, objstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
