package body

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

const (
	tmpDir        = "tmp"
	quarantineDir = "quarantine"
)

// Files keeps each body in a file of its own, in 256 folders by the first two digits of its
// id. A body is written to tmp/, fsynced, renamed into its folder, and the folder is fsynced.
type Files struct {
	fs     vfs.FS
	synced func()

	mu      sync.Mutex
	folders map[string]bool // whose names are durable; at most 256
}

// NewFiles keeps bodies below a directory. synced, when set, is called after each fsync.
func NewFiles(fsys vfs.FS, synced func()) *Files {
	if synced == nil {
		synced = func() {}
	}
	return &Files{fs: fsys, synced: synced, folders: map[string]bool{}}
}

// Recover implements Store. The names of the folders are synced, because a killed process may have
// made one without syncing it. The bodies in them need no sync: each was durable before a record
// named it.
func (s *Files) Recover() error {
	for _, d := range []string{tmpDir, Dir} {
		if err := vfs.EnsureDir(s.fs, d); err != nil {
			return err
		}
	}
	folders, err := vfs.Names(s.fs, Dir)
	if err != nil {
		return err
	}
	// Of several drives one may have a folder that power took from the others.
	folders = slices.DeleteFunc(folders, func(f string) bool {
		merr := vfs.EnsureDir(s.fs, Dir+"/"+f)
		if merr != nil && !vfs.IsFull(merr) {
			err = errors.Join(err, merr)
		}
		return merr != nil
	})
	if err != nil {
		return err
	}
	for _, d := range []string{".", Dir} {
		if err := s.fs.SyncDir(d); err != nil {
			return fmt.Errorf("fsync directory of body files: %w", err)
		}
	}
	names, err := vfs.Names(s.fs, tmpDir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if !isID(n) {
			continue
		}
		if err := s.fs.Remove(tmpDir + "/" + n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range folders {
		s.folders[f] = true
	}
	return nil
}

func isID(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && len(name) == 32
}

// Open implements Store.
func (s *Files) Open(id string) (Reader, error) { return s.fs.Open(Name(id)) }

// Size is the length of a body, bytes.
func (s *Files) Size(id string) (int64, error) {
	st, err := s.fs.Stat(Name(id))
	return st.Size, err
}

// Remove implements Store. The removal is not synced: if a crash brings the file back, no record
// names it, and the next open removes it.
func (s *Files) Remove(id string) error { return s.fs.Remove(Name(id)) }

// List implements Store.
func (s *Files) List(fn func(id string) error) error {
	folders, err := vfs.Names(s.fs, Dir)
	if err != nil {
		return err
	}
	for _, d := range folders {
		names, err := vfs.Names(s.fs, Dir+"/"+d)
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := fn(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// SetAside implements Store: the file goes to quarantine/.
func (s *Files) SetAside(id string) (string, error) {
	if err := vfs.EnsureDir(s.fs, quarantineDir); err != nil {
		return "", err
	}
	return vfs.MoveAside(s.fs, Name(id), quarantineDir)
}

// Create implements Store.
func (s *Files) Create(id string) (Writer, error) {
	f, err := s.fs.Create(tmpDir + "/" + id)
	if err != nil {
		return nil, fmt.Errorf("create body file: %w", err)
	}
	failpoint.Hit("objectstore.body.create.after")
	return &fileWriter{s: s, id: id, file: f}, nil
}

type fileWriter struct {
	s     *Files
	id    string
	file  vfs.File // nil once closed
	size  int64
	named bool
}

// Write implements Writer.
func (w *fileWriter) Write(p []byte) (int, error) {
	n, err := w.file.WriteAt(p, w.size)
	w.size += int64(n)
	if err != nil {
		return n, fmt.Errorf("write body file: %w", err)
	}
	failpoint.Hit("objectstore.body.write.after")
	return n, nil
}

// Finish implements Writer.
func (w *fileWriter) Finish() error {
	failpoint.Hit("objectstore.body.sync.before")
	if err := w.file.Sync(); vfs.IsFull(err) {
		// With delayed allocation a full disk may show only here. The file is discarded, so that
		// nothing depends on which of its bytes are durable.
		return fmt.Errorf("fsync body file: %w", err)
	} else if err != nil {
		return fmt.Errorf("%w: fsync body file: %w", ErrUnsynced, err)
	}
	w.s.synced()
	failpoint.Hit("objectstore.body.rename.before")
	folder := w.id[:2]
	if err := w.s.makeFolder(folder); err != nil {
		return err
	}
	if err := w.s.fs.Rename(tmpDir+"/"+w.id, Name(w.id)); err != nil {
		return fmt.Errorf("rename body file: %w", err)
	}
	w.named = true
	failpoint.Hit("objectstore.body.rename.after")
	// The file is synced under its temporary name; a rename that is lost with a crash would
	// make a named body disappear, so the name is made durable too.
	if err := w.s.fs.SyncDir(Dir + "/" + folder); err != nil {
		return fmt.Errorf("%w: fsync directory of body files: %w", ErrUnsynced, err)
	}
	w.s.synced()
	failpoint.Hit("objectstore.body.durable.after")
	err := w.file.Close()
	w.file = nil
	return err
}

// makeFolder creates a folder of body files durably. The lock is held during the sync: another
// writer that finds the folder must not use it before its name is durable.
func (s *Files) makeFolder(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folders[name] {
		return nil
	}
	if err := vfs.EnsureDir(s.fs, Dir+"/"+name); err != nil {
		return fmt.Errorf("make a directory of body files: %w", err)
	}
	if err := s.fs.SyncDir(Dir); err != nil {
		return fmt.Errorf("%w: fsync directory of body files: %w", ErrUnsynced, err)
	}
	s.folders[name] = true
	return nil
}

// Discard implements Writer. A file that cannot be removed is removed at the next start.
func (w *fileWriter) Discard() {
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
	name := tmpDir + "/" + w.id
	if w.named {
		name = Name(w.id)
	}
	_ = w.s.fs.Remove(name)
}
