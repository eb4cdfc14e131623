package seal

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxID is the length of the longest id of a key version, bytes.
const MaxID = 32

// CheckSize is the length of a key's check value, bytes.
const CheckSize = 8

// Version names the version of a key. Check is derived from its secret, so that another secret under the same id is
// another version, and is never taken for damage of what the first one has sealed.
type Version struct {
	ID    string
	Check [CheckSize]byte
}

// String gives the id and the check value.
func (v Version) String() string {
	if v == (Version{}) {
		return "none"
	}
	return v.ID + "/" + v.CheckText()
}

// CheckText is the check value in hexadecimal; empty for no version.
func (v Version) CheckText() string {
	if v == (Version{}) {
		return ""
	}
	return hex.EncodeToString(v.Check[:])
}

// Key is a version of the store's key. Printing one shows its version only.
type Key struct {
	version Version
	secret  [keySize]byte
}

// NewKey makes a key of a secret of 32 bytes.
func NewKey(id string, secret []byte) (*Key, error) {
	if !ValidID(id) {
		return nil, fmt.Errorf("key %q: an id has 1 to %d letters, digits, dots, dashes and underlines", id, MaxID)
	}
	if len(secret) != keySize {
		return nil, fmt.Errorf("key %q: the secret has %d bytes, want %d", id, len(secret), keySize)
	}
	k := &Key{version: Version{ID: id}}
	copy(k.secret[:], secret)
	check, err := hkdf.Key(sha256.New, secret, nil, "lightmetrics key check 1", CheckSize)
	if err != nil {
		return nil, fmt.Errorf("key %q: %w", id, err)
	}
	copy(k.version.Check[:], check)
	return k, nil
}

// ValidID reports whether a text can be the id of a key version.
func ValidID(id string) bool {
	return id != "" && len(id) <= MaxID && !strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_'
	})
}

// ParseSecret reads a secret as it stands in files: 64 hexadecimal digits, or the base64 of 32 bytes. The error never has
// a part of the text.
func ParseSecret(text string) ([]byte, error) {
	text = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
	if len(text) == hex.EncodedLen(keySize) {
		if b, err := hex.DecodeString(text); err == nil {
			return b, nil
		}
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding} {
		if b, err := enc.DecodeString(text); err == nil && len(b) == keySize {
			return b, nil
		}
	}
	return nil, errors.New("no secret of 32 bytes, in 64 hexadecimal digits or in base64")
}

// Version gives the name of the key.
func (k *Key) Version() Version { return k.version }

// String implements fmt.Stringer, without the secret.
func (k *Key) String() string { return k.version.String() }

// GoString implements fmt.GoStringer, without the secret.
func (k *Key) GoString() string { return k.String() }

// MissingError says that bytes are sealed with a key that was not given.
type MissingError struct {
	Want Version
	// Other: a key of this id was given, but with another secret.
	Other bool
}

func (e *MissingError) Error() string {
	if e.Other {
		return fmt.Sprintf("the key %s is needed; the one that was given as %q has another secret", e.Want, e.Want.ID)
	}
	return fmt.Sprintf("the key %s is needed, and was not given", e.Want)
}

// Keys are the key versions that a store was given. They never change. A nil *Keys has none.
type Keys struct {
	byID    map[string]*Key
	current *Key
}

// NewKeys gives keys of which the one with the id current seals new bodies; empty: new bodies are not sealed.
func NewKeys(current string, keys ...*Key) (*Keys, error) {
	k := &Keys{byID: map[string]*Key{}}
	for _, key := range keys {
		if k.byID[key.version.ID] != nil {
			return nil, fmt.Errorf("key %q is there twice", key.version.ID)
		}
		k.byID[key.version.ID] = key
	}
	if k.current = k.byID[current]; k.current == nil && current != "" {
		return nil, fmt.Errorf("the current key %q is not among the keys", current)
	}
	return k, nil
}

// Current gives the key that seals new bodies; nil: they are not sealed.
func (k *Keys) Current() *Key {
	if k == nil {
		return nil
	}
	return k.current
}

// Find gives the key of a version. The error is a *MissingError.
func (k *Keys) Find(v Version) (*Key, error) {
	if k == nil || k.byID[v.ID] == nil {
		return nil, &MissingError{Want: v}
	}
	if key := k.byID[v.ID]; key.version == v {
		return key, nil
	}
	return nil, &MissingError{Want: v, Other: true}
}

// Versions gives the versions of all keys, by id.
func (k *Keys) Versions() (list []Version) {
	if k == nil {
		return nil
	}
	for _, key := range k.byID {
		list = append(list, key.version)
	}
	slices.SortFunc(list, func(a, b Version) int { return strings.Compare(a.ID, b.ID) })
	return list
}
