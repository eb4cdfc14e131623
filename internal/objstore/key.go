package objstore

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxKeyBytes is the longest key, the store's own prefix included.
const MaxKeyBytes = 1024

// groupEnd is the greatest UTF-8 sequence: appended to a group, it sorts after every key of
// the group. No key may contain it.
const groupEnd = "\U0010FFFF"

// CheckKey returns ErrInvalid for keys that S3 stores treat differently: empty
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
	// Some stores and proxies clean such paths, and would write under another key than the one that was
	// asked for.
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
	// The cheap test first: keys are checked on every request, and hardly any has a dot before a slash.
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

// Family is the first path element of a key. There are few, so it serves as a metric label.
func Family(key string) string {
	family, _, _ := strings.Cut(key, "/")
	return family
}

// Group is the common prefix that a listing with prefix and delimiter reports key under; false when key is listed itself.
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
// startAfter lies in, if any. A group is listed once, so a page that ended with it must not begin with it again.
func SkipGroup(startAfter, prefix, delimiter string) string {
	if g, ok := Group(startAfter, prefix, delimiter); ok {
		return g + groupEnd
	}
	return startAfter
}
