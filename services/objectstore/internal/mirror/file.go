package mirror

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// File is a file on several drives. It is a vfs.File.
type File struct {
	fs *FS

	mu     sync.Mutex // of name, gone and of opening
	name   string
	gone   bool // it has no name any more
	closed bool
	// writes: it is among the open files that a joining drive must have too.
	writes atomic.Bool
	copies [MaxDrives]atomic.Pointer[handle]
}

type handle struct{ vfs.File }

func newFile(f *FS, name string) *File { return &File{fs: f, name: name} }

func (f *File) set(slot int, h vfs.File) { f.copies[slot].Store(&handle{h}) }

// on gives the file of one drive, and opens it there when that was not done yet.
func (f *File) on(d *drive) (vfs.File, error) {
	if h := f.copies[d.slot].Load(); h != nil {
		return h.File, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.copies[d.slot].Load(); h != nil {
		return h.File, nil
	}
	if f.gone || f.closed {
		return nil, &fs.PathError{Op: "open", Path: f.name, Err: fs.ErrNotExist}
	}
	h, err := d.FS.Open(f.name)
	if err != nil {
		return nil, err
	}
	f.set(d.slot, h)
	return h, nil
}

// change does an operation that changes the file, on every drive.
func (f *File) change(do kind, p []byte, off, n int64) error {
	name := f.called()
	c, err := f.fs.begin(do, name)
	if err != nil {
		return err
	}
	defer f.fs.end(c)
	if !f.writes.Load() {
		f.fs.register(f)
	}
	// A drive without the file cannot take the change. With one that has no name any more that is no loss.
	kept := 0
	var absent []failure
	for i := range c.orders[:c.n] {
		o := c.orders[i]
		h, err := f.on(o.drive)
		if err != nil {
			if !f.nameless() {
				absent = append(absent, failure{o.drive, fmt.Errorf("%s %s: %w", do, name, err)})
			}
			continue
		}
		o.file, o.p, o.off, o.n = h, p, off, n
		c.orders[kept] = o
		kept++
	}
	clear(c.orders[kept:c.n])
	c.n = kept
	if kept == 0 {
		if len(absent) == 0 {
			return &fs.PathError{Op: do.String(), Path: name, Err: fs.ErrNotExist}
		}
		return absent[0].cause
	}
	if len(absent) > 0 {
		if err := f.fs.expel(absent); err != nil {
			return err
		}
	}
	c.run()
	if err := f.fs.settle(c); err != nil {
		return err
	}
	if do != doSync {
		f.fs.touch(name, off)
	}
	return c.fullOf()
}

func (f *File) called() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.name
}

func (f *File) nameless() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gone
}

// Unname says that the name will be another file's: drives on which this one is not open yet are not read any more.
func (f *File) Unname() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
}

// WriteAt implements io.WriterAt. A full disk on one drive is an error, and what the others have written stays.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if err := f.change(doWrite, p, off, 0); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Truncate implements vfs.File.
func (f *File) Truncate(size int64) error { return f.change(doTruncate, nil, size, 0) }

// Allocate implements vfs.File.
func (f *File) Allocate(off, n int64) error { return f.change(doAllocate, nil, off, n) }

// Sync implements vfs.File.
func (f *File) Sync() error { return f.change(doSync, nil, 0, 0) }

// Size implements vfs.File.
func (f *File) Size() (int64, error) {
	var first error
	for _, d := range f.fs.view.Load().members {
		h, err := f.on(d)
		if err == nil {
			var n int64
			if n, err = h.Size(); err == nil {
				return n, nil
			}
		}
		if first == nil {
			first = err
		}
	}
	return 0, first
}

// ReadAt implements io.ReaderAt: from the first drive that can. What another could not read is written to it again.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	n, other, err := f.read(p, off)
	if other && n == len(p) {
		f.Mend(p, off)
	}
	return n, err
}

// read is ReadAt without mending; other: the first drive could not serve it.
func (f *File) read(p []byte, off int64) (n int, other bool, err error) {
	var first error
	for _, d := range f.fs.view.Load().members {
		n, err := f.readOn(d, p, off)
		if err == nil || errors.Is(err, io.EOF) {
			if first != nil {
				f.fs.reads.Add(1)
			}
			return n, first != nil, err
		}
		if first == nil || errors.Is(first, fs.ErrNotExist) {
			first = err
		}
	}
	return 0, false, first
}

func (f *File) readOn(d *drive, p []byte, off int64) (int, error) {
	h, err := f.on(d)
	if err != nil {
		return 0, err
	}
	n, err := h.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		d.errors.Add(1)
	}
	return n, err
}

// Copies gives how many copies ReadCopy reads from.
func (f *File) Copies() int { return len(f.fs.view.Load().members) }

// ReadCopy is ReadAt of one copy; i is 0 to Copies()-1.
func (f *File) ReadCopy(i int, p []byte, off int64) (int, error) {
	members := f.fs.view.Load().members
	if i >= len(members) {
		return 0, &fs.PathError{Op: "read", Path: f.called(), Err: fs.ErrNotExist}
	}
	return f.readOn(members[i], p, off)
}

// Mend writes bytes that are known to be right to the copies that have others at this place. They must be of a part of the file that
// nothing changes any more. A drive that does not take them is put out, as with any other write.
func (f *File) Mend(p []byte, off int64) {
	f.fs.gate.RLock()
	defer f.fs.gate.RUnlock()
	have, name := make([]byte, len(p)), f.called()
	for _, d := range f.fs.view.Load().members {
		n, err := f.readOn(d, have, off)
		if n == len(p) && bytes.Equal(have, p) {
			continue
		}
		h, oerr := f.on(d)
		if oerr != nil {
			continue
		}
		_, werr := h.WriteAt(p, off)
		if werr == nil {
			werr = h.Sync()
		}
		if werr != nil {
			_ = f.fs.expel([]failure{{d, fmt.Errorf("mend %s at %d: %w", name, off, errors.Join(werr, err))}})
			continue
		}
		f.fs.mended.Add(1)
		f.fs.log.Warn("a damaged copy was mended from another drive", "drive", d.Name, "file", name, "offset", off, "bytes", len(p))
	}
}

// Close implements io.Closer.
func (f *File) Close() error {
	f.fs.forget(f)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	var first error
	members := f.fs.view.Load().members
	for slot := range f.copies {
		h := f.copies[slot].Swap(nil)
		if h == nil {
			continue
		}
		err := h.Close()
		for _, d := range members {
			if d.slot == slot && err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}

// register adds a file to those that a joining drive must have open.
func (f *FS) register(x *File) {
	f.openMu.Lock()
	defer f.openMu.Unlock()
	f.open[x] = true
	x.writes.Store(true)
}

func (f *FS) forget(x *File) {
	if x.writes.Load() {
		f.openMu.Lock()
		delete(f.open, x)
		f.openMu.Unlock()
	}
}

// renamed follows a file that is open for writing; to is empty when its name was removed.
func (f *FS) renamed(from, to string) {
	f.openMu.Lock()
	defer f.openMu.Unlock()
	for x := range f.open {
		x.mu.Lock()
		switch x.name {
		case to: // another file has taken its name
			x.gone = true
		case from:
			x.name, x.gone = to, to == ""
		}
		x.mu.Unlock()
	}
}

var _ vfs.File = (*File)(nil)
