package place

import (
	"errors"
	"fmt"
	"io/fs"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// dirWriter writes a file of a directory.
type dirWriter struct {
	d     *Directory
	name  string
	tmp   string   // below tmp/
	file  vfs.File // nil once closed
	size  int64
	named bool
	done  bool
}

// Write implements io.Writer.
func (w *dirWriter) Write(p []byte) (int, error) {
	n, err := w.file.WriteAt(p, w.size)
	w.size += int64(n)
	if err != nil {
		return n, w.d.failed("write "+w.name, err)
	}
	failpoint.Hit("objectstore.place.write.after")
	return n, nil
}

// Finish implements Writer.
func (w *dirWriter) Finish() error {
	d := w.d
	if err := d.Err(); err != nil {
		return err
	}
	failpoint.Hit("objectstore.place.sync.before")
	if err := w.file.Sync(); vfs.IsFull(err) {
		// With delayed allocation a full disk may show only here. The file is discarded, so that
		// nothing depends on which of its bytes are durable.
		return d.failed("fsync "+w.name, err)
	} else if err != nil {
		return d.fail("fsync "+w.name, err)
	}
	d.synced()
	failpoint.Hit("objectstore.place.rename.before")
	folder := filesDir + "/" + w.name[:2]
	if err := d.makeFolder(w.name[:2]); err != nil {
		return err
	}
	if err := w.rename(); err != nil {
		return d.failed("rename "+w.name, err)
	}
	failpoint.Hit("objectstore.place.rename.after")
	// The bytes are durable under the temporary name. A rename that is lost with the power would
	// make the file disappear, so the name is made durable too.
	if err := d.syncDir(folder); err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	failpoint.Hit("objectstore.place.durable.after")
	w.done = true
	err := w.file.Close()
	w.file = nil
	if err != nil {
		return d.failed("close "+w.name, err)
	}
	return nil
}

// rename gives the file its name, unless that is taken.
func (w *dirWriter) rename() error {
	w.d.names.Lock()
	defer w.d.names.Unlock()
	if _, err := w.d.fs.Stat(path(w.name)); err == nil {
		return fs.ErrExist
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := w.d.fs.Rename(tmpDir+"/"+w.tmp, path(w.name)); err != nil {
		return err
	}
	w.named = true
	w.d.setWriting(w.tmp, false)
	return nil
}

// makeFolder creates a folder durably. The lock is held during the sync: another writer that finds
// the folder must not use it before its name is durable.
func (d *Directory) makeFolder(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.folders[name] {
		return nil
	}
	if err := vfs.EnsureDir(d.fs, filesDir+"/"+name); err != nil {
		return d.failed("make folder", err)
	}
	if err := d.syncDir(filesDir); err != nil {
		return err
	}
	d.folders[name] = true
	return nil
}

// Discard implements Writer. Tidy removes an unfinished file that cannot be removed now.
func (w *dirWriter) Discard() {
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
	switch {
	case w.done:
	case w.named:
		_ = w.d.fs.Remove(path(w.name))
	default:
		_ = w.d.fs.Remove(tmpDir + "/" + w.tmp)
		w.d.setWriting(w.tmp, false)
	}
}
