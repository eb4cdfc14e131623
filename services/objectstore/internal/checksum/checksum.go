// Package checksum has the checksum algorithms of S3.
package checksum

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"hash/crc32"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/minio/crc64nvme"
	"github.com/zeebo/xxh3"
)

// Algorithms are the names of the algorithms, as in x-amz-sdk-checksum-algorithm.
var Algorithms = []string{"CRC32", "CRC32C", "CRC64NVME", "MD5", "SHA1", "SHA256", "SHA512", "XXHASH128", "XXHASH3", "XXHASH64"}

// Default is the algorithm of objects whose clients give no checksum, as on AWS. Every body has it computed, so it has an
// implementation of its own: that of the standard library takes nearly half as long as MD5, this one less than a fiftieth.
const Default = "CRC64NVME"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// New makes a hash; nil for an unknown algorithm.
func New(algorithm string) hash.Hash {
	switch algorithm {
	case "CRC32":
		return crc32.NewIEEE()
	case "CRC32C":
		return crc32.New(castagnoli)
	case Default:
		return crc64nvme.New()
	case "SHA1":
		return sha1.New()
	case "SHA256":
		return sha256.New()
	case "SHA512":
		return sha512.New()
	case "MD5":
		return md5.New()
	case "XXHASH64":
		return xxhash.New()
	case "XXHASH3":
		return xxh3.New()
	case "XXHASH128":
		return xxh128{xxh3.New()}
	}
	return nil
}

// Append appends the checksum of a body; the algorithm must be known. Of the default one it allocates nothing.
func Append(b []byte, algorithm string, body []byte) []byte {
	if algorithm == Default {
		return binary.BigEndian.AppendUint64(b, crc64nvme.Checksum(body))
	}
	h := New(algorithm)
	h.Write(body)
	return h.Sum(b)
}

// Combines reports whether the checksum of a whole follows from those of its parts.
func Combines(algorithm string) bool {
	return algorithm == "CRC32" || algorithm == "CRC32C" || algorithm == "CRC64NVME"
}

// Combine gives the checksum of a text of those of its two parts, the second of which has size bytes. The algorithm must
// be one that combines.
func Combine(algorithm string, first, second []byte, size int64) []byte {
	var poly uint64
	switch algorithm {
	case "CRC32":
		poly = crc32.IEEE
	case "CRC32C":
		poly = crc32.Castagnoli
	case "CRC64NVME":
		poly = 0x9a6c9329ac4bc9b5
	default:
		return nil
	}
	number := func(b []byte) (n uint64) {
		for _, c := range b {
			n = n<<8 | uint64(c)
		}
		return n
	}
	n := advance(poly, 8*len(first), number(first), size) ^ number(second)
	out := make([]byte, len(first))
	for i := len(out) - 1; i >= 0; i-- {
		out[i] = byte(n)
		n >>= 8
	}
	return out
}

// Combine32C is Combine of two CRC32C as numbers.
func Combine32C(first, second uint32, size int64) uint32 {
	return uint32(advance(crc32.Castagnoli, 32, uint64(first), size)) ^ second
}

// Next32C combines many CRC32C with those of texts of one size: in nanoseconds each, where Combine takes a microsecond.
// Moving a CRC is linear in its bits, so a table for each of its bytes has all that there is to compute.
type Next32C [4][256]uint32

// NewNext32C is for second texts of size bytes.
func NewNext32C(size int64) *Next32C {
	n := &Next32C{}
	for i := range n {
		for bit := range 8 {
			moved := Combine32C(1<<(8*i+bit), 0, size)
			for b := range 1 << bit { // those with lower bits only are done
				n[i][b|1<<bit] = n[i][b] ^ moved
			}
		}
	}
	return n
}

// Combine gives the checksum of two texts.
func (n *Next32C) Combine(first, second uint32) uint32 {
	return n[0][byte(first)] ^ n[1][byte(first>>8)] ^ n[2][byte(first>>16)] ^ n[3][first>>24] ^ second
}

// advance moves a reflected CRC over size zero bytes: it multiplies by x to the power of their bits, modulo the polynomial.
func advance(poly uint64, bits int, crc uint64, size int64) uint64 {
	one := uint64(1) << (bits - 1) // reflected: the highest bit is the coefficient of x^0
	times := func(a, b uint64) (product uint64) {
		for m := one; a != 0; m >>= 1 {
			if a&m != 0 {
				product ^= b
				a ^= m
			}
			b = b>>1 ^ poly*(b&1)
		}
		return product
	}
	for power := one >> 8; size > 0; size >>= 1 {
		if size&1 != 0 {
			crc = times(power, crc)
		}
		power = times(power, power)
	}
	return crc
}

// xxh128 gives the 128 bits of a hash that has 64 by itself.
type xxh128 struct{ *xxh3.Hasher }

// Size implements hash.Hash.
func (xxh128) Size() int { return 16 }

// Sum implements hash.Hash.
func (h xxh128) Sum(b []byte) []byte {
	sum := h.Sum128().Bytes()
	return append(b, sum[:]...)
}

// Header gives the header that carries an algorithm's value, lower case.
func Header(algorithm string) string { return prefix + strings.ToLower(algorithm) }

const prefix = "x-amz-checksum-"

// OfHeader gives the algorithm of a header name; "" when it carries none.
func OfHeader(name string) string {
	for _, a := range Algorithms {
		// Compared in two pieces, since this is asked for every header of a checksum: Header would allocate.
		if n := len(prefix); len(name) > n && strings.EqualFold(name[:n], prefix) && strings.EqualFold(name[n:], a) {
			return a
		}
	}
	return ""
}

// Valid says whether a value has the form that the algorithm gives.
func Valid(algorithm, value string) bool {
	h := New(algorithm)
	b, err := base64.StdEncoding.DecodeString(value)
	return h != nil && err == nil && len(b) == h.Size()
}
