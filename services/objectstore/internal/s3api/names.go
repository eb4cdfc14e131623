package s3api

import (
	"net/netip"
	"strings"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

const maxKeyBytes = 1024

// validKey checks a key, whether it comes from the path, a copy source or a list of deletions.
func validKey(key string) error {
	switch {
	case key == "":
		return s3err.InvalidArgument.With("Object key is empty.")
	case len(key) > maxKeyBytes:
		return s3err.KeyTooLong
	case !utf8.ValidString(key) || strings.ContainsRune(key, 0):
		return s3err.InvalidURI.With("Object keys are UTF-8 without NUL.")
	}
	return nil
}

// validBucket follows the rules of AWS for general purpose buckets.
func validBucket(name string) bool {
	if len(name) < 3 || len(name) > 63 || strings.Contains(name, "..") {
		return false
	}
	for i := range len(name) {
		c := name[i]
		alnum := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !alnum && (i == 0 || i == len(name)-1 || c != '-' && c != '.') {
			return false
		}
	}
	// A name like an IP address could not be told from one in a host header. Most names are seen at once to be none.
	if last := name[len(name)-1]; last < '0' || last > '9' {
		return true
	}
	_, err := netip.ParseAddr(name)
	return err != nil
}

// ValidBucket reports whether a bucket may have this name.
func ValidBucket(name string) bool { return validBucket(name) }
