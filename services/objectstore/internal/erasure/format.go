package erasure

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
)

// A file of a fragment is: header, payload, checksums of the payload's blocks, digests of all shards,
// trailer. Integers are little-endian. docs/format/body-files.md has the bytes.

// Hash is XXH3-128.
type Hash [16]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

func hashOf(b []byte) Hash { return xxh3.Hash128(b).Bytes() }

const (
	headMagic   = "LMBODY1\n"
	tailMagic   = "LMBODYE\n"
	headerSize  = 48
	trailerSize = 112
	sumSize     = 8
	hashSize    = 16
	// Version of the format.
	formatVersion = 1
)

// ErrCorrupt: the bytes of a fragment are not those that were written.
var ErrCorrupt = errors.New("the fragment is damaged")

// Info is what a fragment says of itself.
type Info struct {
	Fragment
	Layout Layout
	// BodyHash is XXH3-128 of the whole body.
	BodyHash Hash
	// Generation is a hash of everything that decides the bytes of the shards: fragments of one body
	// belong together when they have the same.
	Generation Hash
	// Digests of all shards, each a hash of the checksums of the shard's blocks.
	Digests []Hash
}

// FileSize is the length of the file, bytes.
func (i Info) FileSize() int64 {
	return headerSize + i.Layout.ShardSize(i.Index) + i.Layout.blocks(i.Index)*sumSize + int64(len(i.Digests))*hashSize + trailerSize
}

// Digest is that of the fragment itself.
func (i Info) Digest() Hash { return i.Digests[i.Index] }

// Generation is a hash and no random number: who codes a body again makes the same bytes, so a
// retry after a crash finds its own work, and two workers that race do no harm.
func Generation(f Fragment, l Layout, body Hash) Hash {
	b := make([]byte, 0, 64)
	b = append(b, f.Body...)
	b = append(b, body[:]...)
	b = binary.LittleEndian.AppendUint32(b, f.Policy)
	b = append(b, byte(l.K), byte(l.M))
	b = binary.LittleEndian.AppendUint64(b, uint64(l.Size))
	b = binary.LittleEndian.AppendUint64(b, uint64(l.Chunk))
	return hashOf(b)
}

// appendName appends what a fragment is.
func appendName(b []byte, f Fragment) []byte {
	raw, _ := hex.DecodeString(f.Body) // valid was called
	b = append(b, raw...)
	b = binary.LittleEndian.AppendUint32(b, f.Policy)
	return append(b, byte(f.K), byte(f.M), byte(f.Index), 0)
}

func parseName(b []byte) Fragment {
	return Fragment{Body: hex.EncodeToString(b[:16]), Policy: binary.LittleEndian.Uint32(b[16:]), K: int(b[20]), M: int(b[21]), Index: int(b[22])}
}

// nameSize is the length of what appendName appends, bytes.
const nameSize = 24

// header gives the first bytes of a file.
func header(f Fragment) []byte {
	b := append(make([]byte, 0, headerSize), headMagic...)
	b = binary.LittleEndian.AppendUint32(b, formatVersion)
	b = binary.LittleEndian.AppendUint32(b, BlockSize)
	b = appendName(b, f)
	return binary.LittleEndian.AppendUint64(b, xxh3.Hash(b))
}

func parseHeader(b []byte) (Fragment, error) {
	switch {
	case len(b) < headerSize || string(b[:8]) != headMagic:
		return Fragment{}, fmt.Errorf("%w: it has no header", ErrCorrupt)
	case binary.LittleEndian.Uint64(b[headerSize-8:]) != xxh3.Hash(b[:headerSize-8]):
		return Fragment{}, fmt.Errorf("%w: header checksum mismatch", ErrCorrupt)
	case binary.LittleEndian.Uint32(b[8:]) != formatVersion || binary.LittleEndian.Uint32(b[12:]) != BlockSize:
		return Fragment{}, errors.New("the fragment has a format of a later release")
	}
	f := parseName(b[16:])
	return f, f.valid()
}

// footer gives the last bytes of a file: checksums, digests, trailer.
func footer(i Info, sums []byte) []byte {
	b := make([]byte, 0, len(sums)+len(i.Digests)*hashSize+trailerSize)
	b = append(b, sums...)
	for _, d := range i.Digests {
		b = append(b, d[:]...)
	}
	b = appendName(b, i.Fragment)
	b = append(b, i.Generation[:]...)
	b = append(b, i.BodyHash[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(i.Layout.Size))
	b = binary.LittleEndian.AppendUint64(b, uint64(i.Layout.Chunk))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(sums)))
	b = append(b, make([]byte, 16)...) // reserved
	b = binary.LittleEndian.AppendUint64(b, xxh3.Hash(b))
	return append(b, tailMagic...)
}

// parseTrailer reads the fixed end of a file. Its checksum covers the rest of the footer too, and is
// checked when that was read.
func parseTrailer(b []byte) (i Info, sums int64, err error) {
	if len(b) != trailerSize || string(b[trailerSize-8:]) != tailMagic {
		return i, 0, fmt.Errorf("%w: it has no end", ErrCorrupt)
	}
	i.Fragment = parseName(b)
	copy(i.Generation[:], b[nameSize:])
	copy(i.BodyHash[:], b[nameSize+16:])
	at := nameSize + 32
	i.Layout = Layout{i.K, i.M, int64(binary.LittleEndian.Uint64(b[at:])), int64(binary.LittleEndian.Uint64(b[at+8:]))}
	sums = int64(binary.LittleEndian.Uint64(b[at+16:]))
	if err := errors.Join(i.valid(), i.Layout.check()); err != nil {
		return i, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if i.IsCopy() && i.Layout != copyLayout(i.Layout.Size) || sums != i.Layout.blocks(i.Index)*sumSize {
		return i, 0, fmt.Errorf("%w: its numbers contradict each other", ErrCorrupt)
	}
	return i, sums, nil
}

// parseFooter reads the whole footer.
func parseFooter(b []byte, i *Info, sums int64) (table []byte, err error) {
	end := len(b) - 16
	if binary.LittleEndian.Uint64(b[end:]) != xxh3.Hash(b[:end]) {
		return nil, fmt.Errorf("%w: footer checksum mismatch", ErrCorrupt)
	}
	table = b[:sums]
	i.Digests = make([]Hash, i.K+i.M)
	for n := range i.Digests {
		copy(i.Digests[n][:], b[sums+int64(n)*hashSize:])
	}
	switch {
	case i.Generation != Generation(i.Fragment, i.Layout, i.BodyHash):
		return nil, fmt.Errorf("%w: the generation is of another body", ErrCorrupt)
	case i.Digest() != hashOf(table):
		return nil, fmt.Errorf("%w: the digest is of other checksums", ErrCorrupt)
	}
	return table, nil
}
