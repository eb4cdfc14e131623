package reconcile

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// CheckpointKind is the kind of the checkpoint.
var CheckpointKind = record.Kind{Schema: "lightmetrics.reconcile_checkpoint.v1", Title: "reconcile checkpoint", MaxBytes: 4 << 10}

// checkpointTries bounds the attempts after lost races; each loss means that another
// reconciler moved the checkpoint forward.
const checkpointTries = 8

type checkpoint struct {
	Through int64 `json:"scanned_through_unix_ns"`
}

// ParseCheckpoint returns the time in a checkpoint, Unix nanoseconds; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseCheckpoint(b []byte) (int64, error) {
	var c checkpoint
	err := CheckpointKind.Unmarshal(b, &c)
	if err == nil && c.Through < 0 {
		err = CheckpointKind.Corrupt("", "scanned_through_unix_ns is negative")
	}
	return c.Through, err
}

// MarshalCheckpoint writes the canonical JSON of a checkpoint.
func MarshalCheckpoint(through int64) []byte { return CheckpointKind.Marshal(checkpoint{through}) }

// ReadCheckpoint returns the time (Unix nanoseconds) up to which accepted-by-time was
// scanned; 0 if there is no checkpoint yet. A checkpoint that can't be read is record.ErrCorrupt.
func (r *Reconciler) ReadCheckpoint(ctx context.Context) (int64, error) {
	c, _, err := r.readCheckpoint(ctx)
	return c, err
}

func (r *Reconciler) readCheckpoint(ctx context.Context) (int64, string, error) {
	c, info, err := record.Read(ctx, r.Store, layout.CheckpointKey, CheckpointKind, ParseCheckpoint)
	if errors.Is(err, objstore.ErrNotFound) {
		return 0, "", nil
	}
	if record.Unreadable(err) && info.ETag == "" { // its bytes can't be read either; the ETag is needed to replace it
		head, herr := r.Store.Head(ctx, layout.CheckpointKey)
		if herr != nil {
			return 0, "", herr
		}
		info = head
	}
	return c, info.ETag, err
}

// AdvanceCheckpoint moves the checkpoint forward to through, never back, and returns its
// value. After a lost race it starts again from the winner's value.
func (r *Reconciler) AdvanceCheckpoint(ctx context.Context, through int64) (int64, error) {
	body := MarshalCheckpoint(through)
	opts := objstore.PutOptions{ContentType: "application/json"}
	for range checkpointTries {
		now, etag, err := r.readCheckpoint(ctx)
		// A corrupt checkpoint is replaced: it only says where a scan may start. One of a newer release
		// is kept.
		if err != nil && !errors.Is(err, record.ErrCorrupt) {
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
