package sigv4

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

func testAuth(p Payload) *Auth {
	return &Auth{Payload: p, key: []byte("key"), date: "20260101T000000Z", scope: "20260101/r/s3/aws4_request", signature: "seed"}
}

func encodeChunks(a *Auth, chunks ...[]byte) []byte {
	var b bytes.Buffer
	prev := a.signature
	for _, c := range append(chunks, nil) {
		sum := sha256.Sum256(c)
		prev = sign(a.key, []byte("AWS4-HMAC-SHA256-PAYLOAD\n"+a.date+"\n"+a.scope+"\n"+prev+"\n"+emptySHA256+"\n"+hex.EncodeToString(sum[:])))
		fmt.Fprintf(&b, "%x;chunk-signature=%s\r\n%s\r\n", len(c), prev, c)
	}
	return b.Bytes()
}

// FuzzChunks: a body that is accepted has the length that was announced, and a signed
// one is the body that was signed.
func FuzzChunks(f *testing.F) {
	body := []byte("hello, chunks")
	signed := encodeChunks(testAuth(StreamSigned), body)
	f.Add(signed, int64(len(body)), true)
	f.Add([]byte("d\r\nhello, chunks\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n"), int64(13), false)
	f.Add([]byte("ffffffffffffffff\r\n"), int64(1), false)
	f.Fuzz(func(t *testing.T, raw []byte, decoded int64, isSigned bool) {
		if decoded < 0 {
			return
		}
		a, names := testAuth(StreamUnsignedTrailer), []string{"x-amz-checksum-crc32"}
		if isSigned {
			a, names = testAuth(StreamSigned), nil
		}
		got, err := io.ReadAll(a.NewChunks(bytes.NewReader(raw), decoded, names))
		if err != nil {
			var e *s3err.Error
			if !errors.As(err, &e) {
				t.Fatalf("%v is no S3 error", err)
			}
			return
		}
		if int64(len(got)) != decoded {
			t.Fatalf("%d bytes, announced %d", len(got), decoded)
		}
		if isSigned && !bytes.Equal(got, body) && len(got) > 0 {
			t.Fatalf("%q was never signed", got)
		}
	})
}

func TestChunksRefuseEveryCutAndFlip(t *testing.T) {
	body := append(bytes.Repeat([]byte("x"), minChunk), "hello, chunks"...)
	raw := encodeChunks(testAuth(StreamSigned), body[:minChunk], body[minChunk:])
	read := func(b []byte) error {
		_, err := io.ReadAll(testAuth(StreamSigned).NewChunks(bytes.NewReader(b), int64(len(body)), nil))
		return err
	}
	if err := read(raw); err != nil {
		t.Fatal(err)
	}
	// The bytes of the first chunk are all alike: some of them stand for the others.
	inBody := func(i int) bool { return i > 200 && i < minChunk && i%997 != 0 }
	for i := range len(raw) - 2 { // without its last CRLF it is still whole
		if inBody(i) {
			continue
		}
		if read(raw[:i]) == nil {
			t.Errorf("cut to %d bytes it is accepted", i)
		}
	}
	for i := range raw {
		if inBody(i) {
			continue
		}
		b := bytes.Clone(raw)
		b[i] ^= 0x01
		if read(b) == nil {
			t.Errorf("with byte %d flipped it is accepted", i)
		}
	}
}

// A chunk that is smaller than 8 KiB must be the last.
func TestSmallChunksMustBeTheLast(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 2*minChunk)
	for _, c := range []struct {
		cut int
		ok  bool
	}{{minChunk, true}, {minChunk + 1, true}, {minChunk - 1, false}, {2*minChunk - 1, true}} {
		raw := encodeChunks(testAuth(StreamSigned), body[:c.cut], body[c.cut:])
		_, err := io.ReadAll(testAuth(StreamSigned).NewChunks(bytes.NewReader(raw), int64(len(body)), nil))
		if ok := err == nil; ok != c.ok || !ok && !errors.Is(err, s3err.InvalidChunkSize) {
			t.Errorf("a first chunk of %d bytes: %v", c.cut, err)
		}
	}
}
