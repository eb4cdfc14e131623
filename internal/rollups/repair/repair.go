// Package repair checks blocks against their bytes, and requests a rebuild of hours that are damaged. It deletes
// nothing: the owner of the shard publishes the next generation, which supersedes the damaged one.
// docs/protocol/rollup.md describes the way.
package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Store is what checks and requests need of an object store.
type Store interface {
	objstore.Reader
	objstore.Creator
	objstore.Replacer
}

// Config of a Repairer. Scan is only needed for hours whose inputs are recorded nowhere else; all other fields are
// required.
type Config struct {
	Store       Store
	AuthorityID string
	// Shards of the authority.
	Shards uint32
	// By names who makes requests.
	By  string
	Now func() time.Time
	// Scan calls fn with every accepted batch of the shard that may have samples in the hour; it may call it with
	// others as well.
	Scan func(ctx context.Context, h timegrid.Hour, s shard.ID, fn func(accepted.Batch) error) error
	// Counted tells which batches of identity manifests the journal of the bucket counts. It is only needed in the bucket of one
	// of several regions, where a manifest may be a copy of another region's batch, or have lost.
	Counted func(context.Context, []accepted.Batch) (map[identity.Batch]bool, error)
}

// Repairer checks hours and requests repairs. It is for one caller at a time.
type Repairer struct {
	cfg     Config
	removed *framelog.Index
	// compactions that were checked, by key: many blocks redirect to the same one.
	compactions map[string]checked
}

// New checks the settings; it makes no request.
func New(c Config) (*Repairer, error) {
	if c.Store == nil || c.AuthorityID == "" || c.By == "" || c.Now == nil {
		return nil, errors.New("repair: store, authority, name and clock are needed")
	}
	if err := shard.CheckCount(c.Shards); err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	return &Repairer{cfg: c, removed: framelog.NewIndex(c.Store, c.AuthorityID), compactions: map[string]checked{}}, nil
}

// counted tells which of the batches of manifests count; nil is all of them, where there are no regions.
func (r *Repairer) counted(ctx context.Context, batches []accepted.Batch) (map[identity.Batch]bool, error) {
	_, err := r.cfg.Store.Head(ctx, layout.RegionsKey)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case r.cfg.Counted == nil:
		return nil, ErrUnknown
	}
	counted, err := r.cfg.Counted(ctx, batches)
	if counted == nil && err == nil {
		counted = map[identity.Batch]bool{}
	}
	return counted, err
}

// Shards of the authority.
func (r *Repairer) Shards() uint32 { return r.cfg.Shards }

// AuthorityID of the bucket.
func (r *Repairer) AuthorityID() string { return r.cfg.AuthorityID }

func (r *Repairer) record(ctx context.Context, key string) (catalog.Record, error) {
	rec, _, err := r.read(ctx, key)
	return rec, err
}

func (r *Repairer) read(ctx context.Context, key string) (catalog.Record, objstore.Info, error) {
	return catalog.Read(ctx, r.cfg.Store, r.cfg.AuthorityID, key)
}

// records returns a reader that caches nothing: a repair asks for each record once.
func (r *Repairer) records() *catalog.Reader {
	return catalog.NewReader(catalog.ReaderConfig{Read: r.read})
}

func (r *Repairer) get(ctx context.Context, key string, limit int64) ([]byte, objstore.Info, error) {
	return r.cfg.Store.Get(ctx, key, objstore.GetOptions{Limit: limit})
}

// plan reads a plan: objstore.ErrNotFound when there is none, record.ErrCorrupt when it is damaged.
func (r *Repairer) plan(ctx context.Context, key string) (*rollup.Plan, []byte, error) {
	b, _, err := r.get(ctx, key, int64(rollup.PlanKind.MaxBytes))
	if err != nil {
		return nil, nil, err
	}
	p, err := rollup.ParsePlan(b)
	if err == nil && (p.Key() != key || p.AuthorityID != r.cfg.AuthorityID) {
		err = rollup.PlanKind.Corrupt(key, "it is of %s, authority %.128q", p.Key(), p.AuthorityID)
	}
	return p, b, err
}
