package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

// The index is a cache of the log. Pebble's own write-ahead log is off: each batch carries the
// log position that it brings the index to, and a flush makes a prefix of the batches durable.
// After a crash the log is replayed from the position that the index has. Key spaces:
const (
	spaceCheckpoint  = 'c' // position, next sequence, totals
	spaceBuckets     = 'b' // the list of buckets
	spaceDamage      = 'd' // file @ offset -> Damage as JSON
	spaceFile        = 'f' // body file -> nothing
	spaceBuilding    = 'i' // there while the index is built
	spaceBucketUsage = 'q' // bucket -> objects and versions, bytes
	spaceUploadUsage = 'u' // bucket 0x00 id -> whether the upload is open, bytes of its parts
	spaceKeyUsage    = 'k' // id and check value of a key version -> records, bytes
	spaceAside       = 'n' // bucket 0x00 key -> entry of a null version that is not the current one
	spaceObject      = 'o' // bucket 0x00 key -> entry; hidden keys too, and of a key with versions the current one's
	spaceSegment     = 's' // segment -> bytes of live records, bytes of tombstones, salt, first sequence
	spaceVersioned   = 'w' // bucket that may have versions -> nothing
)

// indexVersion is the version of all values; an index of another version is built again.
const indexVersion = 3

// checkpoint is the position of the log up to which the index has every record, with totals.
type checkpoint struct {
	pos     position // where the next record will be
	salt    uint32   // of that segment: an index of another log is thrown away
	nextSeq uint64
	objects int64
	bytes   int64 // sum of object sizes
	// hidden counts versions that are not the current one, and delete markers; hiddenBytes is the sum of their sizes.
	hidden, hiddenBytes int64
}

func (c checkpoint) encode() []byte {
	b := []byte{indexVersion}
	for _, v := range [...]uint64{c.pos.seg, uint64(c.pos.off), uint64(c.salt), c.nextSeq, uint64(c.objects), uint64(c.bytes), uint64(c.hidden), uint64(c.hiddenBytes)} {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func decodeCheckpoint(b []byte) (checkpoint, error) {
	if len(b) == 0 || b[0] != indexVersion {
		return checkpoint{}, fmt.Errorf("%w: index checkpoint of an unknown version", ErrCorrupt)
	}
	s := scannerOf(b[1:])
	c := checkpoint{
		pos:  position{s.Num(), int64(s.Num())},
		salt: uint32(s.Num()), nextSeq: s.Num(), objects: int64(s.Num()), bytes: int64(s.Num()),
	}
	if len(s.B) > 0 { // an index of a release without versions ends here
		c.hidden, c.hiddenBytes = int64(s.Num()), int64(s.Num())
	}
	if s.Bad {
		return c, fmt.Errorf("%w: index checkpoint ends early", ErrCorrupt)
	}
	return c, nil
}

const (
	indexMemtable = 8 << 20
	// Pebble takes its memtables out of its cache: the one that is written, and one that is flushed or kept for the next.
	// A cache that is no larger than these two keeps no block, and then every lookup reads the tables again.
	indexCache = 16<<20 + 2*indexMemtable
)

// index is a Pebble store that must neither end the process nor block its owner. Errors of its
// background work are kept in failed, and callers check them before a call that might wait for
// that work.
type index struct {
	db    *pebble.DB
	cache *pebble.Cache

	failed    atomic.Pointer[error] // of the background; nil again when a flush succeeds
	dead      chan struct{}         // closed when Pebble would have ended the process
	kill      sync.Once
	corrupt   atomic.Bool
	damaged   chan struct{} // closed when a table was found damaged
	unflushed atomic.Int64  // bytes since the last flush
}

// Infof implements pebble.Logger. It drops Pebble's messages: errors come back from calls.
func (*index) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (*index) Errorf(string, ...any) {}

// Fatalf implements pebble.Logger. Pebble calls it where it cannot continue, and it must not
// return. It ends the calling goroutine instead of the process: reads and the log still work.
func (x *index) Fatalf(format string, args ...any) {
	err := fmt.Errorf("index: "+format, args...)
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err = errors.Join(err, cause)
		}
	}
	x.failed.Store(&err)
	x.kill.Do(func() { close(x.dead) })
	runtime.Goexit()
}

// openIndex opens an index. It does so in a goroutine of its own, because Fatalf may end it.
func openIndex(fsys pebblevfs.FS, dir string) (*index, error) {
	x := &index{cache: pebble.NewCache(indexCache), dead: make(chan struct{}), damaged: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- x.start(fsys, dir) }()
	select {
	case err := <-done:
		if err != nil {
			x.cache.Unref()
			return nil, fmt.Errorf("open index: %w", err)
		}
		return x, nil
	case <-x.dead:
		return nil, fmt.Errorf("open index: %w", x.healthy())
	}
}

