package spool_test

import (
	"errors"
	"math/rand/v2"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
)

var errPower = errors.New("power is off")

// disk is a file system with a power switch: a call fails, and what was not synced may be
// lost then.
type disk struct {
	vfs.FS
	mem *crashfs.FS

	mu     sync.Mutex
	calls  int
	failAt int  // the call with this number, and all that follow, fail; -1 never
	done   bool // the failing call takes effect, and its answer is lost
	// failed is asked about each call, when set; it fails that call alone.
	failed func(errorfs.Op) error
}

func newDisk() *disk { return diskOf(crashfs.New()) }

func diskOf(mem *crashfs.FS) *disk {
	d := &disk{mem: mem, failAt: -1}
	d.FS = errorfs.Wrap(mem, d.inject)
	return d
}

func (d *disk) inject(op errorfs.Op) errorfs.Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.calls
	d.calls++
	switch {
	case d.failAt >= 0 && n >= d.failAt:
		return errorfs.Fault{Err: errPower, Made: n == d.failAt && d.done}
	case d.failed != nil:
		return errorfs.Fault{Err: d.failed(op)}
	}
	return errorfs.Fault{}
}

// powerLoss gives the disk after the power went.
func (d *disk) powerLoss(rng *rand.Rand) *disk {
	return diskOf(d.mem.PowerLoss(crashfs.Strict, rng.Uint64()))
}
