package objectstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
)

// Verified is the result of a check.
type Verified = engine.Verified

// Repaired is the result of a repair.
type Repaired = engine.Repaired

// ErrLocked: a process has the directory open.
var ErrLocked = vfs.ErrLocked

// Check reads everything in the directory of a store that is not running. It changes nothing.
func Check(ctx context.Context, dir string, log *slog.Logger) (Verified, error) {
	if err := isStore(dir); err != nil {
		return Verified{}, err
	}
	v, err := engine.Check(ctx, engine.Options{Dir: dir, Log: log})
	if err != nil {
		return v, fmt.Errorf("check: %w", err)
	}
	return v, nil
}

// Repair moves what is damaged out of the directory of a store that is not running. No byte is
// deleted: damaged files go to quarantine/ in the directory.
func Repair(ctx context.Context, dir string, log *slog.Logger) (r Repaired, err error) {
	if err := isStore(dir); err != nil {
		return r, err
	}
	eng, err := engine.Open(engine.Options{Dir: dir, Log: log})
	if err != nil {
		return r, fmt.Errorf("repair: %w", err)
	}
	// The committer must run until Repair has returned, also when ctx ends in between.
	rctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- eng.Run(rctx) }()
	r, err = eng.Repair(ctx)
	stop()
	if err = errors.Join(err, <-ended, eng.Close()); err != nil {
		return r, fmt.Errorf("repair: %w", err)
	}
	return r, nil
}

// isStore refuses a directory that holds no store: opening it would create one.
func isStore(dir string) error {
	if st, err := os.Stat(filepath.Join(dir, "log")); err != nil || !st.IsDir() {
		return fmt.Errorf("%s is not the directory of an object store: it has no log/", dir)
	}
	return nil
}
