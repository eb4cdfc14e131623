package mirror

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// view is the drives that are in use. It never changes; another one takes its place.
type view struct {
	members []*drive // in sync, in the order of the settings
}

// FS is a file system on several drives. It is a vfs.FS.
type FS struct {
	opt    Options
	log    *slog.Logger
	drives []*drive // as in the settings
	store  ID

	// gate is held for reading by everything that changes a file or a name, and locked to bring in a drive.
	gate sync.RWMutex
	view atomic.Pointer[view]
	// dirty gets the names that change while a drive is being copied; nil at other times.
	dirty atomic.Pointer[dirtySet]

	mu     sync.Mutex // of the membership and of the drives' states
	m      *Membership
	halted atomic.Pointer[error]
	// lost is closed when the drive with the index was put out.
	lost chan struct{}

	openMu sync.Mutex
	open   map[*File]bool // files that were written to

	copying progress
	mended  atomic.Int64
	reads   atomic.Int64 // that another drive had to serve
}

// Err gives the reason why nothing can be written any more; nil while it can.
func (f *FS) Err() error {
	if p := f.halted.Load(); p != nil {
		return *p
	}
	return nil
}

// begin gives a call on all drives in sync. The gate is held until end.
func (f *FS) begin(do kind, name string) (*call, error) {
	f.gate.RLock()
	if err := f.Err(); err != nil {
		f.gate.RUnlock()
		return nil, fmt.Errorf("%s %s: %w", do, name, err)
	}
	c := calls.Get().(*call)
	for _, d := range f.view.Load().members {
		c.orders[c.n] = order{do: do, name: name, drive: d}
		c.n++
	}
	return c, nil
}

func (f *FS) end(c *call) {
	c.release()
	f.gate.RUnlock()
}

// settle puts out the drives that failed where others did not, and gives the operation's error. What drives
// that work have answered is for the caller.
func (f *FS) settle(c *call) error {
	var failed []failure
	answered := 0
	for i := range c.orders[:c.n] {
		o := &c.orders[i]
		if o.bad() || vfs.IsFull(o.err) {
			o.drive.errors.Add(1)
		}
		if o.bad() {
			failed = append(failed, failure{o.drive, fmt.Errorf("%s %s: %w", o.do, o.name, o.err)})
		} else {
			answered++
		}
	}
	if answered == 0 {
		return c.orders[0].err
	}
	if len(failed) == 0 {
		return nil
	}
	return f.expel(failed)
}

// fullOf gives the first error of a full disk.
func (c *call) fullOf() error {
	for i := range c.orders[:c.n] {
		if o := &c.orders[i]; o.err != nil && !o.bad() && vfs.IsFull(o.err) {
			return o.err
		}
	}
	return nil
}

// refusal gives the error of an operation that no drive has done: of a full disk before all others. A full disk is an
// error although others have done it.
func (c *call) refusal() error {
	if err := c.fullOf(); err != nil || c.some() && c.orders[0].do != doCreate {
		return err
	}
	for i := range c.orders[:c.n] {
		if o := &c.orders[i]; o.err != nil && !o.bad() && !o.out {
			return o.err
		}
	}
	return nil
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	c, err := f.begin(doCreate, name)
	if err != nil {
		return nil, err
	}
	defer f.end(c)
	c.run()
	out := newFile(f, name)
	for i := range c.orders[:c.n] {
		if o := &c.orders[i]; o.err == nil {
			out.set(o.drive.slot, o.file)
		}
	}
	err = f.settle(c)
	if err == nil && c.some() {
		err = f.expelUnlike(c, fs.ErrNotExist) // its directory is gone: it was unmounted, or is another one
	}
	if err == nil {
		err = c.refusal()
	}
	if err != nil {
		// Where it was made it is removed again: the caller was told that it is not there.
		for i := range c.orders[:c.n] {
			if o := &c.orders[i]; o.err == nil {
				_ = o.file.Close()
				_ = o.drive.FS.Remove(name)
			}
		}
		return nil, err
	}
	f.register(out)
	f.touch(name, 0)
	return out, nil
}

// Open implements vfs.FS. The other drives' files are opened when they are needed.
func (f *FS) Open(name string) (vfs.File, error) {
	var first error
	for _, d := range f.view.Load().members {
		h, err := d.FS.Open(name)
		if err == nil {
			out := newFile(f, name)
			out.set(d.slot, h)
			if first != nil {
				f.reads.Add(1)
			}
			return out, nil
		}
		if first == nil || errors.Is(first, fs.ErrNotExist) {
			first = err
		}
		if !errors.Is(err, fs.ErrNotExist) {
			d.errors.Add(1)
		}
	}
	return nil, first
}

