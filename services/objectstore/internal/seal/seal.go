// Package seal encrypts the bodies of objects in chunks, so that a range can be read without the rest, and so that bytes
// that were changed, cut off, put in another order or taken from another body are found.
//
// The construction is STREAM (Hoang, Reyhanitabar, Rogaway, Vizár 2015) over AES-256-GCM, as age and Tink's
// AES-GCM-HKDF streaming use it. Every body has a key of its own, derived with HKDF-SHA256 from the secret of a key
// version, a random salt of 32 bytes, and the name of the body as info. A chunk's nonce is its number and whether it is
// the last one. No nonce is used twice with a key: a body never changes.
//
// Nothing here knows where salts are kept; the engine keeps them in its records.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// Chunk is the length, bytes, of a sealed chunk; the last one of a body may be shorter. A block of the engine's
	// checksums has a whole number of them.
	Chunk = 64 << 10
	// Tag is what sealing adds to a chunk, bytes.
	Tag = 16
	// PlainChunk is how many bytes of a body a chunk holds.
	PlainChunk = Chunk - Tag
	// SaltSize is the length of a salt, bytes.
	SaltSize = 32

	nonceSize = 12
	keySize   = 32
)

// ErrForged says that sealed bytes are not what was sealed under this name and key.
var ErrForged = errors.New("sealed bytes are not authentic")

// Name is what a body belongs to. Bytes that were sealed under one name do not open under another.
type Name struct {
	Bucket, Key string
	Body        string // id of a body outside the log; empty: the body is in the record
}

// info is unambiguous: each text has its length in front of it.
func (n Name) info() string {
	b := []byte("lightmetrics body 1\x00")
	for _, s := range [...]string{n.Bucket, n.Key, n.Body} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return string(b)
}

// Salt makes a body's key one that no other body has.
type Salt [SaltSize]byte

// NewSalt gives a random salt.
func NewSalt() (s Salt, err error) {
	_, err = rand.Read(s[:])
	return s, err
}

// Body seals and opens the chunks of one body. It is safe for concurrent use.
type Body struct{ aead cipher.AEAD }

// Body derives the key of a body.
func (k *Key) Body(salt Salt, n Name) (*Body, error) {
	key, err := hkdf.Key(sha256.New, k.secret[:], salt[:], n.info(), keySize)
	if err != nil {
		return nil, fmt.Errorf("derive the key of a body: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("derive the key of a body: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("derive the key of a body: %w", err)
	}
	return &Body{aead}, nil
}

// nonceOf has the chunk's number as 11 bytes, big-endian, and 1 for the last chunk of a body.
func nonceOf(chunk uint64, last bool) (n [nonceSize]byte) {
	binary.BigEndian.PutUint64(n[3:], chunk)
	if last {
		n[nonceSize-1] = 1
	}
	return n
}

// Sealed gives the length of a body of n bytes when it is sealed. An empty body has one chunk.
func Sealed(n int64) int64 { return n + Tag*max(1, (n+PlainChunk-1)/PlainChunk) }

// Plain gives the length of a body whose sealed length is n; false when no body has it.
func Plain(n int64) (int64, bool) {
	chunks := (n + Chunk - 1) / Chunk
	plain := n - Tag*chunks
	return plain, n >= Tag && Sealed(plain) == n
}

// Offset is where byte n of a body is in its sealed form.
func Offset(n int64) int64 { return n/PlainChunk*Chunk + n%PlainChunk }

// SealInPlace seals n bytes, which lie in buf as Offset says, so that each chunk has room for its tag; it gives the part
// of buf that is sealed. first is the number of the first chunk, and last says that the body ends with these bytes.
// Unless it does, n must be a multiple of PlainChunk.
func (b *Body) SealInPlace(buf []byte, n int, first uint64, last bool) []byte {
	if !last && n%PlainChunk != 0 {
		panic("seal: a short chunk that is not the last one") // it could not be opened again
	}
	at := 0
	for ; ; first++ {
		take := min(n, PlainChunk)
		n -= take
		nonce := nonceOf(first, last && n == 0)
		b.aead.Seal(buf[at:at:at+take+Tag], nonce[:], buf[at:at+take], nil)
		at += take + Tag
		if n == 0 {
			return buf[:at]
		}
	}
}

// OpenInPlace opens consecutive chunks, of which first is the number of the first one. Byte n behind the first is then at
// Offset(n) of buf. last says that the body ends with them. After ErrForged nothing in buf may be used.
func (b *Body) OpenInPlace(buf []byte, first uint64, last bool) error {
	for at := 0; ; first++ {
		end := min(at+Chunk, len(buf))
		nonce := nonceOf(first, last && end == len(buf))
		if _, err := b.aead.Open(buf[at:at], nonce[:], buf[at:end], nil); err != nil {
			return ErrForged
		}
		if at = end; at == len(buf) {
			return nil
		}
	}
}

// SealWhole appends the sealed form of a body to dst.
func (b *Body) SealWhole(dst, body []byte) []byte {
	for chunk := uint64(0); ; chunk++ {
		take := min(len(body), PlainChunk)
		nonce := nonceOf(chunk, take == len(body))
		dst = b.aead.Seal(dst, nonce[:], body[:take], nil)
		if body = body[take:]; len(body) == 0 {
			return dst
		}
	}
}
