// Package checksum has the checksum algorithms of S3.
package checksum

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/zeebo/xxh3"
)

// Algorithms are the names of the algorithms, as in x-amz-sdk-checksum-algorithm.
var Algorithms = []string{"CRC32", "CRC32C", "CRC64NVME", "MD5", "SHA1", "SHA256", "SHA512", "XXHASH128", "XXHASH3", "XXHASH64"}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	nvme       = crc64.MakeTable(0x9a6c9329ac4bc9b5)
)

// New makes a hash; nil for an unknown algorithm.
func New(algorithm string) hash.Hash {
	switch algorithm {
	case "CRC32":
		return crc32.NewIEEE()
	case "CRC32C":
		return crc32.New(castagnoli)
	case "CRC64NVME":
		return crc64.New(nvme)
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
func Header(algorithm string) string { return "x-amz-checksum-" + strings.ToLower(algorithm) }

// OfHeader gives the algorithm of a header name; "" when it carries none.
func OfHeader(name string) string {
	for _, a := range Algorithms {
		if strings.EqualFold(name, Header(a)) {
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