// names does an operation on names. A drive that refuses with the error unlike what others have done is put out; nil is any
// error.
func (f *FS) names(do kind, name, to string, unlike error) error {
	c, err := f.begin(do, name)
	if err != nil {
		return err
	}
	defer f.end(c)
	for i := range c.orders[:c.n] {
		c.orders[i].to = to
	}
	c.run()
	if err := f.settle(c); err != nil {
		return err
	}
	// Some have done it, and others say that they cannot: they are not alike any more.
	if c.some() && do != doRemove {
		if err := f.expelUnlike(c, unlike); err != nil {
			return err
		}
	}
	err = c.refusal()
	f.touch(name, 0)
	if to != "" {
		f.touch(to, 0)
	}
	return err
}

// some reports whether a drive has done the operation.
func (c *call) some() bool {
	return slices.ContainsFunc(c.orders[:c.n], func(o order) bool { return o.err == nil })
}

// expelUnlike puts out the drives that refuse with an error what others have done; nil is any error but that of a full
// disk, which is the caller's to know.
func (f *FS) expelUnlike(c *call, with error) error {
	var unlike []failure
	for i := range c.orders[:c.n] {
		o := &c.orders[i]
		if o.err == nil || o.bad() || vfs.IsFull(o.err) || with != nil && !errors.Is(o.err, with) {
			continue
		}
		o.out = true
		o.drive.errors.Add(1)
		unlike = append(unlike, failure{o.drive, fmt.Errorf("%s %s: %w", o.do, o.name, o.err)})
	}
	if len(unlike) == 0 {
		return nil
	}
	return f.expel(unlike)
}

// Link implements vfs.FS.
func (f *FS) Link(oldname, newname string) error { return f.names(doLink, oldname, newname, nil) }

// Rename implements vfs.FS.
func (f *FS) Rename(oldname, newname string) error {
	err := f.names(doRename, oldname, newname, nil)
	if err == nil {
		f.renamed(oldname, newname)
	}
	return err
}

// Remove implements vfs.FS. A drive without the name has lost the removal's reason, and nothing else.
func (f *FS) Remove(name string) error {
	err := f.names(doRemove, name, "", nil)
	if err == nil {
		f.renamed(name, "")
	}
	return err
}

// Mkdir implements vfs.FS. A crash may have left the directory on some drives.
func (f *FS) Mkdir(name string) error { return f.names(doMkdir, name, "", fs.ErrNotExist) }

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	c, err := f.begin(doSyncDir, dir)
	if err != nil {
		return err
	}
	defer f.end(c)
	c.run()
	return f.settle(c)
}

// List implements vfs.FS: what any drive has.
func (f *FS) List(dir string) ([]vfs.Entry, error) {
	var out []vfs.Entry
	var first error
	found := false
	for _, d := range f.view.Load().members {
		list, err := d.FS.List(dir)
		if err != nil {
			if first == nil || errors.Is(first, fs.ErrNotExist) {
				first = err
			}
			continue
		}
		found = true
		for _, e := range list {
			if path.Clean(dir) == "." && own(e.Name) && e.Name != storeLock {
				continue
			}
			out = append(out, e)
		}
	}
	if !found {
		return nil, first
	}
	slices.SortFunc(out, func(a, b vfs.Entry) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(out, func(a, b vfs.Entry) bool { return a.Name == b.Name }), nil
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (vfs.Info, error) {
	var first error
	for _, d := range f.view.Load().members {
		st, err := d.FS.Stat(name)
		if err == nil {
			return st, nil
		}
		if first == nil || errors.Is(first, fs.ErrNotExist) {
			first = err
		}
	}
	return vfs.Info{}, first
}

// Free implements vfs.FS: the room of the fullest drive.
func (f *FS) Free(dir string) (bytes, files int64, err error) {
	known := false
	for _, d := range f.view.Load().members {
		b, n, ferr := d.FS.Free(dir)
		switch {
		case ferr != nil:
			err = ferr
		case !known:
			bytes, files, known = b, n, true
		default:
			bytes, files = min(bytes, b), min(files, n)
		}
	}
	if known {
		err = nil
	}
	return bytes, files, err
}

// Lock implements vfs.FS: it takes the lock on every drive.
func (f *FS) Lock(name string) (io.Closer, error) {
	var all locks
	for _, d := range f.view.Load().members {
		l, err := d.FS.Lock(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("on %s: %w", d.Name, err), all.Close())
		}
		all = append(all, l)
	}
	return all, nil
}

type locks []io.Closer

// Close implements io.Closer.
func (l locks) Close() error {
	var errs []error
	for _, c := range l {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

var _ vfs.FS = (*FS)(nil)
