package engine

import (
	"encoding/binary"
	"fmt"
	"time"
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
	Size   int64    // bytes
	Blocks []uint32 // CRC32C of every BlockSize bytes, the last block may be short
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
)

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
		b = appendField(b, metaChecksum, appendText(appendText(appendText(nil, c.Algorithm), c.Type), c.Value))
	}
	if o.Upload != "" {
		b = appendField(b, metaUpload, []byte(o.Upload))
	}
	for _, n := range o.PartSizes {
		b = appendField(b, metaPart, num(n))
	}
	for _, x := range o.Extents {
		v := appendText(nil, x.File)
		v = binary.AppendUvarint(v, uint64(x.Size))
		for _, c := range x.Blocks {
			v = binary.LittleEndian.AppendUint32(v, c)
		}
		b = appendField(b, metaExtent, v)
	}
	return b
}

// scanner reads varints and texts. It remembers the first failure, so that callers check once
// at the end.
type scanner struct {
	b   []byte
	bad bool
}

func (s *scanner) num() uint64 {
	v, n := binary.Uvarint(s.b)
	if n <= 0 {
		s.bad, s.b = true, nil
		return 0
	}
	s.b = s.b[n:]
	return v
}

func (s *scanner) bytes() []byte {
	n := s.num()
	if n > uint64(len(s.b)) {
		s.bad, s.b = true, nil
		return nil
	}
	v := s.b[:n]
	s.b = s.b[n:]
	return v
}

func (s *scanner) text() string { return string(s.bytes()) }

// decodeMeta reads the metadata of an object.
func decodeMeta(b []byte) (Object, error) {
	var o Object
	s := scanner{b: b}
	for len(s.b) > 0 && !s.bad {
		id := s.num()
		v := scanner{b: s.bytes()}
		switch id {
		case metaSize:
			o.Size = int64(v.num())
		case metaETag:
			o.ETag = string(v.b)
		case metaModified:
			o.Modified = time.Unix(0, int64(v.num()))
		case metaHeader:
			o.Headers = append(o.Headers, Pair{v.text(), v.text()})
		case metaUser:
			o.User = append(o.User, Pair{v.text(), v.text()})
		case metaTag:
			o.Tags = append(o.Tags, Pair{v.text(), v.text()})
		case metaChecksum:
			o.Checksum = Checksum{v.text(), v.text(), v.text()}
		case metaPart:
			o.PartSizes = append(o.PartSizes, int64(v.num()))
		case metaUpload:
			o.Upload = string(v.b)
		case metaExtent:
			o.Extents = append(o.Extents, decodeExtent(&v))
		default:
			if id >= metaOptional {
				continue
			}
			return o, fmt.Errorf("%w: metadata field %d is not known", ErrCorrupt, id)
		}
		s.bad = s.bad || v.bad
	}
	switch {
	case s.bad:
		return o, fmt.Errorf("%w: metadata ends early", ErrCorrupt)
	case o.Modified.IsZero() || o.Size < 0:
		return o, fmt.Errorf("%w: metadata without a time or with a negative size", ErrCorrupt)
	}
	return o, nil
}

func decodeExtent(v *scanner) Extent {
	x := Extent{File: v.text(), Size: int64(v.num())}
	// Reads index Blocks by offset, so the number of checksums must fit the size.
	if len(v.b)%4 != 0 || x.Size < 0 || int64(len(v.b)/4) != (x.Size+BlockSize-1)/BlockSize {
		v.bad = true
		return x
	}
	x.Blocks = make([]uint32, len(v.b)/4)
	for i := range x.Blocks {
		x.Blocks[i] = binary.LittleEndian.Uint32(v.b[4*i:])
	}
	return x
}
