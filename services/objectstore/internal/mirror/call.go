package mirror

import (
	"errors"
	"io/fs"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// kind of an operation.
type kind uint8

const (
	doWrite kind = iota
	doTruncate
	doAllocate
	doSync
	doSyncDir
	doCreate
	doLink
	doRename
	doRemove
	doMkdir
)

func (k kind) String() string {
	return [...]string{"write", "truncate", "allocate", "fsync", "fsync of a directory", "create", "link", "rename", "remove", "mkdir"}[k]
}

// waits reports whether an operation waits for the disk, so that the drives do it at the same time. Others only change
// the page cache: handing them to another goroutine takes longer than doing them.
func (k kind) waits(p []byte) bool {
	return k == doSync || k == doSyncDir || k == doWrite && len(p) >= largeWrite
}

// largeWrite, bytes, takes longer to copy than to hand over.
const largeWrite = 128 << 10

// order is the part of one drive in an operation.
type order struct {
	do       kind
	name, to string
	p        []byte
	off, n   int64

	drive *drive
	file  vfs.File // of the drive; create gives it
	err   error
	out   bool // the drive was put out for its answer
	done  *sync.WaitGroup
}

func (o *order) run() {
	switch o.do {
	case doWrite:
		_, o.err = o.file.WriteAt(o.p, o.off)
	case doTruncate:
		o.err = o.file.Truncate(o.off)
	case doAllocate:
		o.err = o.file.Allocate(o.off, o.n)
	case doSync:
		o.err = o.file.Sync()
	case doSyncDir:
		o.err = o.drive.FS.SyncDir(o.name)
	case doCreate:
		o.file, o.err = o.drive.FS.Create(o.name)
	case doLink:
		o.err = o.drive.FS.Link(o.name, o.to)
	case doRename:
		o.err = o.drive.FS.Rename(o.name, o.to)
	case doRemove:
		o.err = o.drive.FS.Remove(o.name)
	case doMkdir:
		o.err = o.drive.FS.Mkdir(o.name)
	}
}

// bad reports whether the drive has failed. A full disk and names that are taken or missing are answers of a drive that
// works; but behind a failed fsync nobody knows what is durable, whatever the reason was.
func (o *order) bad() bool {
	if o.err == nil {
		return false
	}
	if o.do == doSync || o.do == doSyncDir {
		return true
	}
	return !vfs.IsFull(o.err) && !errors.Is(o.err, fs.ErrExist) && !errors.Is(o.err, fs.ErrNotExist)
}

// call is one operation on all drives of a view. Calls are used again, so that a write takes no memory.
type call struct {
	orders [MaxDrives]order
	n      int
	wg     sync.WaitGroup
}

var calls = sync.Pool{New: func() any { return new(call) }}

func (c *call) release() {
	clear(c.orders[:c.n])
	c.n = 0
	calls.Put(c)
}

// run does the operation on every drive, and returns when all are done.
func (c *call) run() {
	if !c.orders[0].do.waits(c.orders[0].p) {
		for i := range c.orders[:c.n] {
			c.orders[i].run()
		}
		return
	}
	// The caller does the part of the first drive itself.
	for i := 1; i < c.n; i++ {
		o := &c.orders[i]
		o.done = &c.wg
		c.wg.Add(1)
		o.drive.hand(o)
	}
	c.orders[0].run()
	c.wg.Wait()
}

// keptWorkers of a drive wait for its next operation; more exist only while that many run at once.
const keptWorkers = 8

// hand gives an order to a goroutine of the drive.
func (d *drive) hand(o *order) {
	select {
	case d.jobs <- o:
	default:
		go d.work(o)
	}
}

func (d *drive) work(o *order) {
	for {
		o.run()
		o.done.Done()
		if d.idle.Add(1) > keptWorkers {
			d.idle.Add(-1)
			return
		}
		var ok bool
		o, ok = <-d.jobs
		d.idle.Add(-1)
		if !ok {
			return
		}
	}
}
