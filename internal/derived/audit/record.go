// Package audit compares what was accepted with what the journal has, and writes an entry for each manifest and
// quarantine record that stands in no run: the collector that created it died before it could write, or the bucket
// is older than its journal.
//
// There are three scopes. A full audit takes all keys, from listings or from an inventory of the bucket; it is divided into
// shards by agents, which any number of reconcilers take, and may be spread over weeks. A news audit lists what the boots
// that were active lately have from their first new batch on, and boots that the journal does not know; it costs what is new.
// An audit of derived keys compares their prefixes with what the journal's entries ask for.
// None sends a request for a manifest that the journal has, but for the thousandth of a LIST.
//
// An audit goes on where it was interrupted, in whatever process. docs/protocol/reconcile.md says what each proves, and
// the order of the writes. The package is deterministic: no goroutines, no clock.
package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Scopes of audits, in their keys.
const (
	// Full is an audit of everything that was accepted.
	Full = "full"
	// News is an audit of what was accepted lately.
	News = "news"
	// Derived is an audit of derived keys, where they are objects, against the journal. It has a shard for each of
	// their prefixes. Manifests are the keys that it listed, and Journalled those that were missing.
	Derived = "derived"
)

// MaxShards bounds the shards of an audit.
const MaxShards = 128

// Kind is the kind of the record of an audit, and of one of its shards.
var Kind = record.Kind{Schema: "lightmetrics.audit.v1", Title: "record of an audit", MaxBytes: 64 << 10}

// Record is how far an audit is, and what it found; or the same of one shard. That of the audit has the sums of its
// shards once it has finished.
type Record struct {
	// Scope is Full, News or Derived.
	Scope string `json:"scope"`
	// By is the reconciler that moved the record last.
	By string `json:"by"`
	// StartedAt and FinishedAt by the store's clock, Unix seconds; FinishedAt is 0 while it goes on, and
	// UpdatedAt is when it was last moved.
	StartedAt  int64 `json:"started_at_unix_s"`
	UpdatedAt  int64 `json:"updated_at_unix_s"`
	FinishedAt int64 `json:"finished_at_unix_s,omitempty"`
	// Cursor of a shard is the last key that was listed and dealt with; empty at the beginning.
	Cursor string `json:"cursor"`
	// Manifests and Conflicts that were listed.
	Manifests uint64 `json:"manifests"`
	Conflicts uint64 `json:"conflicts"`
	// Journalled are those that stood in no run, and got an entry. Unusable ones can't be read, or are of
	// another authority; each has a repair record. Unread are those of them that can't be read: they may have been
	// accepted. Foreign are keys under our prefixes that we never write.
	Journalled uint64 `json:"journalled"`
	Unusable   uint64 `json:"unusable"`
	Unread     uint64 `json:"unread,omitempty"`
	Foreign    uint64 `json:"foreign"`
	// Of several regions: Copies of batches that another region counts, with the bytes of their frames; manifests that lost to
	// another batch and are Quarantined; and those that are Undecided. None of them has an entry as a batch, so each full audit
	// finds them again.
	Copies      uint64 `json:"copies,omitempty"`
	CopyBytes   uint64 `json:"copy_bytes,omitempty"`
	Quarantined uint64 `json:"quarantined,omitempty"`
	Undecided   uint64 `json:"undecided,omitempty"`
	// Digest is the exclusive or of the SHA-256 of all keys that were listed: two full audits of the same
	// manifests have the same one, in however many shards and parts they ran.
	Digest identity.Digest `json:"digest"`

	// Through is the number of the journal's head before the audit began. A news audit takes what was journalled
	// after Since, which is such a number of an earlier audit.
	Since   uint64 `json:"since,omitempty"`
	Through uint64 `json:"through,omitempty"`
	// Spread is the time over which the shards begin, in seconds: shard i of n after i/n of it.
	Spread int64 `json:"spread_s,omitempty"`
	// Bounds are the first agents of all shards but shard 0.
	Bounds []string `json:"bounds,omitempty"`
	// Inventory is the key of the manifest of the inventory that the keys come from, InventoryAt when it
	// was begun, Unix seconds, and Files its files, which are dealt out to Shards shards.
	Inventory   string `json:"inventory,omitempty"`
	InventoryAt int64  `json:"inventory_at_unix_s,omitempty"`
	Files       int    `json:"files,omitempty"`
	Shards      int    `json:"shards,omitempty"`
	// Claim of a shard is the random id of the process that works on it.
	Claim string `json:"claim,omitempty"`
}

// Finished reports whether the audit, or the shard, has come to its end.
func (r *Record) Finished() bool { return r.FinishedAt > 0 }

// ShardCount is the number of shards of an audit.
func (r *Record) ShardCount() int {
	if r.Scope == Derived {
		return len(indexes)
	}
	return max(r.Shards, len(r.Bounds)+1)
}

