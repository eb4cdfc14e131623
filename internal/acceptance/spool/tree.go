package spool

import (
	"errors"
	"io/fs"
	"path/filepath"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// tree makes directories durably. Paths are relative to root.
type tree struct {
	fs    vfs.FS
	root  string
	known map[string]bool // directories that are known to exist durably
}

// maxKnownDirs bounds tree.known. When it is full it is cleared, which costs only repeated syncs.
const maxKnownDirs = 1 << 14

// mkdirs makes rel and its parents, and syncs the parent of each that is new to this process.
func (t *tree) mkdirs(rel string) error {
	if rel == "." || t.known[rel] {
		return nil
	}
	parent := filepath.Dir(rel)
	if err := t.mkdirs(parent); err != nil {
		return err
	}
	if err := t.fs.Mkdir(t.abs(rel)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Also where the directory existed: the process that made it may have ended before its sync.
	if err := t.fs.SyncDir(t.abs(parent)); err != nil {
		return err
	}
	if len(t.known) >= maxKnownDirs {
		clear(t.known)
	}
	t.known[rel] = true
	return nil
}

func (t *tree) abs(rel string) string { return filepath.Join(t.root, rel) }
