package queue

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
)

// errCrashed is what every call says after the crash.
var errCrashed = errors.New("crashed")

// disk is a file system that loses what was not synced, and whose calls can fail.
type disk struct {
	vfs.FS
	mem     *crashfs.FS
	rng     *rand.Rand
	calls   int
	crashAt int // this call and all later ones fail; 0: none
	// fail, when set, can fail one call without a crash.
	fail func(op errorfs.Kind, name string) error
}

func newDisk(seed uint64) *disk { return diskOf(crashfs.New(), seed) }

func diskOf(mem *crashfs.FS, seed uint64) *disk {
	d := &disk{mem: mem, rng: rand.New(rand.NewPCG(seed, 1))}
	d.FS = errorfs.Wrap(mem, d.inject)
	return d
}

// inject counts a call. The one at which the machine ends may have taken effect, or a part of it.
func (d *disk) inject(op errorfs.Op) errorfs.Fault {
	d.calls++
	switch {
	case d.crashAt > 0 && d.calls > d.crashAt:
		return errorfs.Fault{Err: errCrashed}
	case d.crashAt > 0 && d.calls == d.crashAt:
		return errorfs.Fault{Err: errCrashed, Made: op.Kind != errorfs.Write && d.rng.IntN(2) == 0, Written: d.rng.IntN(op.Size + 1)}
	case d.fail != nil:
		return errorfs.Fault{Err: d.fail(op.Kind, op.Name), Written: d.rng.IntN(op.Size + 1)}
	}
	return errorfs.Fault{}
}

// crash gives the disk as a machine finds it after a loss of power.
func (d *disk) crash() *disk {
	return diskOf(d.mem.PowerLoss(crashfs.Strict, d.rng.Uint64()), d.rng.Uint64())
}

// kill gives the disk as the next process finds it when only the process died.
func (d *disk) kill() *disk { return diskOf(d.mem.Restart(), d.rng.Uint64()) }

// read gives all bytes of a file.
func (d *disk) read(t *testing.T, name string) []byte {
	t.Helper()
	b, _, err := vfs.ReadFile(d.mem, name, 0)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// flip changes one byte of a file, as a bad disk does.
func (d *disk) flip(t *testing.T, name string, at int64, by byte) {
	t.Helper()
	f, err := d.mem.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= by
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// list gives the names in the queue's directory, one a line.
func (d *disk) list(t *testing.T) string {
	t.Helper()
	names, err := vfs.Names(d.mem, "/q")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, "\n")
}
