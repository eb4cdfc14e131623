package repair

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// readDelta reads a delta, its frames too where whole is set. bad says why it can't be used; an error means that the
// store could not be asked, or that a newer release wrote it. Both are nil for one that was deleted since it was listed.
func (r *Repairer) readDelta(ctx context.Context, key string, whole bool) (d *delta.Delta, bad, err error) {
	d, err = delta.Read(ctx, r.cfg.Store, r.cfg.AuthorityID, key)
	var frames [][]byte
	if err == nil && whole {
		frames, err = d.ReadFrames(ctx, r.cfg.Store)
	}
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil, nil, nil
	case record.Unreadable(err):
		return d, err, nil
	case err != nil:
		return nil, nil, err
	}
	dec, b := frame.NewDecoder(), frame.Batch{}
	for i, raw := range frames {
		e := &d.Batches[i]
		if derr := dec.Decode(raw, &b, frame.Limits{}); derr != nil {
			return d, fmt.Errorf("frame of %s: %w", e.Identity, derr), nil
		}
		// Every record of a batch is in the delta, and its hours say where.
		if b.Identity != e.Identity || b.Records() != e.Identity.Count() {
			return d, fmt.Errorf("frame of %s has %d records of %s", e.Identity, b.Records(), b.Identity), nil
		}
		for g := range b.Groups {
			for _, t := range b.Groups[g].Timestamps {
				if h := timegrid.HourOfNS(t); !e.In(h) {
					return d, fmt.Errorf("frame of %s has samples in %s, which the header does not say", e.Identity, h), nil
				}
			}
		}
	}
	return d, nil, nil
}

// eachDelta calls fn with the names of a shard's deltas, or of all.
func (r *Repairer) eachDelta(ctx context.Context, of *shard.ID, fn func(key string, n layout.DeltaName) error) error {
	prefix := layout.RollupDeltasPrefix
	if of != nil {
		prefix = layout.RollupDeltas(*of)
	}
	for i, err := range objstore.List(ctx, r.cfg.Store, objstore.ListOptions{Prefix: prefix}) {
		if err != nil {
			return err
		}
		n, err := layout.ParseRollupDelta(i.Key)
		if err != nil {
			continue // a foreign key
		}
		if err := fn(i.Key, n); err != nil {
			return err
		}
	}
	return nil
}

// damagedDelta reports whether a delta that may have batches of the hour can't be read: then nothing but the identity
// manifests says which those are.
func (r *Repairer) damagedDelta(ctx context.Context, h timegrid.Hour, s shard.ID) (damaged bool, err error) {
	err = r.eachDelta(ctx, &s, func(key string, n layout.DeltaName) error {
		if h < n.From || h > n.To || damaged {
			return nil
		}
		_, bad, err := r.readDelta(ctx, key, true)
		damaged = bad != nil
		return err
	})
	return damaged, err
}
