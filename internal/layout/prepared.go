package layout

import (
	"strings"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	// PreparedPrefix has what was accepted before a region takes part in the identity linearizer, prepared to be folded.
	PreparedPrefix = "prepared/v1/"
	// PreparedStateKey says how far the preparation of the bucket's region is.
	PreparedStateKey = PreparedPrefix + "state.json"
)

// PreparedOf begins the keys of what is prepared of a region, whose name is of a-z, 0-9 and "-".
func PreparedOf(region string) string { return PreparedPrefix + "region=" + region + "/" }

// PreparedHead is the key of the head of what is prepared of a boot of a region. The parts that it names are those of folds.
func PreparedHead(region string, b identity.Boot) string {
	return PreparedOf(region) + bootDir(b) + foldHead
}

// ParsePreparedHead reads what PreparedHead writes.
func ParsePreparedHead(key string) (region string, _ identity.Boot, _ error) {
	rest, ok := strings.CutPrefix(key, PreparedPrefix+"region=")
	region, rest, ok2 := strings.Cut(rest, "/")
	b, err := ParseFoldHead(FoldsPrefix + rest)
	if !ok || !ok2 || err != nil || PreparedHead(region, b) != key {
		return "", identity.Boot{}, notAKey(key, "prepared head")
	}
	return region, b, nil
}
