// Package progress is the record of how far the rollup workers of a shard have rolled the journal
// up: the positions before which every batch is in a block or is named as pending.
//
// Its one invariant: every accepted batch of the shard's agents that the journal has at or before
// Positions is an input of the counting generation of each hour that it has samples in, at
// every resolution (or the hour has expired), or is in Pending. Whoever writes the record has to keep it. Blocks
// only ever gain inputs, so a record that was true stays true: an old one costs reading, and loses nothing.
// A shard without a record has read nothing.
//
// The owner of a shard writes it, and its next owner starts there. Query nodes learn from the records of all
// shards what no block can have.
package progress

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// Kind of the record. It holds MaxPending batches with the longest ids, and positions in thousands of runs.
var Kind = record.Kind{Schema: "lightmetrics.rollup_progress.v1", Title: "progress of a shard's rollups", MaxBytes: 16 << 20}

// MaxPending bounds Progress.Pending.
const MaxPending = 10_000

// Progress is the record of one shard.
type Progress struct {
	AuthorityID string `json:"authority_id"`
	// Shard of Shards.
	Shard  shard.ID `json:"shard"`
	Shards uint32   `json:"shards"`
	// Fence of the owner that wrote it, for people: the condition of the replace decides between owners.
	Fence uint64 `json:"fence"`
	// Positions through which the journal is rolled up, but for Pending.
	Positions journal.Positions `json:"positions"`
	// Pending batches in the order of their identities, each once.
	Pending []accepted.Batch `json:"pending"`
}

// Validate refuses what no owner writes.
func (p *Progress) Validate() error {
	if p.AuthorityID == "" {
		return errors.New("authority_id is empty")
	}
	if err := shard.CheckCount(p.Shards); err != nil {
		return err
	}
	if uint32(p.Shard) >= p.Shards {
		return fmt.Errorf("shard %s of %d", p.Shard, p.Shards)
	}
	if len(p.Pending) > MaxPending {
		return fmt.Errorf("%d pending batches, at most %d", len(p.Pending), MaxPending)
	}
	for i := range p.Pending {
		b := &p.Pending[i]
		if err := b.Validate(); err != nil {
			return err
		}
		// A batch of another shard would never be rolled up by this one's owner.
		if got := shard.Of(b.Agent, p.Shards); got != p.Shard {
			return fmt.Errorf("agent %q is of shard %s, not %s", b.Agent, got, p.Shard)
		}
		if i > 0 && p.Pending[i-1].Identity.Compare(b.Identity) >= 0 {
			return fmt.Errorf("%s is out of order", b.Identity)
		}
	}
	return p.Positions.Validate()
}

// Marshal writes the canonical JSON: equal records are equal bytes. An invalid record is an error.
func (p Progress) Marshal() ([]byte, error) {
	if p.Pending == nil {
		p.Pending = []accepted.Batch{}
	}
	if p.Positions.Runs == nil {
		p.Positions.Runs = []journal.RunPosition{}
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("progress of shard %s: %w", p.Shard, err)
	}
	b := Kind.Marshal(p)
	if len(b) > Kind.MaxBytes {
		return nil, fmt.Errorf("progress of shard %s: %d bytes, at most %d", p.Shard, len(b), Kind.MaxBytes)
	}
	return b, nil
}

// Parse reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func Parse(b []byte) (Progress, error) {
	var p Progress
	err := Kind.Unmarshal(b, &p)
	if err == nil {
		err = p.Validate()
	}
	if err != nil {
		return Progress{}, Kind.Wrap("", err)
	}
	return p, nil
}

// Read reads the record of a shard and its ETag. Without one it is objstore.ErrNotFound. One of another authority,
// or of another number of shards, is record.ErrCorrupt: it says nothing of these shards.
func Read(ctx context.Context, g objstore.Getter, authority string, id shard.ID, shards uint32) (Progress, string, error) {
	key := layout.RollupProgress(id)
	p, info, err := record.Read(ctx, g, key, Kind, Parse)
	if err == nil && (p.AuthorityID != authority || p.Shard != id || p.Shards != shards) {
		err = Kind.Corrupt(key, "it is of shard %s of %d, authority %q", p.Shard, p.Shards, p.AuthorityID)
	}
	if err != nil {
		return Progress{}, info.ETag, err
	}
	return p, info.ETag, nil
}

// Writer is what Write needs of the store.
type Writer interface {
	objstore.Creator
	objstore.Replacer
}

// Write creates the record (etag "") or replaces the one with the ETag, and returns the new ETag.
// objstore.ErrExists and objstore.ErrPreconditionFailed say that another one is there, and ErrUnknown that it may have
// been written.
func (p Progress) Write(ctx context.Context, s Writer, etag string) (string, error) {
	b, err := p.Marshal()
	if err != nil {
		return "", err
	}
	key, o := layout.RollupProgress(p.Shard), objstore.PutOptions{ContentType: "application/json"}
	var info objstore.Info
	if etag == "" {
		info, err = s.Create(ctx, key, b, o)
	} else {
		info, err = s.Replace(ctx, key, b, etag, o)
	}
	if err != nil {
		return "", fmt.Errorf("write %q: %w", key, err)
	}
	return info.ETag, nil
}

// ReadAll reads the records of all shards of an authority, by shard: one LIST, and a GET for each record. A shard
// without one is at nothing, which Earliest takes into account. A record that can't be used is an error.
func ReadAll(ctx context.Context, s interface {
	objstore.Getter
	objstore.Lister
}, authority string, shards uint32) ([]Progress, error) {
	out := make([]Progress, shards)
	for i := range out {
		out[i] = Progress{AuthorityID: authority, Shard: shard.ID(i), Shards: shards}
	}
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.RollupProgressPrefix}) {
		if err != nil {
			return nil, fmt.Errorf("list %q: %w", layout.RollupProgressPrefix, err)
		}
		id, err := layout.ParseRollupProgress(o.Key)
		if err != nil || uint32(id) >= shards {
			continue // a foreign key
		}
		p, _, err := Read(ctx, s, authority, id, shards)
		if errors.Is(err, objstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out[id] = p
	}
	return out, nil
}

// Earliest are the positions from which a reader finds everything that no block of some shard can be expected to
// have, but for what is pending. They are zero while a shard has no record.
func Earliest(all []Progress) journal.Positions {
	if len(all) == 0 {
		return journal.Positions{}
	}
	at := all[0].Positions
	for _, p := range all[1:] {
		at = journal.Earliest(at, p.Positions)
	}
	return at
}