// Agents are the agents of a shard: from the first until before the second, which is empty for the last shard.
func (r *Record) Agents(shard int) (from, until string) {
	if shard > 0 && shard <= len(r.Bounds) {
		from = r.Bounds[shard-1]
	}
	if shard < len(r.Bounds) {
		until = r.Bounds[shard]
	}
	return from, until
}

// DueAt is when a shard may begin.
func (r *Record) DueAt(shard int) time.Time {
	return time.Unix(r.StartedAt+r.Spread*int64(shard)/int64(r.ShardCount()), 0)
}

// add adds what a shard found.
func (r *Record) add(s *Record) {
	r.Manifests, r.Conflicts = r.Manifests+s.Manifests, r.Conflicts+s.Conflicts
	r.Journalled, r.Unusable, r.Foreign = r.Journalled+s.Journalled, r.Unusable+s.Unusable, r.Foreign+s.Foreign
	r.Unread += s.Unread
	r.Copies, r.CopyBytes, r.Quarantined, r.Undecided = r.Copies+s.Copies, r.CopyBytes+s.CopyBytes, r.Quarantined+s.Quarantined, r.Undecided+s.Undecided
	for i := range s.Digest {
		r.Digest[i] ^= s.Digest[i]
	}
}

// Marshal writes the canonical JSON.
func (r Record) Marshal() []byte { return Kind.Marshal(r) }

// ParseRecord reads what Marshal writes; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseRecord(b []byte) (Record, error) {
	var r Record
	err := Kind.Unmarshal(b, &r)
	if err == nil {
		err = r.validate()
	}
	return r, Kind.Wrap("", err)
}

func (r *Record) validate() error {
	if r.Scope != Full && r.Scope != News && r.Scope != Derived || r.StartedAt <= 0 || len(r.Cursor) > 2048 || r.Spread < 0 {
		return fmt.Errorf("scope %.40q, started at %d, spread over %d s", r.Scope, r.StartedAt, r.Spread)
	}
	if r.Shards < 0 || r.Files < r.Shards || r.ShardCount() > MaxShards || r.Shards > 0 && (len(r.Bounds) > 0 || r.Inventory == "") {
		return fmt.Errorf("%d shards with %d bounds of %d files", r.Shards, len(r.Bounds), r.Files)
	}
	for i, b := range r.Bounds {
		if b == "" || i > 0 && r.Bounds[i-1] >= b {
			return fmt.Errorf("the bound %.80q is out of order", b)
		}
	}
	return nil
}

// Stored is a record and where it stands.
type Stored struct {
	Record
	Key  string
	etag string
}

// Store that records are read from.
type recordStore interface {
	objstore.Getter
	objstore.Lister
}

// Read reads the record of an audit, or of a shard.
func Read(ctx context.Context, s objstore.Getter, key string) (Stored, error) {
	r, info, err := record.Read(ctx, s, key, Kind, ParseRecord)
	return Stored{r, key, info.ETag}, err
}

// Progress reads the records of the shards of an audit; those that nobody has begun are zero.
func Progress(ctx context.Context, s objstore.Getter, r *Stored) ([]Stored, error) {
	out := make([]Stored, r.ShardCount())
	for i := range out {
		key := layout.AuditShard(r.Key, i)
		got, err := Read(ctx, s, key)
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return nil, fmt.Errorf("progress of the audit: %w", err)
		}
		out[i] = got
		out[i].Key = key
	}
	return out, nil
}

// History lists the records of audits of a scope, the newest first, at most limit. Records that can't be used
// are left out.
func History(ctx context.Context, s recordStore, scope string, limit int) ([]Stored, error) {
	var keys []string
	// With the delimiter, the records of shards are no keys of the listing.
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.Audits(scope), Delimiter: "/"}) {
		if err != nil {
			return nil, fmt.Errorf("list audits: %w", err)
		}
		if _, _, _, err := layout.ParseAudit(o.Key); err == nil {
			keys = append(keys, o.Key)
		}
	}
	var out []Stored
	for i := len(keys) - 1; i >= 0 && len(out) < limit; i-- {
		r, err := Read(ctx, s, keys[i])
		switch {
		case err == nil:
			out = append(out, r)
		case record.Opaque(err), errors.Is(err, objstore.ErrNotFound):
		default:
			return nil, fmt.Errorf("list audits: %w", err)
		}
	}
	return out, nil
}

// Due reports whether an audit has to begin: none of the history has begun within the interval before now, the store's
// time, and none is under way. An interval of 0 asks for none but the first.
func Due(history []Stored, now time.Time, interval time.Duration) bool {
	for i := range history {
		if !history[i].Finished() {
			return false
		}
	}
	return len(history) == 0 || interval > 0 && now.Sub(time.Unix(history[0].StartedAt, 0)) >= interval
}
