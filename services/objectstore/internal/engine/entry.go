package engine

import (
	"encoding/binary"
	"fmt"
	"slices"
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
	lock     Lock
	sum      uint8         // the kind of its checksum; see sumCode
	files    []string      // of the body; kept here, so that a write never has to read an old record
	version  string        // id of the version; empty: the null version, or a bucket without versions
	order    uint64        // of the version: the sequence that made it; 0: before versioning was on
	sealed   []sealedBytes // what of the body is sealed, by version of the key; nil: nothing
}

func (e *entry) recordSize() int64 { return int64(e.headLen) + int64(e.bodyLen) }

const (
	entryVersion = 2
	// entryWithFields has fields, as metadata has them, before the ETag. Entries without any are written without: those of
	// buckets that use nothing of it stay as they were.
	entryWithFields = 3
)

// fields appends to b what only some entries have. The numbers are those of the metadata.
func (e *entry) fields(b []byte) []byte {
	switch {
	case e.version != "":
		b = appendField(b, metaVersion, []byte(e.version))
	case e.order != 0:
		b = appendOrder(b, e.order)
	}
	if e.lock != (Lock{}) {
		b = appendField(b, metaLock, appendLock(nil, e.lock))
	}
	if e.sum != 0 {
		b = appendField(b, metaSum, []byte{e.sum})
	}
	if len(e.sealed) > 0 {
		b = appendField(b, metaSealedBytes, appendSealed(nil, e.sealed))
	}
	return b
}

func (e *entry) readFields(b []byte) error {
	s := scannerOf(b)
	for len(s.B) > 0 && !s.Bad {
		id := s.Num()
		v := scannerOf(s.Bytes())
		switch id {
		case metaVersion:
			e.version = v.Rest()
			if !ValidVersionID(e.version) {
				return fmt.Errorf("%w: index entry of a version without an id", ErrCorrupt)
			}
			e.order = orderOf(e.version)
		case metaOrder:
			e.order = v.Num()
		case metaSealedBytes:
			e.sealed = v.sealed()
		case metaLock:
			e.lock = v.lock()
		case metaSum:
			e.sum = v.Byte()
		default:
			return fmt.Errorf("%w: index entry with the field %d, which is not known", ErrCorrupt, id)
		}
		s.Bad = s.Bad || v.Bad
	}
	if s.Bad {
		return fmt.Errorf("%w: index entry ends early", ErrCorrupt)
	}
	return nil
}

func (e *entry) encode(b []byte) []byte {
	var room [96]byte // holds a version, a lock and a checksum; what is sealed may take more
	fields := e.fields(room[:0])
	if len(fields) == 0 {
		b = append(b, entryVersion, e.flags)
	} else {
		b = append(b, entryWithFields, e.flags)
	}
	for _, v := range [...]uint64{
		e.seq, e.pos.seg, uint64(e.pos.off), uint64(e.headLen), uint64(e.bodyLen), uint64(e.size), uint64(e.modified),
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = binary.AppendUvarint(b, uint64(len(e.files)))
	for _, f := range e.files {
		b = appendText(b, f)
	}
	if len(fields) > 0 {
		b = append(binary.AppendUvarint(b, uint64(len(fields))), fields...)
	}
	return append(b, e.etag...)
}

func decodeEntry(b []byte) (entry, error) {
	var e entry
	if len(b) < 2 || b[0] != entryVersion && b[0] != entryWithFields {
		return e, fmt.Errorf("%w: index entry of an unknown version", ErrCorrupt)
	}
	e.flags = b[1]
	s := scannerOf(b[2:])
	e.seq = s.Num()
	e.pos.seg, e.pos.off = s.Num(), int64(s.Num())
	e.headLen, e.bodyLen = int(s.Num()), int(s.Num())
	e.size, e.modified = int64(s.Num()), int64(s.Num())
	for n := s.Num(); n > 0 && !s.Bad; n-- {
		e.files = append(e.files, s.Text())
	}
	if b[0] == entryWithFields {
		if err := e.readFields(s.Bytes()); err != nil {
			return e, err
		}
	}
	if s.Bad {
		return e, fmt.Errorf("%w: index entry ends early", ErrCorrupt)
	}
	e.etag = string(s.B)
	return e, nil
}

// Brief is what the index knows of an object.
type Brief struct {
	Key      string
	Size     int64
	ETag     string
	Modified time.Time
	Seq      uint64
	Version  string // id of the version; empty: the null version, or a bucket without versions
	// Damaged: its bytes were found damaged, or lost; reading it is an error.
	Damaged bool
	// Checksum has its algorithm and type, but not its value.
	Checksum Checksum
}

func (e *entry) brief(key string) Brief {
	return Brief{Key: key, Size: e.size, ETag: e.etag, Modified: time.Unix(0, e.modified), Seq: e.seq, Version: e.version, Checksum: sumOf(e.sum)}
}

// sumAlgorithms are the algorithms by their code in the index. New ones go to the end.
var sumAlgorithms = [...]string{"", "CRC32", "CRC32C", "CRC64NVME", "MD5", "SHA1", "SHA256", "SHA512", "XXHASH128", "XXHASH3", "XXHASH64"}

// sumComposite is added to the code of a checksum that is made of those of parts.
const sumComposite = 1 << 7

// sumCode encodes algorithm and type of a checksum in a byte, for the index; 0 is none, or one that the table lacks.
func sumCode(c Checksum) uint8 {
	code := uint8(max(0, slices.Index(sumAlgorithms[:], c.Algorithm)))
	if code != 0 && c.Type == "COMPOSITE" {
		code |= sumComposite
	}
	return code
}

func sumOf(code uint8) Checksum {
	i := int(code &^ sumComposite)
	if i == 0 || i >= len(sumAlgorithms) {
		return Checksum{}
	}
	if code&sumComposite != 0 {
		return Checksum{Algorithm: sumAlgorithms[i], Type: "COMPOSITE"}
	}
	return Checksum{Algorithm: sumAlgorithms[i], Type: "FULL_OBJECT"}
}

// flagLost is of the index: the object was lost, and its record only names it.
const flagLost uint8 = 1 << 7

// flagUpload is of the index: the object was made of the parts of an upload.
const flagUpload uint8 = 1 << 6

// entryOf makes the index entry of a put record, or of a lost one, at pos.
func entryOf(r *record, o *Object, pos position) *entry {
	x := &entry{
		seq: r.seq, pos: pos, headLen: r.headLen(), bodyLen: int(r.bodyLen), flags: r.flags,
		size: o.Size, modified: o.Modified.UnixNano(), etag: o.ETag, sum: sumCode(o.Checksum),
	}
	if !isInternal(r.key) {
		x.lock = o.Lock // an upload has that of the object which it will make, and can be aborted
	}
	for _, f := range o.Extents {
		x.files = append(x.files, f.File)
	}
	x.sealed = sealedBytesOf(r, o)
	if r.kind == kindLost {
		x.flags |= flagLost
	}
	if o.Upload != "" {
		x.flags |= flagUpload
	}
	if _, x.version = clientKey(r.key); x.version != "" {
		x.order = orderOf(x.version)
	} else {
		x.order = o.Order
	}
	return x
}
