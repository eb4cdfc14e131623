package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Digest is the SHA-256 of a frame's exact bytes.
type Digest [sha256.Size]byte

// Sum hashes b.
func Sum(b []byte) Digest { return sha256.Sum256(b) }

// ParseDigest reads 64 lower-case hex digits.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if len(s) != 2*len(d) {
		return d, fmt.Errorf("%w: digest has %d characters, want %d", ErrInvalid, len(s), 2*len(d))
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return d, fmt.Errorf("%w: digest has character %q", ErrInvalid, c)
		}
	}
	_, err := hex.Decode(d[:], []byte(s))
	return d, err
}

// DigestFromBytes reads 32 raw bytes.
func DigestFromBytes(b []byte) (Digest, error) {
	var d Digest
	if len(b) != len(d) {
		return d, fmt.Errorf("%w: digest has %d bytes, want %d", ErrInvalid, len(b), len(d))
	}
	copy(d[:], b)
	return d, nil
}

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// IsZero reports whether d is the zero value, which stands for "no digest".
func (d Digest) IsZero() bool { return d == Digest{} }

// MarshalText writes lower-case hex.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads lower-case hex.
func (d *Digest) UnmarshalText(b []byte) error {
	v, err := ParseDigest(string(b))
	if err == nil {
		*d = v
	}
	return err
}
