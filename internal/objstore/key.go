package objstore

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxKeyBytes is the longest key, the store's own prefix included.
const MaxKeyBytes = 1024

// groupEnd is the greatest UTF-8 sequence: it sorts behind every key of a group.
// No key may hold it.
const groupEnd = "\U0010FFFF"

// CheckKey refuses with ErrInvalid the keys that S3 stores disagree about: empty
// or over 1,024 bytes, not UTF-8, control characters, U+10FFFF, a leading or
// doubled slash, and "." or ".." between slashes.
func CheckKey(key string) error {
	reason := ""
	switch {
	case key == "":
		reason = "is empty"
	case len(key) > MaxKeyBytes:
		reason = fmt.Sprintf("has %d bytes, at most %d", len(key), MaxKeyBytes)
	case !utf8.ValidString(key):
		reason = "is not UTF-8"
	case strings.Contains(key, groupEnd):
		reason = "holds U+10FFFF"
	case key[0] == '/' || strings.Contains(key, "//"):
		reason = "has an empty path element"
	case hasDots(key):
		reason = "has a path element of dots"
	default:
		for i := range len(key) {
			if c := key[i]; c < 0x20 || c == 0x7f {
				reason = fmt.Sprintf("holds the control character %#x", c)
				break
			}
		}
	}
	if reason == "" {
		return nil
	}
	return fmt.Errorf("%w: key %s", ErrInvalid, reason)
}

func hasDots(key string) bool {
	if !strings.Contains(key, "./") && !strings.HasSuffix(key, ".") {
		return false
	}
	for e := range strings.SplitSeq(key, "/") {
		if e == "." || e == ".." {
			return true
		}
	}
	return false
}

// Family is the first path element of a key: the bounded label that requests are counted by.
func Family(key string) string {
	family, _, _ := strings.Cut(key, "/")
	return family
}

// Group is the common prefix that key falls into under prefix and delimiter; false when it stands alone.
func Group(key, prefix, delimiter string) (string, bool) {
	if delimiter == "" || !strings.HasPrefix(key, prefix) {
		return "", false
	}
	i := strings.Index(key[len(prefix):], delimiter)
	if i < 0 {
		return "", false
	}
	return key[:len(prefix)+i+len(delimiter)], true
}

// SkipGroup is the key to start after so that a listing skips the group that
// startAfter lies in, if any: a common prefix is listed once, before its keys.
func SkipGroup(startAfter, prefix, delimiter string) string {
	if g, ok := Group(startAfter, prefix, delimiter); ok {
		return g + groupEnd
	}
	return startAfter
}
