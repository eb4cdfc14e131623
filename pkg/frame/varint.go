package frame

import (
	"encoding/binary"
	"math/bits"
)

func zigzag(v int64) uint64   { return uint64(v<<1) ^ uint64(v>>63) }
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

func appendZigzag(dst []byte, v int64) []byte { return binary.AppendUvarint(dst, zigzag(v)) }

// uvarintLen is the number of bytes of u as a varint.
func uvarintLen(u uint64) int { return (bits.Len64(u|1) + 6) / 7 }

// uvarint reads a varint at b[pos:]; the new position is negative if there is none. Most varints have one byte, which needs no call.
func uvarint(b []byte, pos int) (uint64, int) {
	if pos < len(b) && b[pos] < 0x80 {
		return uint64(b[pos]), pos + 1
	}
	u, n := binary.Uvarint(b[min(pos, len(b)):])
	if n <= 0 {
		return 0, -1
	}
	return u, pos + n
}
