// Package mem keeps reference sets in memory: for tests, and for a deployment of one
// process, which begins a new epoch of them at every start.
package mem

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
)

// Refs is safe for concurrent use. Every operation takes effect at one moment.
type Refs struct {
	mu      sync.Mutex
	epoch   *publish.Epoch
	records map[string]publish.Record
	version uint64
}

var _ publish.Refs = (*Refs)(nil)

// New makes an empty store without a epoch.
func New() *Refs { return &Refs{records: map[string]publish.Record{}} }

// Epoch reads the epoch.
func (r *Refs) Epoch(ctx context.Context) (publish.Epoch, error) {
	if err := r.enter(ctx); err != nil {
		return publish.Epoch{}, err
	}
	defer r.mu.Unlock()
	if r.epoch == nil {
		return publish.Epoch{}, fmt.Errorf("epoch: %w", publish.ErrNoRecord)
	}
	return *r.epoch, nil
}

// InitEpoch replaces the epoch if it still is old.
func (r *Refs) InitEpoch(ctx context.Context, old *publish.Epoch, next publish.Epoch) error {
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	if (old == nil) != (r.epoch == nil) || old != nil && *old != *r.epoch {
		return fmt.Errorf("init epoch: %w", publish.ErrChanged)
	}
	r.epoch = &next
	return nil
}

// Add puts transactions into the sets of objects, all or none.
func (r *Refs) Add(ctx context.Context, epoch string, add ...publish.Addition) error {
	if err := publish.CheckAdd(add); err != nil {
		return err
	}
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	if err := r.inEpoch(epoch); err != nil {
		return err
	}
	var condemned []string
	changed := map[string]publish.Record{}
	for _, a := range add {
		for _, k := range a.Keys {
			rec, ok := changed[k]
			if !ok {
				rec = r.records[k]
				rec.Key = k
			}
			if rec.Condemned && !slices.Contains(condemned, k) {
				condemned = append(condemned, k)
			}
			next, isNew := rec.With(a.Txn)
			if isNew && len(rec.Txns) >= publish.MaxTxns {
				return fmt.Errorf("add to %q: %w", k, publish.ErrRefsFull)
			}
			if isNew {
				changed[k] = next
			}
		}
	}
	if condemned != nil {
		return &publish.CondemnedError{Keys: condemned}
	}
	for _, a := range add {
		for _, k := range a.Keys {
			if next, ok := changed[k]; ok {
				r.put(next)
				delete(changed, k)
			}
		}
	}
	return nil
}

// Get reads records.
func (r *Refs) Get(ctx context.Context, keys ...string) ([]publish.Record, error) {
	if err := publish.CheckKeys(keys); err != nil {
		return nil, err
	}
	if err := r.enter(ctx); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	records := make([]publish.Record, len(keys))
	for i, k := range keys {
		records[i] = clone(r.records[k])
		records[i].Key = k
	}
	return records, nil
}

// Condemn condemns the objects whose records are as they were read.
func (r *Refs) Condemn(ctx context.Context, epoch string, read ...publish.Record) (changed []string, err error) {
	if err := publish.CheckKeys(publish.KeysOf(read)); err != nil {
		return nil, err
	}
	if err := r.enter(ctx); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	if err := r.inEpoch(epoch); err != nil {
		return nil, err
	}
	for _, old := range read {
		if r.records[old.Key].Version != old.Version {
			changed = append(changed, old.Key)
			continue
		}
		r.put(publish.Record{Key: old.Key, Condemned: true, Since: publish.TokenGeneration(epoch)})
	}
	return changed, nil
}

// Swap writes next if the record is as it was read.
func (r *Refs) Swap(ctx context.Context, epoch string, old, next publish.Record) error {
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	if err := r.inEpoch(epoch); err != nil {
		return err
	}
	if r.records[old.Key].Version != old.Version {
		return fmt.Errorf("record %q: %w", old.Key, publish.ErrChanged)
	}
	if next.Key, next.Since = old.Key, 0; next.Condemned {
		next.Since = publish.TokenGeneration(epoch)
	}
	r.put(clone(next))
	return nil
}

// Delete drops the records that are as they were read.
func (r *Refs) Delete(ctx context.Context, epoch string, read ...publish.Record) (changed []string, err error) {
	if err := publish.CheckKeys(publish.KeysOf(read)); err != nil {
		return nil, err
	}
	if err := r.enter(ctx); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	if err := r.inEpoch(epoch); err != nil {
		return nil, err
	}
	for _, old := range read {
		if old.Version == "" || r.records[old.Key].Version != old.Version {
			changed = append(changed, old.Key)
			continue
		}
		delete(r.records, old.Key)
	}
	return changed, nil
}

// List reads records in key order.
func (r *Refs) List(ctx context.Context, after string, limit int) ([]publish.Record, string, error) {
	if err := r.enter(ctx); err != nil {
		return nil, "", err
	}
	defer r.mu.Unlock()
	var keys []string
	for k := range r.records {
		if k > after {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	next := ""
	if limit > 0 && len(keys) > limit {
		keys = keys[:limit]
		next = keys[limit-1]
	}
	records := make([]publish.Record, len(keys))
	for i, k := range keys {
		records[i] = clone(r.records[k])
	}
	return records, next, nil
}

// enter locks, unless the context has ended.
func (r *Refs) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", publish.ErrRefsUnknown, err)
	}
	r.mu.Lock()
	return nil
}

func (r *Refs) inEpoch(token string) error {
	if r.epoch == nil || r.epoch.Token() != token {
		return publish.ErrEpochMismatch
	}
	return nil
}

func (r *Refs) put(rec publish.Record) {
	r.version++
	rec.Version = strconv.FormatUint(r.version, 10)
	r.records[rec.Key] = rec
}

func clone(r publish.Record) publish.Record {
	r.Txns = slices.Clone(r.Txns)
	return r
}
