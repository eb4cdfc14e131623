// Package audit compares what was accepted with what the journal has. A full audit lists all
// identity manifests and quarantine records, and writes an entry for each that stands in no run: the
// collector that created it died before it could write, or the bucket is older than its journal. A
// manifest that the journal has costs a thousandth of a LIST, and no other request.
//
// An audit goes on where it was interrupted, in whatever process. Its record under audit/v1/ says how far it is and
// what it found. docs/protocol/reconcile.md has the order of the writes. The package is deterministic: no goroutines, no clock.
package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Full is the kind of an audit of everything that was accepted, in keys.
const Full = "full"

// Kind is the kind of the record of an audit.
var Kind = record.Kind{Schema: "lightmetrics.audit.v1", Title: "record of an audit", MaxBytes: 64 << 10}

// Record is how far an audit is, and what it found.
type Record struct {
	// Scope is Full.
	Scope string `json:"scope"`
	// By is the reconciler that moved the record last.
	By string `json:"by"`
	// StartedAt and FinishedAt by the store's clock, Unix seconds; FinishedAt is 0 while it goes on, and
	// UpdatedAt is when it was last moved.
	StartedAt  int64 `json:"started_at_unix_s"`
	UpdatedAt  int64 `json:"updated_at_unix_s"`
	FinishedAt int64 `json:"finished_at_unix_s,omitempty"`
	// Cursor is the last key that was listed and dealt with; empty at the beginning.
	Cursor string `json:"cursor"`
	// Manifests and Conflicts that were listed.
	Manifests uint64 `json:"manifests"`
	Conflicts uint64 `json:"conflicts"`
	// Journalled are those that stood in no run, and got an entry. Unusable ones can't be read, or are of
	// another authority; each has a repair record. Foreign are keys under our prefixes that we never write.
	Journalled uint64 `json:"journalled"`
	Unusable   uint64 `json:"unusable"`
	Foreign    uint64 `json:"foreign"`
	// Digest is the exclusive or of the SHA-256 of all keys that were listed: two audits of the same
	// manifests have the same one, in however many parts they ran.
	Digest identity.Digest `json:"digest"`
}

// Finished reports whether the audit has come to its end.
func (r *Record) Finished() bool { return r.FinishedAt > 0 }

// Marshal writes the canonical JSON.
func (r Record) Marshal() []byte { return Kind.Marshal(r) }

// ParseRecord reads what Marshal writes; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseRecord(b []byte) (Record, error) {
	var r Record
	err := Kind.Unmarshal(b, &r)
	if err == nil && (r.Scope != Full || r.StartedAt <= 0 || len(r.Cursor) > 2048) {
		err = fmt.Errorf("scope %.40q, started at %d", r.Scope, r.StartedAt)
	}
	return r, Kind.Wrap("", err)
}

// Stored is a record and where it stands.
type Stored struct {
	Record
	Key  string
	etag string
}

// History lists the records of full audits, the newest first, at most limit. Records that can't be used
// are left out.
func History(ctx context.Context, s interface {
	objstore.Getter
	objstore.Lister
}, limit int) ([]Stored, error) {
	var keys []string
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.AuditPrefix + Full + "/"}) {
		if err != nil {
			return nil, fmt.Errorf("list audits: %w", err)
		}
		if strings.HasSuffix(o.Key, ".json") {
			keys = append(keys, o.Key)
		}
	}
	var out []Stored
	for i := len(keys) - 1; i >= 0 && len(out) < limit; i-- {
		r, info, err := record.Read(ctx, s, keys[i], Kind, ParseRecord)
		switch {
		case err == nil:
			out = append(out, Stored{r, keys[i], info.ETag})
		case record.Opaque(err), errors.Is(err, objstore.ErrNotFound):
		default:
			return nil, fmt.Errorf("list audits: %w", err)
		}
	}
	return out, nil
}

// Due reports whether an audit has to run: the last one was interrupted, or began longer than
// interval before now, the store's time. An interval of 0 asks for none but the first.
func Due(history []Stored, now time.Time, interval time.Duration) bool {
	if len(history) == 0 || !history[0].Finished() {
		return true
	}
	return interval > 0 && now.Sub(time.Unix(history[0].StartedAt, 0)) >= interval
}
