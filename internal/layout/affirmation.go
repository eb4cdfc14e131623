package layout

import (
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// AffirmedPrefix has the affirmations: later claims of the identity linearizer that a region's manifests stand for.
const AffirmedPrefix = "affirmed/v1/"

// Affirmations is the prefix of all affirmations of an identity; it ends in a slash. They are in the order of their stamps.
func Affirmations(id identity.Batch) string {
	return string(appendAffirmations(make([]byte, 0, 320), id))
}

func appendAffirmations(b []byte, id identity.Batch) []byte {
	b = appendBootDir(append(b, AffirmedPrefix...), id.BootOf())
	return append(appendSeqName(b, id.SeqStart, id.SeqEnd), '/')
}

// Affirmation is the key of the record that the manifest of an identity stands for the claim of the stamp.
func Affirmation(id identity.Batch, s identity.Stamp) string {
	b := appendAffirmations(make([]byte, 0, 320), id)
	return string(append(appendSeqName(b, s.Epoch, s.Fence), ".json"...))
}

// ParseAffirmation reads what Affirmation writes.
func ParseAffirmation(key string) (identity.Batch, identity.Stamp, error) {
	rest, ok := strings.CutPrefix(key, AffirmedPrefix)
	i := strings.LastIndexByte(rest, '/')
	name, ok2 := strings.CutSuffix(rest[max(i, 0):], ".json")
	epoch, fence, ok3 := strings.Cut(strings.TrimPrefix(name, "/"), "-")
	if !ok || !ok2 || !ok3 || i < 0 {
		return identity.Batch{}, identity.Stamp{}, notAKey(key, "affirmed")
	}
	id, err := parseIdentityPath(rest[:i] + ".json")
	var s identity.Stamp
	if err == nil {
		s.Epoch, err = strconv.ParseUint(epoch, 10, 64)
	}
	if err == nil {
		s.Fence, err = strconv.ParseUint(fence, 10, 64)
	}
	if err != nil || Affirmation(id, s) != key {
		return identity.Batch{}, identity.Stamp{}, notAKey(key, "affirmed")
	}
	return id, s, nil
}