func (x *index) start(fsys pebblevfs.FS, dir string) (err error) {
	x.db, err = pebble.Open(dir, &pebble.Options{
		FS: fsys, Cache: x.cache, DisableWAL: true, Logger: x,
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       indexMemtable, MemTableStopWritesThreshold: 3,
		// By default Pebble stops writers once level 0 has 12 sublevels. A slow disk should delay
		// compactions and not the committer, so the limit is out of reach.
		MaxOpenFiles: 256, L0CompactionThreshold: 4, L0StopWritesThreshold: 1000,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { x.failed.Store(&err) },
			FlushEnd: func(i pebble.FlushInfo) {
				if i.Err == nil {
					x.failed.Store(nil)
					x.unflushed.Store(0)
				}
			},
			// Damage comes back from the call that met it; by default it ends the process.
			DataCorruption: func(pebble.DataCorruptionInfo) {
				if !x.corrupt.Swap(true) {
					close(x.damaged)
				}
			},
		},
	})
	return err
}

// healthy gives the last error of the background work; nil after a flush that succeeded.
func (x *index) healthy() error {
	if p := x.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// mayStall gives the error of a failing background when the next write might have to wait for
// it: once a memtable's worth is unflushed. Until then writes go to memory and cannot block.
func (x *index) mayStall() error {
	if x.unflushed.Load() < indexMemtable {
		return nil
	}
	return x.healthy()
}

// indexFlushTimeout bounds the wait for a flush, which Pebble itself retries for ever.
const indexFlushTimeout = 30 * time.Second

// flush makes every applied batch durable.
func (x *index) flush() error {
	if err := x.mayStall(); err != nil {
		return fmt.Errorf("flush index: %w", full(err))
	}
	done, err := x.db.AsyncFlush()
	if err != nil {
		return fmt.Errorf("flush index: %w", err)
	}
	// done is never closed while the flush fails, so the background's error is polled.
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(indexFlushTimeout); ; {
		select {
		case <-done:
			return nil
		case <-poll.C:
		}
		if err := x.healthy(); err != nil {
			return fmt.Errorf("flush index: %w", full(err))
		}
		if time.Now().After(end) {
			return errors.New("flush index: it takes too long")
		}
	}
}

// close closes the index. After Fatalf it is abandoned: closing could wait for ever for a
// goroutine that is gone. The process holds its files until it ends.
func (x *index) close() error {
	select {
	case <-x.dead:
		return nil
	default:
	}
	done := make(chan error, 1)
	go func() {
		err := x.db.Close()
		x.cache.Unref()
		done <- err
	}()
	select {
	case err := <-done:
		if x.healthy() != nil {
			return nil // reported before; the log has everything that the index could not write
		}
		return err
	case <-x.dead:
		return nil
	case <-time.After(indexFlushTimeout):
		return errors.New("close index: it takes too long")
	}
}

func (x *index) diskBytes() int64 {
	select {
	case <-x.dead:
		return 0
	default:
		return int64(x.db.Metrics().DiskSpaceUsage())
	}
}

func spaceKey(space byte, name string) []byte {
	b := make([]byte, 0, 1+len(name))
	return append(append(b, space), name...)
}

func objectKey(bucket, key string) []byte {
	b := make([]byte, 0, 2+len(bucket)+len(key))
	b = append(b, spaceObject)
	b = append(b, bucket...)
	b = append(b, 0)
	return append(b, key...)
}

func segmentKey(n uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{spaceSegment}, n)
}

// get calls use with the value of a key, which is valid during the call; ErrNotFound when the
// key is absent.
func (x *index) get(key []byte, use func([]byte) error) error {
	v, closer, err := x.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("read index: %w", err)
	}
	err = use(v)
	if cerr := closer.Close(); err == nil {
		err = cerr
	}
	return err
}

// scan calls fn for every key of a space, in order.
func (x *index) scan(space byte, fn func(name, value []byte) error) error {
	return x.scanFrom(space, "", fn)
}

// scanFrom calls fn for the keys of a space from a name on, in order.
func (x *index) scanFrom(space byte, name string, fn func(name, value []byte) error) (err error) {
	it, err := x.db.NewIter(&pebble.IterOptions{LowerBound: spaceKey(space, name), UpperBound: []byte{space + 1}})
	if err != nil {
		return fmt.Errorf("read index: %w", err)
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = cerr
		}
	}()
	for it.First(); it.Valid(); it.Next() {
		if err := fn(it.Key()[1:], it.Value()); err != nil {
			return err
		}
	}
	return it.Error()
}

// use is what the index keeps of a segment: the bytes of its live records and of its tombstones,
// and a copy of its salt and first sequence, with which its records can be verified when the
// segment's own header is damaged.
type use struct {
	live, tombs int64
	salt        uint32
	firstSeq    uint64
}

func (u use) encode() []byte {
	var b []byte
	for _, v := range [...]uint64{uint64(u.live), uint64(u.tombs), uint64(u.salt), u.firstSeq} {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func decodeUse(v []byte) (use, error) {
	s := scannerOf(v)
	u := use{int64(s.Num()), int64(s.Num()), uint32(s.Num()), s.Num()}
	if s.Bad {
		return u, fmt.Errorf("%w: a segment's use ends early", errForeignIndex)
	}
	return u, nil
}
