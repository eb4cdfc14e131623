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
// follower may say that it has seen everything. The same is so while it does not cover what the head
// says is lost.
type Begin struct {
	// AuthorityID of the bucket.
	AuthorityID string `json:"authority_id"`
	// By is ByAuthority or ByAudit.
	By string `json:"by"`
	// Audit is the key of the audit's record; empty for ByAuthority.
	Audit string `json:"audit,omitempty"`
	// Head is the number of the head before the audit began: it has entered what had been lost by then. 0 for ByAuthority.
	Head uint64 `json:"head,omitempty"`
}

// ParseBegin reads the record; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseBegin(b []byte) (Begin, error) {
	var r Begin
	err := BeginKind.Unmarshal(b, &r)
	if err == nil && (r.AuthorityID == "" || r.By != ByAuthority && r.By != ByAudit || r.By == ByAuthority && r.Head > 0) {
		err = fmt.Errorf("by %.40q, of the authority %.40q, head %d", r.By, r.AuthorityID, r.Head)
	}
	return r, BeginKind.Wrap(layout.JournalBeginKey, err)
}

// ReadBegin reads the record; the zero Begin, which covers nothing, where there is none.
func ReadBegin(ctx context.Context, g objstore.Getter) (Begin, error) {
	b, _, err := readBegin(ctx, g)
	return b, err
}

func readBegin(ctx context.Context, g objstore.Getter) (Begin, string, error) {
	b, info, err := record.Read(ctx, g, layout.JournalBeginKey, BeginKind, ParseBegin)
	if errors.Is(err, objstore.ErrNotFound) {
		return Begin{}, "", nil
	}
	return b, info.ETag, err
}

// Covers reports whether the journal is complete for what was answered, where lost is Head.Lost of the head that was read
// after the record. An audit's entries are durable before its record is, so whoever reads the record, then the journal,
// has them.
func (r *Begin) Covers(lost uint64) bool { return r.By != "" && r.Head >= lost }

// writeTries bounds how often Write reads the record again that another one has written meanwhile.
const writeTries = 4

// Write creates the record, or replaces one that covers less. One that covers as much is as good.
func (r Begin) Write(ctx context.Context, s interface {
	objstore.Getter
	objstore.Creator
	objstore.Replacer
}) error {
	var last error
	for range writeTries {
		there, etag, err := readBegin(ctx, s)
		switch {
		case err != nil:
			return err
		case there.Covers(r.Head):
			return nil
		case etag == "":
			_, last = s.Create(ctx, layout.JournalBeginKey, BeginKind.Marshal(r), headContent)
		default:
			_, last = s.Replace(ctx, layout.JournalBeginKey, BeginKind.Marshal(r), etag, headContent)
		}
		if last == nil {
			return nil
		}
		// Whatever came of it, the next round reads what is there.
	}
	return fmt.Errorf("write %q: %w", layout.JournalBeginKey, last)
}

// IsComplete reports whether the journal has every batch that was answered. A file that is dropped later makes it
// incomplete again, so who then reads the journal compares Polled.Lost, too.
func IsComplete(ctx context.Context, g objstore.Getter) (bool, error) {
	b, err := ReadBegin(ctx, g)
	if err != nil || b.By == "" {
		return false, err
	}
	head, _, err := ReadHead(ctx, g)
	return err == nil && b.Covers(head.Lost), err
}
