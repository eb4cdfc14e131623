package engine

import (
	"encoding/binary"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/scan"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// Pair is a name and a value.
type Pair struct{ Name, Value string }

// Checksum is the checksum that the client asked the store to verify and keep.
type Checksum struct {
	Algorithm string // CRC32, CRC32C, CRC64NVME, SHA1, SHA256; empty: none
	Type      string // FULL_OBJECT or COMPOSITE
	Value     string // base64, with "-parts" behind a composite one
}

// Extent is a body file, or a part of a body.
type Extent struct {
	File   string   // 32 hex digits
	Size   int64    // bytes of the file; those of the body are PlainSize
	Blocks []uint32 // CRC32C of every block of BlockSize << Wide bytes of the file, the last one may be short
	Wide   uint8    // 0 but in objects with more blocks than a record can have checksums; see widen
	Seal   *Seal    // how the file is encrypted; nil: it is not
}

// Object describes a stored object.
type Object struct {
	Bucket, Key string
	Size        int64
	ETag        string // without quotes
	Modified    time.Time
	Seq         uint64 // position in the order of all writes; grows
	Headers     []Pair // content-type, cache-control and the like, lower case
	User        []Pair // x-amz-meta-*, the name without its prefix
	Tags        []Pair
	Checksum    Checksum
	PartSizes   []int64 // multipart: the size of each part; nil for a plain object
	Extents     []Extent
	Upload      string // multipart: the id of the upload that made it
	Lock        Lock
	CRC64       []byte // of a part: its CRC64NVME, where its Checksum is another one, or none
	// Version is the id of the version; empty: it is the null version, or the bucket has no versions.
	Version string
	// Order is the sequence of the write that made the null version of a bucket with versions, which tags do not change;
	// 0: it was written before versioning was on, and so is older than every version.
	Order uint64
	Seal  *Seal // how a body in the log is encrypted; nil: it is not, or there is none
}

// Fields of the metadata. A field is its number, a length and bytes.
const (
	metaSize uint64 = iota + 1
	metaETag
	metaModified
	metaHeader
	metaUser
	metaTag
	metaChecksum
	metaExtent
	metaPart
	metaUpload
	metaOrder   // 11
	metaVersion // 12; of index entries only: in a record the version is part of the key
)

// Fields of locks, of checksums that the store adds, and of encryption (sealed.go).
const (
	metaLock         uint64 = 16
	metaCRC64        uint64 = 17 // of a part
	metaSum          uint64 = 18 // of index entries only: the kind of the checksum
	metaSealedExtent uint64 = 20
	metaSeal         uint64 = 21
	metaSealedBytes  uint64 = 22 // of index entries only: stored bytes by version of the key
	metaWideExtent   uint64 = 23
	metaSealedWide   uint64 = 24
)

// wideField gives the field of an extent with wide blocks; an earlier release refuses it.
var wideField = map[uint64]uint64{metaExtent: metaWideExtent, metaSealedExtent: metaSealedWide}

// metaOptional is the first number of fields that may be skipped by who does not know them.
const metaOptional = 64

func appendField(b []byte, id uint64, v []byte) []byte {
	b = binary.AppendUvarint(b, id)
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendPair(b []byte, id uint64, p Pair) []byte {
	v := make([]byte, 0, len(p.Name)+len(p.Value)+4)
	return appendField(b, id, appendText(appendText(v, p.Name), p.Value))
}

// encodeMeta writes the metadata of an object.
func encodeMeta(o *Object) []byte {
	var tmp [binary.MaxVarintLen64]byte
	num := func(n int64) []byte { return tmp[:binary.PutUvarint(tmp[:], uint64(n))] }
	b := make([]byte, 0, 256)
	b = appendField(b, metaSize, num(o.Size))
	b = appendField(b, metaETag, []byte(o.ETag))
	b = appendField(b, metaModified, num(o.Modified.UnixNano()))
	for _, p := range o.Headers {
		b = appendPair(b, metaHeader, p)
	}
	for _, p := range o.User {
		b = appendPair(b, metaUser, p)
	}
	for _, p := range o.Tags {
		b = appendPair(b, metaTag, p)
	}
	if c := o.Checksum; c.Algorithm != "" {
		b = appendSum(b, c)
	}
	if o.Upload != "" {
		b = appendField(b, metaUpload, []byte(o.Upload))
	}
	if o.Lock != (Lock{}) {
		b = appendField(b, metaLock, appendLock(nil, o.Lock))
	}
	if o.CRC64 != nil {
		b = appendField(b, metaCRC64, o.CRC64)
	}
	if o.Order != 0 {
		b = appendOrder(b, o.Order)
	}
	for _, n := range o.PartSizes {
		b = appendField(b, metaPart, num(n))
	}
	if o.Seal != nil {
		b = appendField(b, metaSeal, o.Seal.encode(nil))
	}
	for _, x := range o.Extents {
		field, v := metaExtent, appendText(nil, x.File)
		v = binary.AppendUvarint(v, uint64(x.Size))
		if x.Seal != nil {
			field, v = metaSealedExtent, x.Seal.encode(v)
		}
		if x.Wide > 0 {
			field, v = wideField[field], append(v, x.Wide)
		}
		for _, c := range x.Blocks {
			v = binary.LittleEndian.AppendUint32(v, c)
		}
		b = appendField(b, field, v)
	}
	return b
}

func appendSum(b []byte, c Checksum) []byte {
	v := make([]byte, 0, 128) // on the stack: most objects have a checksum
	return appendField(b, metaChecksum, appendText(appendText(appendText(v, c.Algorithm), c.Type), c.Value))
}

func appendOrder(b []byte, order uint64) []byte {
	var tmp [binary.MaxVarintLen64]byte
	return appendField(b, metaOrder, tmp[:binary.PutUvarint(tmp[:], order)])
}

// scanner reads stored values.
type scanner struct{ scan.Scanner }

func scannerOf(b []byte) scanner { return scanner{scan.New(b)} }

// decodeMeta reads the metadata of an object.
func decodeMeta(b []byte) (Object, error) {
	var o Object
	s := scannerOf(b)
	for len(s.B) > 0 && !s.Bad {
		id := s.Num()
		v := scannerOf(s.Bytes())
		switch id {
		case metaSize:
			o.Size = int64(v.Num())
		case metaETag:
			o.ETag = string(v.B)
		case metaModified:
			o.Modified = time.Unix(0, int64(v.Num()))
		case metaHeader:
			o.Headers = append(o.Headers, Pair{v.Text(), v.Text()})
		case metaUser:
			o.User = append(o.User, Pair{v.Text(), v.Text()})
		case metaTag:
			o.Tags = append(o.Tags, Pair{v.Text(), v.Text()})
		case metaChecksum:
			o.Checksum = Checksum{v.Text(), v.Text(), v.Text()}
		case metaPart:
			o.PartSizes = append(o.PartSizes, int64(v.Num()))
		case metaUpload:
			o.Upload = string(v.B)
		case metaLock:
			o.Lock = v.lock()
		case metaCRC64:
			o.CRC64 = append([]byte(nil), v.B...)
		case metaOrder:
			o.Order = v.Num()
		case metaExtent, metaSealedExtent, metaWideExtent, metaSealedWide:
			o.Extents = append(o.Extents, decodeExtent(&v, id == metaSealedExtent || id == metaSealedWide, id >= metaWideExtent))
		case metaSeal:
			o.Seal = decodeSeal(&v)
		default:
			if id >= metaOptional {
				continue
			}
			return o, fmt.Errorf("%w: metadata field %d is not known", ErrCorrupt, id)
		}
		s.Bad = s.Bad || v.Bad
	}
	switch {
	case s.Bad:
		return o, fmt.Errorf("%w: metadata ends early", ErrCorrupt)
	case o.Modified.IsZero() || o.Size < 0:
		return o, fmt.Errorf("%w: metadata without a time or with a negative size", ErrCorrupt)
	}
	return o, nil
}

func decodeExtent(v *scanner, sealed, wide bool) Extent {
	x := Extent{File: v.Text(), Size: int64(v.Num())}
	if sealed {
		x.Seal = decodeSeal(v)
		if _, ok := seal.Plain(x.Size); !ok {
			v.Bad = true
			return x
		}
	}
	if wide {
		if x.Wide = v.Byte(); x.Wide < 1 || x.Wide > maxWide {
			v.Bad = true
			return x
		}
	}
	// Reads index Blocks by offset, so the number of checksums must fit the size.
	if len(v.B)%4 != 0 || x.Size < 0 || int64(len(v.B)/4) != blocksOf(x.Size, x.Wide) {
		v.Bad = true
		return x
	}
	x.Blocks = make([]uint32, len(v.B)/4)
	for i := range x.Blocks {
		x.Blocks[i] = binary.LittleEndian.Uint32(v.B[4*i:])
	}
	return x
}
