package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// progress of the copying to a drive.
type progress struct {
	total, done, wrote atomic.Int64 // bytes: to compare, compared, and written because they were different
}

// dirtySet has the names that changed since it was begun, and from which byte on.
type dirtySet struct {
	mu    sync.Mutex
	names map[string]int64
}

// touch notes a change for the drive that is being copied. It follows the change: what is copied in between is copied again.
func (f *FS) touch(name string, from int64) {
	s := f.dirty.Load()
	if s == nil {
		return
	}
	name = path.Clean(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, ok := s.names[name]; !ok || from < was {
		s.names[name] = from
	}
}

// take gives the names that changed, and begins anew.
func (s *dirtySet) take() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.names
	s.names = map[string]int64{}
	return names
}

// Run brings drives in that lack writes, one after the other, and looks for those that are missing, until ctx ends.
func (f *FS) Run(ctx context.Context) error {
	for {
		for _, d := range f.drives {
			f.lookAgain(d)
			if f.stateOf(d) != Waiting || ctx.Err() != nil {
				continue
			}
			if err := f.bring(ctx, d); err != nil && ctx.Err() == nil {
				f.log.Error("a drive could not be brought in", "drive", d.Name, "error", err)
			}
		}
		t := time.NewTimer(f.opt.Retry)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

func (f *FS) stateOf(d *drive) State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return d.state
}

// lookAgain looks for a drive that was missing.
func (f *FS) lookAgain(d *drive) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.state != Missing {
		return
	}
	r, there, err := d.inspect()
	if err != nil {
		d.cause = err
		return
	}
	if !there {
		return
	}
	twin := slices.ContainsFunc(f.drives, func(o *drive) bool { return o != d && o.id == r.Drive })
	if twin || len(r.InSync) > 0 && r.Store != f.store {
		d.state, d.cause = Refused, fmt.Errorf("%w: it is drive %s of store %s", ErrMixed, r.Drive, r.Store)
		return
	}
	// It cannot be newer than this process, whose start had a majority; whatever it has is compared with what the others have.
	d.cause = errors.New("it was missing")
}

