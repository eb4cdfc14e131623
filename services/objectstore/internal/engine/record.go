package engine

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// Kind of a record.
type kind uint8

const (
	kindPut     kind = 1 // an object; body inline, or in files named by the meta
	kindDelete  kind = 2 // a tombstone
	kindBuckets kind = 3 // body is the list of all buckets and replaces what was known
	kindLost    kind = 4 // an object whose bytes were lost; the body says where and why
	kindDamages kind = 5 // body is the list of damages with unknown keys and replaces the one before
)

// Flags of a record.
const (
	flagFile      uint8 = 1 << 0 // the body is in files
	flagQuiet     uint8 = 1 << 1 // written again by tagging or by reclaiming space: no event
	flagMarker    uint8 = 1 << 2 // a delete marker
	flagExpired   uint8 = 1 << 5 // deleted by a lifecycle rule
	knownFlags          = flagFile | flagQuiet | flagMarker | flagExpired
	recordMagic         = 0xA7
	headSize            = 40
	maxBucketLen        = 63
	maxKeyLen           = 1024
	maxMetaLen          = 4 << 20
	maxInlineBody       = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is one entry of the log.
//
//	0  u32 CRC32C of the segment's salt, bytes 4..40, bucket, key, meta
//	4  u8  magic 0xA7
//	5  u8  kind
//	6  u8  flags
//	7  u8  bucket length
//	8  u16 key length
//	10 u16 zero
//	12 u32 meta length
//	16 u32 body length
//	20 u32 CRC32C of the body
//	24 u64 sequence
//	32 u64 offset in the segment of the batch that the record was written with
//	40 bucket, key, meta, body
type record struct {
	kind    kind
	flags   uint8
	bucket  string
	key     string
	meta    []byte
	bodyLen uint32
	bodyCRC uint32
	seq     uint64
	batch   uint64
	body    []byte // nil after decodeHead
}

// isObject reports whether the record is of a key, and no list.
func (r *record) isObject() bool { return r.kind != kindBuckets && r.kind != kindDamages }

func (r *record) headLen() int { return headSize + len(r.bucket) + len(r.key) + len(r.meta) }
func (r *record) size() int64  { return int64(r.headLen()) + int64(r.bodyLen) }

// appendHead appends the encoded record without its body. The checksum starts from the segment's
// random salt, so bytes inside a client's object can never pass for a record.
func (r *record) appendHead(b []byte, salt uint32) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0, recordMagic, byte(r.kind), r.flags, byte(len(r.bucket)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.key)))
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.meta)))
	b = binary.LittleEndian.AppendUint32(b, r.bodyLen)
	b = binary.LittleEndian.AppendUint32(b, r.bodyCRC)
	b = binary.LittleEndian.AppendUint64(b, r.seq)
	b = binary.LittleEndian.AppendUint64(b, r.batch)
	b = append(b, r.bucket...)
	b = append(b, r.key...)
	b = append(b, r.meta...)
	binary.LittleEndian.PutUint32(b[start:], crc32.Update(salt, castagnoli, b[start+4:]))
	return b
}

// errShort says that more bytes are needed; decodeHead gives how many.
var errShort = errors.New("short record")

// decodeHead reads the head of a record from b. With errShort need is the number of
// bytes that the head has. Any other error is the reason why b is no record.
// The strings and meta of the record are copies.
func decodeHead(b []byte, salt uint32) (r record, need int, err error) {
	if len(b) < headSize {
		return r, headSize, errShort
	}
	if b[4] != recordMagic {
		return r, 0, errors.New("no record here")
	}
	r.kind, r.flags = kind(b[5]), b[6]
	nb, nk := int(b[7]), int(binary.LittleEndian.Uint16(b[8:]))
	nm := int(binary.LittleEndian.Uint32(b[12:]))
	r.bodyLen = binary.LittleEndian.Uint32(b[16:])
	r.bodyCRC = binary.LittleEndian.Uint32(b[20:])
	r.seq = binary.LittleEndian.Uint64(b[24:])
	r.batch = binary.LittleEndian.Uint64(b[32:])
	// The lengths are checked before the checksum, which covers as many bytes as they say.
	switch {
	case r.kind < kindPut || r.kind > kindDamages, r.flags&^knownFlags != 0, b[10]|b[11] != 0:
		return r, 0, errors.New("unknown kind or flags")
	case (nb == 0) != (r.kind == kindBuckets || r.kind == kindDamages) || nb > maxBucketLen || nk > maxHiddenLen || nm > maxMetaLen || r.bodyLen > maxInlineBody:
		return r, 0, errors.New("length out of bounds")
	}
	need = headSize + nb + nk + nm
	if len(b) < need {
		return r, need, errShort
	}
	if crc32.Update(salt, castagnoli, b[4:need]) != binary.LittleEndian.Uint32(b) {
		return r, 0, errors.New("head checksum mismatch")
	}
	r.bucket = string(b[headSize : headSize+nb])
	r.key = string(b[headSize+nb : headSize+nb+nk])
	r.meta = append([]byte(nil), b[headSize+nb+nk:need]...)
	return r, need, nil
}
