package place

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

const (
	filesDir      = "files"
	tmpDir        = "tmp"
	quarantineDir = "quarantine"
	lockName      = "LOCK"
)

// Directory is a place in a directory of this machine. Files lie in folders by the first two
// characters of their names. A file is written to tmp/, fsynced, renamed into its folder, and the
// folder is fsynced.
type Directory struct {
	name   string
	fs     vfs.FS
	lock   io.Closer
	synced func()
	poison atomic.Pointer[error]

	mu      sync.Mutex
	folders map[string]bool // whose names are durable
	writing map[string]bool // the unfinished files, by their names below tmp/, whose writers have not ended
	// names is held while a name is checked and taken. The lock of the directory keeps other
	// processes away, so that this is enough for a rename that replaces nothing.
	names sync.Mutex
}

// OpenDirectory takes the lock of a directory, which must be there: a drive that is not mounted must
// not be mistaken for an empty one. synced, when set, is called after each fsync.
func OpenDirectory(name string, fsys vfs.FS, synced func()) (*Directory, error) {
	if synced == nil {
		synced = func() {}
	}
	lock, err := fsys.Lock(lockName)
	if err != nil {
		return nil, fmt.Errorf("%w: place %s: %w", ErrOut, name, err)
	}
	return &Directory{name: name, fs: fsys, lock: lock, synced: synced, folders: map[string]bool{}, writing: map[string]bool{}}, nil
}

// Name implements Place.
func (d *Directory) Name() string { return d.name }

// Local implements Place.
func (d *Directory) Local() bool { return true }

// FS is the directory's file system, for files that are kept beside those of the place.
func (d *Directory) FS() vfs.FS { return d.fs }

// Identity implements Place.
func (d *Directory) Identity(context.Context) (Identity, error) {
	b, _, err := vfs.ReadFile(d.fs, identityName, maxIdentity)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, serr := d.fs.Stat(filesDir); serr == nil {
			return Identity{}, fmt.Errorf("place %s: %w: there are files, and nothing says whose", d.name, ErrForeign)
		} else if !errors.Is(serr, fs.ErrNotExist) {
			return Identity{}, d.failed("stat", serr)
		}
		return Identity{}, fmt.Errorf("place %s: %w", d.name, ErrBlank)
	case err != nil:
		return Identity{}, d.failed("read identity", err)
	}
	id, err := parseIdentity(b)
	if err != nil {
		return id, fmt.Errorf("place %s: %w: %w", d.name, ErrOut, err)
	}
	return id, nil
}

// Claim implements Place.
func (d *Directory) Claim(ctx context.Context, id Identity) error {
	if _, err := d.Identity(ctx); err == nil {
		return fmt.Errorf("claim place %s: %w", d.name, fs.ErrExist)
	} else if !errors.Is(err, ErrBlank) {
		return err
	}
	b, err := id.encode()
	if err == nil {
		err = vfs.ReplaceFile(d.fs, identityName, b)
	}
	if err != nil {
		return d.failed("claim", err)
	}
	return nil
}