// bring copies to a drive what it lacks, while writes go on, and makes it a member.
func (f *FS) bring(ctx context.Context, d *drive) (err error) {
	if err := f.prepare(d); err != nil {
		return err
	}
	began := time.Now() // measures only
	dirty := &dirtySet{names: map[string]int64{}}
	f.dirty.Store(dirty)
	// Whoever began to change something without the set has done so when the lock is given.
	f.drain()
	f.copying.total.Store(f.sizeOf(f.source(), "."))
	defer func() {
		f.dirty.Store(nil)
		f.mu.Lock()
		if err != nil && d.state == Copying {
			d.state, d.cause = Failed, err
			// Nothing is known to be wrong with the drive: there will be another attempt.
			if ctx.Err() != nil || vfs.IsFull(err) {
				d.state = Waiting
			}
		}
		f.mu.Unlock()
	}()
	c := &copier{f: f, to: d, ctx: ctx, rate: f.opt.Rate, buf: make([]byte, copyUnit), have: make([]byte, copyUnit)}
	f.copying.done.Store(0)
	f.copying.wrote.Store(0)
	if err := c.tree("."); err != nil {
		return err
	}
	// What changed meanwhile is copied again, until little is left. The rest is done while nothing changes.
	c.rate = 0
	for range mostPasses {
		if c.left(dirty) <= leastLeft {
			break
		}
		if err := c.again(dirty.take()); err != nil {
			return err
		}
	}
	f.gate.Lock()
	defer f.gate.Unlock()
	if err := f.Err(); err != nil {
		return err
	}
	if err := c.again(dirty.take()); err != nil {
		return err
	}
	if err := f.join(d); err != nil {
		return err
	}
	f.log.Info("a drive has everything again", "drive", d.Name, "compared", f.copying.done.Load(), "written", f.copying.wrote.Load(), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

const (
	copyUnit   = 1 << 20
	mostPasses = 30
	// leastLeft, bytes, is copied while writes wait.
	leastLeft = 8 << 20
)

// drain waits for the changes that are under way.
func (f *FS) drain() {
	f.gate.Lock()
	defer f.gate.Unlock()
}

// prepare gives the drive an identity, and takes its index away, which is of another state of the log.
func (f *FS) prepare(d *drive) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.id == "" {
		empty, err := blank(d.FS)
		if err != nil {
			return err
		}
		if !empty {
			d.state, d.cause = Refused, errors.New("it has no record, and is not empty")
			return fmt.Errorf("%s: %w", d.Name, d.cause)
		}
		d.id = newID()
	}
	if f.opt.DropIndex != nil {
		if err := f.opt.DropIndex(d.slot); err != nil {
			return fmt.Errorf("remove the old index on %s: %w", d.Name, err)
		}
	}
	if err := d.keep(f.m.Greet()); err != nil {
		return err
	}
	d.state = Copying
	return nil
}

// join makes a drive a member that has everything. The gate is locked.
func (f *FS) join(d *drive) error {
	f.openMu.Lock()
	for x := range f.open {
		// What is being written must go on on the drive as well.
		if _, err := x.on(d); err != nil && !x.nameless() {
			f.openMu.Unlock()
			return fmt.Errorf("open on %s: %w", d.Name, err)
		}
	}
	f.openMu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	// The membership may have changed since it was told.
	if err := d.keep(f.m.Greet()); err != nil {
		return err
	}
	d.state, d.cause = Synced, nil
	r := f.m.Join(d.id)
	err := f.m.Settle(r, f.spread(r))
	if err == nil {
		err = f.shed()
	}
	if err != nil {
		err = f.named(err)
		f.halted.CompareAndSwap(nil, &err)
		return err
	}
	f.view.Store(&view{f.synced()})
	if d.state != Synced {
		return d.cause
	}
	return nil
}

// source is a drive to copy from.
func (f *FS) source() *drive { return f.view.Load().members[0] }

func (f *FS) sizeOf(d *drive, dir string) (n int64) {
	list, err := d.FS.List(dir)
	if err != nil {
		return 0 // the copying will say so
	}
	for _, e := range list {
		name := path.Join(dir, e.Name)
		if own(name) {
			continue
		}
		if e.Type.IsDir() {
			n += f.sizeOf(d, name)
		} else if st, err := d.FS.Stat(name); err == nil {
			n += st.Size
		}
	}
	return n
}

// copier makes a drive equal to the members.
type copier struct {
	f         *FS
	to        *drive
	ctx       context.Context
	rate      int64
	buf, have []byte
	began     time.Time
	moved     int64
}

// tree makes a directory and all below it equal: what the members do not have is removed.
func (c *copier) tree(dir string) error {
	want, err := c.f.List(dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	have, err := c.to.FS.List(dir)
	if err != nil {
		return fmt.Errorf("list %s on %s: %w", dir, c.to.Name, err)
	}
	for _, e := range have {
		name := path.Join(dir, e.Name)
		if own(name) || slices.Contains(want, e) {
			continue
		}
		if err := c.remove(name); err != nil {
			return err
		}
	}
	for _, e := range want {
		name := path.Join(dir, e.Name)
		if own(name) {
			continue
		}
		if !e.Type.IsDir() {
			err = c.file(name, 0)
		} else if err = vfs.EnsureDir(c.to.FS, name); err == nil {
			err = c.tree(name)
		}
		if err != nil {
			return err
		}
	}
	if err := c.to.FS.SyncDir(dir); err != nil {
		return fmt.Errorf("fsync %s on %s: %w", dir, c.to.Name, err)
	}
	return nil
}

// remove removes a name on the drive, and all below it.
func (c *copier) remove(name string) error {
	st, err := c.to.FS.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && st.Type.IsDir() {
		names, lerr := vfs.Names(c.to.FS, name)
		if err = lerr; err == nil {
			for _, n := range names {
				if err := c.remove(path.Join(name, n)); err != nil {
					return err
				}
			}
		}
	}
	if err == nil {
		err = c.to.FS.Remove(name)
	}
	if err != nil {
		return fmt.Errorf("remove %s on %s: %w", name, c.to.Name, err)
	}
	return nil
}

// again makes the names equal that changed.
func (c *copier) again(names map[string]int64) error {
	dirs := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if own(name) {
			continue
		}
		st, err := c.f.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = c.remove(name)
		case err == nil && st.Type.IsDir():
			if err = vfs.EnsureDir(c.to.FS, name); err == nil {
				err = c.tree(name)
			}
		case err == nil:
			err = c.file(name, names[name])
		}
		if err != nil {
			return err
		}
		dirs[path.Dir(name)] = true
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		err := c.to.FS.SyncDir(dir)
		// A directory that is gone again has no names to sync.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("fsync %s on %s: %w", dir, c.to.Name, err)
		}
	}
	return nil
}

