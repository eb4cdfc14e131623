package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

// CheckpointSchema names the checkpoint's JSON schema.
const CheckpointSchema = "lightmetrics.reconcile_checkpoint.v1"

const maxCheckpointBytes = 4 << 10

// checkpointTries bounds how often a lost race is run again; each loss means that
// another reconciler moved it forward.
const checkpointTries = 8

// ErrCheckpoint: the checkpoint object can't be read as one.
var ErrCheckpoint = errors.New("invalid checkpoint")

type checkpoint struct {
	Schema  string `json:"schema"`
	Through int64  `json:"scanned_through_unix_ns"`
}

// ReadCheckpoint gives the time (Unix nanoseconds) up to which accepted-by-time was
// scanned; 0 when there is none yet.
func (r *Reconciler) ReadCheckpoint(ctx context.Context) (int64, error) {
	c, _, err := r.readCheckpoint(ctx)
	return c, err
}

func (r *Reconciler) readCheckpoint(ctx context.Context) (int64, string, error) {
	body, info, err := r.Store.Get(ctx, layout.CheckpointKey, objstore.GetOptions{Limit: maxCheckpointBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return 0, "", nil
	}
	if objstore.Unreadable(err) { // as one that does not parse: its ETag lets it be replaced
		body = nil
		info, err = r.Store.Head(ctx, layout.CheckpointKey)
	}
	if err != nil {
		return 0, "", err
	}
	var c checkpoint
	if err := json.Unmarshal(body, &c); err != nil || c.Schema != CheckpointSchema || c.Through < 0 {
		return 0, info.ETag, fmt.Errorf("read %q: %w", layout.CheckpointKey, ErrCheckpoint)
	}
	return c.Through, info.ETag, nil
}

// AdvanceCheckpoint moves the checkpoint forward to through, never back, and gives
// where it stands. A lost race is run again from what the winner wrote.
func (r *Reconciler) AdvanceCheckpoint(ctx context.Context, through int64) (int64, error) {
	body, err := json.Marshal(checkpoint{CheckpointSchema, through})
	if err != nil {
		return 0, err
	}
	opts := objstore.PutOptions{ContentType: "application/json"}
	for range checkpointTries {
		now, etag, err := r.readCheckpoint(ctx)
		if err != nil && !errors.Is(err, ErrCheckpoint) {
			return 0, err
		}
		if err == nil && now >= through {
			return now, nil
		}
		if etag == "" {
			_, err = r.Store.Create(ctx, layout.CheckpointKey, body, opts)
		} else {
			_, err = r.Store.Replace(ctx, layout.CheckpointKey, body, etag, opts)
		}
		switch {
		case err == nil:
			return through, nil
		case errors.Is(err, objstore.ErrExists), errors.Is(err, objstore.ErrPreconditionFailed),
			errors.Is(err, objstore.ErrConflict), errors.Is(err, objstore.ErrUnknown) && ctx.Err() == nil:
			continue // read again: it may have been written
		default:
			return 0, err
		}
	}
	return 0, fmt.Errorf("advance %q: %w", layout.CheckpointKey, objstore.ErrConflict)
}
