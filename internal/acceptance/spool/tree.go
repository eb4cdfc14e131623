package spool

import (
	"errors"
	"io/fs"
	"path/filepath"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// tree makes directories durably and gives files their names.
type tree struct {
	fs    vfs.FS
	root  string
	known map[string]bool // directories that are there and durable
}

// maxKnownDirs bounds tree.known; past it the tree forgets and looks again.
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
