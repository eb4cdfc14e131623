package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

// Key spaces of the ledger's Pebble. Batches are logged and not synced: a killed process loses a few, a power loss more,
// and what is left is a prefix of them. That is as good as a cache needs.
const (
	spaceCount   = 'c' // state -> number of rows
	spaceDead    = 'd' // body -> message that was tried too often
	spaceDue     = 'q' // due time, body -> message
	spaceMessage = 'm' // body -> due time of its message
	spacePlace   = 'p' // place 0x00 key -> nothing
	spaceRow     = 'r' // key -> row
	spaceState   = 's' // state, key -> nothing
	spaceTotals  = 't' // number of messages and of dead letters
	spaceUse     = 'u' // place -> files and bytes that it has
	spaceValue   = 'v' // name -> bytes: policies, progress of passes
	spaceFormat  = 'z' // version of all values
)

const (
	formatVersion = 1
	memtable      = 4 << 20
	cacheBytes    = 8<<20 + 2*memtable
	closeTimeout  = 30 * time.Second
)

// ErrDown: the ledger's files cannot be written. The store goes on without it: bodies stay as they are until
// the next start.
var ErrDown = errors.New("the ledger is down")

// db is a Pebble that cannot end the process nor block its callers for ever.
type db struct {
	*pebble.DB
	cache *pebble.Cache
	dead  chan struct{} // closed when Pebble would have ended the process, or has found damage
	kill  sync.Once
	cause atomic.Pointer[error]

	use    sync.RWMutex // held shared by calls
	closed bool         // needs use
}

// Infof implements pebble.Logger. It drops Pebble's messages: errors come back from calls.
func (*db) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (*db) Errorf(string, ...any) {}

// Fatalf implements pebble.Logger. Pebble must not go on behind it, so the goroutine ends; do answers who waits for it.
func (d *db) Fatalf(format string, args ...any) {
	d.die(fmt.Errorf(format, args...))
	runtime.Goexit()
}

func (d *db) die(cause error) {
	d.kill.Do(func() {
		err := fmt.Errorf("%w: %w", ErrDown, cause)
		d.cause.Store(&err)
		close(d.dead)
	})
}

// err is why the ledger is down; nil while it is not.
func (d *db) err() error {
	if p := d.cause.Load(); p != nil {
		return *p
	}
	return nil
}

// do runs a call of Pebble in a goroutine of its own, which Fatalf may end.
func (d *db) do(fn func() error) error {
	d.use.RLock()
	defer d.use.RUnlock()
	if d.closed {
		return fmt.Errorf("%w: it was closed", ErrDown)
	}
	if err := d.err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		if pebble.IsCorruptionError(err) {
			d.die(err)
			return d.err()
		}
		return err
	case <-d.dead:
		return d.err()
	}
}

// openDB opens the ledger's files, and gives whether they are new. Files that cannot be opened, or are of
// another version, are removed first.
func openDB(fsys pebblevfs.FS, dir string) (d *db, fresh bool, err error) {
	if d, err = tryOpen(fsys, dir); err == nil {
		var ok bool
		if ok, err = d.ours(); ok {
			return d, false, nil
		}
		if err == nil {
			if err = d.Set([]byte{spaceFormat}, []byte{formatVersion}, pebble.NoSync); err == nil {
				return d, true, nil
			}
		}
		_ = d.shut() // the files are removed
	}
	if err := fsys.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("remove a damaged ledger: %w", err)
	}
	if d, err = tryOpen(fsys, dir); err != nil {
		return nil, false, err
	}
	if err := d.Set([]byte{spaceFormat}, []byte{formatVersion}, pebble.NoSync); err != nil {
		return nil, false, errors.Join(fmt.Errorf("begin a ledger: %w", err), d.shut())
	}
	return d, true, nil
}

// ours reports whether the files have this version. An error says that they have another; neither, that they
// are empty.
func (d *db) ours() (bool, error) {
	v, closer, err := d.Get([]byte{spaceFormat})
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer closer.Close()
	if len(v) != 1 || v[0] != formatVersion {
		return false, fmt.Errorf("%w: version %x", ErrCorrupt, v)
	}
	return true, nil
}

func tryOpen(fsys pebblevfs.FS, dir string) (*db, error) {
	d := &db{cache: pebble.NewCache(cacheBytes), dead: make(chan struct{})}
	err := d.do(func() (err error) {
		d.DB, err = pebble.Open(dir, &pebble.Options{
			FS: fsys, Cache: d.cache, Logger: d, FormatMajorVersion: pebble.FormatNewest,
			MemTableSize: memtable, MaxOpenFiles: 128,
			// Damage comes back from the call that met it; by default it ends the process.
			EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}},
		})
		return err
	})
	if err != nil {
		d.cache.Unref()
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	return d, nil
}

// shut closes the files. After Fatalf they are abandoned: closing could wait for ever.
func (d *db) shut() error {
	if d.err() != nil {
		return nil
	}
	done := make(chan error, 1)
	go func() {
		err := d.Close()
		d.cache.Unref()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-d.dead:
		return nil
	case <-time.After(closeTimeout):
		return errors.New("close the ledger: it takes too long")
	}
}

// get calls use with a value, which is valid during the call; false when there is none.
func (d *db) get(key []byte, use func([]byte) error) (bool, error) {
	v, closer, err := d.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the ledger: %w", err)
	}
	err = use(v)
	return true, errors.Join(err, closer.Close())
}

// scan calls fn for the keys from lower on that begin with prefix, in order, until fn gives errStop. The slices are
// valid during the call.
func (d *db) scan(prefix, lower []byte, fn func(key, value []byte) error) (err error) {
	it, err := d.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.SeekGE(lower); it.Valid(); it.Next() {
		if err := fn(it.Key(), it.Value()); errors.Is(err, errStop) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return it.Error()
}

// errStop ends a scan.
var errStop = errors.New("enough")

// after gives the first key behind all that begin with prefix. No prefix is all ones.
func after(prefix []byte) []byte {
	end := append([]byte{}, prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
