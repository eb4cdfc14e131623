package engine

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The index is a cache of the log: its own write-ahead log is off, each batch carries the
// log position that it brings the index to, and a flush makes a prefix of the batches
// durable. Key spaces:
const (
	spaceCheckpoint = 'c' // position, next sequence, totals
	spaceBuckets    = 'b' // the list of buckets
	spaceFile       = 'f' // body file -> nothing
	spaceObject     = 'o' // bucket 0x00 key -> entry
	spaceSegment    = 's' // segment -> bytes of live records, bytes of tombstones
)

// checkpoint is the state of the log that the index reflects.
type checkpoint struct {
	pos     position // where the next record will be
	salt    uint32   // of that segment: an index of another log is thrown away
	nextSeq uint64
	objects int64
	bytes   int64 // sum of object sizes
}

func (c checkpoint) encode() []byte {
	b := []byte{1}
	for _, v := range [...]uint64{c.pos.seg, uint64(c.pos.off), uint64(c.salt), c.nextSeq, uint64(c.objects), uint64(c.bytes)} {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func decodeCheckpoint(b []byte) (checkpoint, error) {
	if len(b) == 0 || b[0] != 1 {
		return checkpoint{}, fmt.Errorf("%w: index checkpoint of an unknown version", ErrCorrupt)
	}
	s := scanner{b: b[1:]}
	c := checkpoint{
		pos:  position{s.num(), int64(s.num())},
		salt: uint32(s.num()), nextSeq: s.num(), objects: int64(s.num()), bytes: int64(s.num()),
	}
	if s.bad {
		return c, fmt.Errorf("%w: index checkpoint ends early", ErrCorrupt)
	}
	return c, nil
}

const (
	indexCache    = 16 << 20
	indexMemtable = 8 << 20
)

type index struct {
	db    *pebble.DB
	cache *pebble.Cache
}

// quietLogger keeps pebble's chatter out of the log; its errors come back from calls.
type quietLogger struct{}

func (quietLogger) Infof(string, ...any)  {}
func (quietLogger) Errorf(string, ...any) {}
func (quietLogger) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf("index: "+format, args...))
}

func openIndex(fsys vfs.FS, dir string) (*index, error) {
	cache := pebble.NewCache(indexCache)
	db, err := pebble.Open(dir, &pebble.Options{
		FS: fsys, Cache: cache, DisableWAL: true, Logger: quietLogger{},
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       indexMemtable, MemTableStopWritesThreshold: 3,
		MaxOpenFiles: 256, L0CompactionThreshold: 4,
		// Damage comes back from the call that met it; by default it ends the process.
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}},
	})
	if err != nil {
		cache.Unref()
		return nil, fmt.Errorf("open index: %w", err)
	}
	return &index{db, cache}, nil
}

func (x *index) close() error {
	err := x.db.Close()
	x.cache.Unref()
	return err
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

// get gives the value of a key; nil when absent.
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

// object looks an object up; nil when absent.
func (x *index) object(bucket, key string) (*entry, error) {
	var e entry
	err := x.get(objectKey(bucket, key), func(v []byte) (err error) {
		e, err = decodeEntry(v)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &e, nil
}

// scan calls fn for every key of a space, in order.
func (x *index) scan(space byte, fn func(name, value []byte) error) (err error) {
	it, err := x.db.NewIter(&pebble.IterOptions{LowerBound: []byte{space}, UpperBound: []byte{space + 1}})
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

func encodeUse(live, tombs int64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(live)), uint64(tombs))
}
