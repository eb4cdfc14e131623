package s3api

import (
	"errors"
	"net/http"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/sigv4"
)

// A request has one checksum, of a known algorithm, in a header or in the trailer that it announces. What it says
// twice, or about another one, is refused, and the answer does not depend on the order in which headers are read.
func TestDigestTakesOneChecksum(t *testing.T) {
	const crc, sum = "AAAAAA==", "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg="
	const many, unknown = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
		"The algorithm type you specified in x-amz-checksum- header is invalid."
	for name, c := range map[string]struct {
		h         http.Header
		payload   sigv4.Payload
		algorithm string
		message   string
	}{
		"none":                    {h: http.Header{}},
		"about checksums":         {h: http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}, "X-Amz-Checksum-Algorithm": {"CRC32"}, "X-Amz-Checksum-Type": {"FULL_OBJECT"}}},
		"a header":                {h: http.Header{"X-Amz-Checksum-Crc32": {crc}}, algorithm: "CRC32"},
		"a header and its name":   {h: http.Header{"X-Amz-Checksum-Sha256": {sum}, "X-Amz-Sdk-Checksum-Algorithm": {"sha256"}}, algorithm: "SHA256"},
		"two headers":             {h: http.Header{"X-Amz-Checksum-Crc32": {crc}, "X-Amz-Checksum-Sha256": {sum}}, message: many},
		"two values":              {h: http.Header{"X-Amz-Checksum-Crc32": {crc, crc}}, message: "Value for x-amz-checksum-crc32 header is invalid."},
		"unknown":                 {h: http.Header{"X-Amz-Checksum-Crc16": {crc}}, message: unknown},
		"known and unknown":       {h: http.Header{"X-Amz-Checksum-Crc16": {crc}, "X-Amz-Checksum-Crc32": {crc}}, message: unknown},
		"two known and unknown":   {h: http.Header{"X-Amz-Checksum-Crc16": {crc}, "X-Amz-Checksum-Crc32": {crc}, "X-Amz-Checksum-Crc32c": {crc}}, message: many},
		"not of the algorithm":    {h: http.Header{"X-Amz-Checksum-Sha256": {crc}}, message: "Value for x-amz-checksum-sha256 header is invalid."},
		"a trailer":               {h: http.Header{"X-Amz-Trailer": {"x-amz-checksum-crc32"}}, payload: sigv4.StreamUnsignedTrailer, algorithm: "CRC32"},
		"a trailer, but no room":  {h: http.Header{"X-Amz-Trailer": {"x-amz-checksum-crc32"}}, message: "x-amz-trailer needs a payload with a trailer."},
		"two trailers":            {h: http.Header{"X-Amz-Trailer": {"x-amz-checksum-crc32, x-amz-checksum-sha256"}}, payload: sigv4.StreamSignedTrailer, message: many},
		"a header and a trailer":  {h: http.Header{"X-Amz-Checksum-Crc32": {crc}, "X-Amz-Trailer": {"x-amz-checksum-crc32"}}, payload: sigv4.StreamSignedTrailer, message: many},
		"an unknown trailer":      {h: http.Header{"X-Amz-Trailer": {"x-amz-checksum-crc16"}}, payload: sigv4.StreamSignedTrailer, message: unknown},
		"another name":            {h: http.Header{"X-Amz-Checksum-Crc32": {crc}, "X-Amz-Sdk-Checksum-Algorithm": {"CRC32C"}}, message: "Value for x-amz-sdk-checksum-algorithm header is invalid."},
		"a name without checksum": {h: http.Header{"X-Amz-Sdk-Checksum-Algorithm": {"CRC32"}}, message: "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found."},
		"composite":               {h: http.Header{"X-Amz-Checksum-Crc32": {crc}, "X-Amz-Checksum-Type": {"COMPOSITE"}}, message: "Only the checksum type FULL_OBJECT is possible here."},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 { // the order of a map differs from time to time
				var d digest
				err := d.checksum(c.h, c.payload)
				var se *s3err.Error
				switch {
				case c.message == "" && (err != nil || d.algorithm != c.algorithm):
					t.Fatalf("algorithm %q, %v", d.algorithm, err)
				case c.message != "" && (!errors.As(err, &se) || se.Message != c.message):
					t.Fatalf("got %v, want %q", err, c.message)
				}
			}
		})
	}
}
