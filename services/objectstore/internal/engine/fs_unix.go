//go:build unix && !linux

package engine

import (
	"fmt"
	"io"
	"os"

	"lightmetrics.dev/lightmetrics/pkg/run"
)

// Sync implements File.
func (f osFile) Sync() error { return f.File.Sync() }

// Lock implements FS.
func (d DirFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := run.Flock(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: %s: %w", ErrLocked, name, err)
	}
	return f, nil
}