// left gives how many bytes of changed files are to be compared again.
func (c *copier) left(s *dirtySet) (n int64) {
	s.mu.Lock()
	names := maps.Clone(s.names)
	s.mu.Unlock()
	for name, from := range names {
		if st, err := c.f.Stat(name); err == nil {
			n += max(0, st.Size-from)
		}
	}
	return n
}

// file makes a file equal from a byte on. It compares and writes only what is different: a drive that was away has most of
// it, and what a drive that failed has of a file may be wrong at its right length.
func (c *copier) file(name string, from int64) error {
	src, err := c.f.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return c.remove(name) // it went away meanwhile
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", name, err)
	}
	defer src.Close()
	dst, err := c.to.FS.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		dst, err = c.to.FS.Create(name)
		from = 0
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", name, c.to.Name, err)
	}
	wrote, err := c.bytes(src.(*File), dst, from)
	if err == nil {
		// Also when nothing was written: an earlier attempt may have ended before its fsync.
		err = dst.Sync()
	}
	c.f.copying.wrote.Add(wrote)
	if err = errors.Join(err, dst.Close()); err != nil {
		return fmt.Errorf("copy %s to %s: %w", name, c.to.Name, err)
	}
	return nil
}

func (c *copier) bytes(src *File, dst vfs.File, from int64) (wrote int64, err error) {
	size, err := dst.Size()
	if err != nil {
		return 0, err
	}
	at := min(from, size)
	for {
		if err := c.ctx.Err(); err != nil {
			return wrote, err
		}
		n, _, rerr := src.read(c.buf, at)
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			return wrote, rerr
		}
		if n > 0 {
			k, err := dst.ReadAt(c.have[:n], at)
			if k < n || err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(c.have[:n], c.buf[:n]) {
				if _, err := dst.WriteAt(c.buf[:n], at); err != nil {
					return wrote, err
				}
				wrote += int64(n)
			}
			at += int64(n)
			c.f.copying.done.Add(int64(n))
			c.pace(int64(n))
		}
		if n < len(c.buf) {
			break
		}
	}
	if size > at {
		return wrote, dst.Truncate(at)
	}
	return wrote, nil
}

// pace waits so that the rate is kept.
func (c *copier) pace(n int64) {
	if c.rate <= 0 {
		return
	}
	if c.began.IsZero() {
		c.began = time.Now()
	}
	c.moved += n
	Pace(c.ctx, c.began, c.moved, c.rate)
}

// Pace waits until bytes may have been moved since began at a rate of so many bytes a second, or ctx ends; rate 0 waits for nothing.
func Pace(ctx context.Context, began time.Time, bytes, rate int64) {
	if rate <= 0 {
		return
	}
	ahead := time.Duration(float64(bytes)/float64(rate)*float64(time.Second)) - time.Since(began)
	if ahead <= 0 {
		return
	}
	t := time.NewTimer(ahead)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