// Recover implements Place. The names of the folders are synced, because a killed process may have
// made one without syncing it. The files in them need no sync of their own: each was synced before
// it got its name.
func (d *Directory) Recover(ctx context.Context) error {
	for _, dir := range []string{tmpDir, filesDir} {
		if err := vfs.EnsureDir(d.fs, dir); err != nil {
			return d.failed("make directory", err)
		}
	}
	folders, err := vfs.Names(d.fs, filesDir)
	if err != nil {
		return d.failed("list", err)
	}
	for _, dir := range []string{".", filesDir} {
		if err := d.syncDir(dir); err != nil {
			return err
		}
	}
	if err := d.Tidy(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range folders {
		d.folders[f] = true
	}
	return nil
}

// Tidy implements Place.
func (d *Directory) Tidy(context.Context) error {
	left, err := vfs.Names(d.fs, tmpDir)
	if err != nil {
		return d.failed("list", err)
	}
	for _, n := range left {
		// A writer is noted before its file is made, so this file's was, or is gone.
		if d.isWriting(n) {
			continue
		}
		if err := d.fs.Remove(tmpDir + "/" + n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return d.failed("remove unfinished file", err)
		}
	}
	return nil
}

func (d *Directory) isWriting(tmp string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writing[tmp]
}

func (d *Directory) setWriting(tmp string, on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if on {
		d.writing[tmp] = true
	} else {
		delete(d.writing, tmp)
	}
}

// failed names the place in an error.
func (d *Directory) failed(op string, err error) error {
	return fmt.Errorf("place %s: %s: %w", d.name, op, err)
}

// Err implements Place.
func (d *Directory) Err() error {
	if p := d.poison.Load(); p != nil {
		return *p
	}
	return nil
}

// fail poisons the place: after a failed fsync the kernel may have dropped the pages and say next
// time that all is well, so no later fsync proves anything.
func (d *Directory) fail(op string, err error) error {
	e := fmt.Errorf("%w: place %s: %w: %s: %w", ErrOut, d.name, ErrPoisoned, op, err)
	d.poison.CompareAndSwap(nil, &e)
	return e
}

func (d *Directory) syncDir(dir string) error {
	if err := d.Err(); err != nil {
		return err
	}
	if err := d.fs.SyncDir(dir); err != nil {
		return d.fail("fsync directory "+dir, err)
	}
	d.synced()
	return nil
}

// path is where a file lies.
func path(name string) string { return filesDir + "/" + name[:2] + "/" + name }

func (d *Directory) check(name string) error {
	if !ValidName(name) {
		return fmt.Errorf("place %s: %q is no name of a file: %w", d.name, name, fs.ErrInvalid)
	}
	return nil
}

// Create implements Place.
func (d *Directory) Create(_ context.Context, name string) (Writer, error) {
	if err := errors.Join(d.check(name), d.Err()); err != nil {
		return nil, err
	}
	// A random name, because two workers may write the same file at once.
	tmp := rand.Text()
	d.setWriting(tmp, true)
	f, err := d.fs.Create(tmpDir + "/" + tmp)
	if err != nil {
		d.setWriting(tmp, false)
		return nil, d.failed("create "+name, err)
	}
	failpoint.Hit("objectstore.place.create.after")
	return &dirWriter{d: d, name: name, tmp: tmp, file: f}, nil
}

// Open implements Place.
func (d *Directory) Open(_ context.Context, name string) (Reader, error) {
	if err := d.check(name); err != nil {
		return nil, err
	}
	f, err := d.fs.Open(path(name))
	if err != nil {
		return nil, d.failed("open "+name, err)
	}
	size, err := f.Size()
	if err != nil {
		_ = f.Close()
		return nil, d.failed("open "+name, err)
	}
	return dirReader{f, size}, nil
}

type dirReader struct {
	vfs.File
	size int64
}

func (r dirReader) Size() int64 { return r.size }

// Stat implements Place.
func (d *Directory) Stat(_ context.Context, name string) (File, error) {
	if err := d.check(name); err != nil {
		return File{}, err
	}
	st, err := d.fs.Stat(path(name))
	if err != nil {
		return File{}, d.failed("stat "+name, err)
	}
	return File{Name: name, Size: st.Size}, nil
}

// Remove implements Place. The removal is not synced: a file that a crash brings back is found by
// whoever compares the list with what should be there.
func (d *Directory) Remove(_ context.Context, name string) error {
	if err := d.check(name); err != nil {
		return err
	}
	if err := d.fs.Remove(path(name)); err != nil {
		return d.failed("remove "+name, err)
	}
	return nil
}

// SetAside implements Place: the file goes to quarantine/.
func (d *Directory) SetAside(_ context.Context, name string) (string, error) {
	if err := errors.Join(d.check(name), d.Err()); err != nil {
		return "", err
	}
	if err := vfs.EnsureDir(d.fs, quarantineDir); err != nil {
		return "", d.failed("set aside "+name, err)
	}
	where, err := vfs.MoveAside(d.fs, path(name), quarantineDir)
	switch {
	case err != nil:
		return "", d.failed("set aside "+name, err)
	case where == "":
		return "", d.failed("set aside "+name, fs.ErrNotExist)
	}
	return d.name + ":" + where, nil
}

// List implements Place. Folders have the first two characters of the names in them, so that going
// through both in order gives the order of the names. The size is read for each file that is given.
func (d *Directory) List(ctx context.Context, prefix, after string, fn func(File) error) error {
	folders, err := vfs.Names(d.fs, filesDir)
	if err != nil {
		return d.failed("list", err)
	}
	for _, folder := range folders {
		if !strings.HasPrefix(folder, prefix[:min(2, len(prefix))]) || folder < after[:min(2, len(after))] {
			continue
		}
		names, err := vfs.Names(d.fs, filesDir+"/"+folder)
		if err != nil {
			return d.failed("list", err)
		}
		for _, n := range names {
			if !ValidName(n) || n[:2] != folder || !strings.HasPrefix(n, prefix) || n <= after {
				continue
			}
			if err := ctx.Err(); err != nil {
				return d.failed("list", err)
			}
			f, err := d.Stat(ctx, n)
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed since the folder was read
			}
			if err != nil {
				return err
			}
			if err := fn(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Free implements Place.
func (d *Directory) Free(context.Context) (int64, error) {
	n, _, err := d.fs.Free(".")
	if err != nil {
		return -1, d.failed("free", err)
	}
	return n, nil
}

// Close implements Place: it gives back the lock.
func (d *Directory) Close() error { return d.lock.Close() }
