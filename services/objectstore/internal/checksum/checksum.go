// Package checksum has the checksum algorithms of S3.
package checksum

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"strings"
)

// Algorithms are the names of the algorithms, as in x-amz-sdk-checksum-algorithm.
var Algorithms = []string{"CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"}

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
	}
	return nil
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
