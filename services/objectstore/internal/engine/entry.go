package engine

import (
	"encoding/binary"
	"fmt"
	"time"
)

// entry is what the index knows of an object: enough to list it, to decide a
// precondition, and to find its record.
type entry struct {
	seq      uint64
	pos      position
	headLen  int
	bodyLen  int
	flags    uint8
	size     int64
	modified int64 // unix nanoseconds
	etag     string
}

func (e *entry) recordSize() int64 { return int64(e.headLen) + int64(e.bodyLen) }

func (e *entry) encode(b []byte) []byte {
	b = append(b, 1, e.flags)
	for _, v := range [...]uint64{
		e.seq, e.pos.seg, uint64(e.pos.off), uint64(e.headLen), uint64(e.bodyLen), uint64(e.size), uint64(e.modified),
	} {
		b = binary.AppendUvarint(b, v)
	}
	return append(b, e.etag...)
}

func decodeEntry(b []byte) (entry, error) {
	var e entry
	if len(b) < 2 || b[0] != 1 {
		return e, fmt.Errorf("%w: index entry of an unknown version", ErrCorrupt)
	}
	e.flags = b[1]
	s := scanner{b: b[2:]}
	e.seq = s.num()
	e.pos.seg, e.pos.off = s.num(), int64(s.num())
	e.headLen, e.bodyLen = int(s.num()), int(s.num())
	e.size, e.modified = int64(s.num()), int64(s.num())
	if s.bad {
		return e, fmt.Errorf("%w: index entry ends early", ErrCorrupt)
	}
	e.etag = string(s.b)
	return e, nil
}

// Brief is what the index knows of an object.
type Brief struct {
	Key      string
	Size     int64
	ETag     string
	Modified time.Time
	Seq      uint64
}

func (e *entry) brief(key string) Brief {
	return Brief{Key: key, Size: e.size, ETag: e.etag, Modified: time.Unix(0, e.modified), Seq: e.seq}
}

// entryOf makes the index entry of a put record at pos.
func entryOf(r *record, o *Object, pos position) *entry {
	return &entry{
		seq: r.seq, pos: pos, headLen: r.headLen(), bodyLen: int(r.bodyLen), flags: r.flags,
		size: o.Size, modified: o.Modified.UnixNano(), etag: o.ETag,
	}
}
