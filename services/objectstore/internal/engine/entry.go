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
	files    []string // of the body; kept here, so that a write never has to read an old record
}

func (e *entry) recordSize() int64 { return int64(e.headLen) + int64(e.bodyLen) }

const entryVersion = 2

func (e *entry) encode(b []byte) []byte {
	b = append(b, entryVersion, e.flags)
	for _, v := range [...]uint64{
		e.seq, e.pos.seg, uint64(e.pos.off), uint64(e.headLen), uint64(e.bodyLen), uint64(e.size), uint64(e.modified),
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = binary.AppendUvarint(b, uint64(len(e.files)))
	for _, f := range e.files {
		b = appendText(b, f)
	}
	return append(b, e.etag...)
}

func decodeEntry(b []byte) (entry, error) {
	var e entry
	if len(b) < 2 || b[0] != entryVersion {
		return e, fmt.Errorf("%w: index entry of an unknown version", ErrCorrupt)
	}
	e.flags = b[1]
	s := scanner{b: b[2:]}
	e.seq = s.num()
	e.pos.seg, e.pos.off = s.num(), int64(s.num())
	e.headLen, e.bodyLen = int(s.num()), int(s.num())
	e.size, e.modified = int64(s.num()), int64(s.num())
	for n := s.num(); n > 0 && !s.bad; n-- {
		e.files = append(e.files, s.text())
	}
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
	// Damaged: its bytes were found damaged, or lost; reading it is an error.
	Damaged bool
}

func (e *entry) brief(key string) Brief {
	return Brief{Key: key, Size: e.size, ETag: e.etag, Modified: time.Unix(0, e.modified), Seq: e.seq}
}

// flagLost is of the index: the object was lost, and its record only names it.
const flagLost uint8 = 1 << 7

// flagUpload is of the index: the object was made of the parts of an upload.
const flagUpload uint8 = 1 << 6

// entryOf makes the index entry of a put record, or of a lost one, at pos.
func entryOf(r *record, o *Object, pos position) *entry {
	x := &entry{
		seq: r.seq, pos: pos, headLen: r.headLen(), bodyLen: int(r.bodyLen), flags: r.flags,
		size: o.Size, modified: o.Modified.UnixNano(), etag: o.ETag,
	}
	for _, f := range o.Extents {
		x.files = append(x.files, f.File)
	}
	if r.kind == kindLost {
		x.flags |= flagLost
	}
	if o.Upload != "" {
		x.flags |= flagUpload
	}
	return x
}
