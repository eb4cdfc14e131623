package layout

import (
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Prefixes of what was decided about conflicts.
const (
	ResolutionPrefix = "resolution/v1/"
	// ResolutionLogPrefix has the decisions, by their numbers.
	ResolutionLogPrefix = ResolutionPrefix + "log/"
	// SettledPrefix has what agents did about parked frames.
	SettledPrefix = ResolutionPrefix + "settled/"
	// ParkedPrefix has where agents say that they have parked frames.
	ParkedPrefix = ResolutionPrefix + "parked/"
)

// Resolution is the key of decision number n, which is at least 1.
func Resolution(n uint64) string {
	return string(append(appendSeq([]byte(ResolutionLogPrefix), n), ".json"...))
}

// ParseResolution reads the key of a decision.
func ParseResolution(key string) (uint64, error) {
	name, ok := strings.CutPrefix(strings.TrimSuffix(key, ".json"), ResolutionLogPrefix)
	n, err := strconv.ParseUint(name, 10, 64)
	if !ok || err != nil || n == 0 || Resolution(n) != key {
		return 0, notAKey(key, "resolution")
	}
	return n, nil
}

// Settled is the key of the record of what an agent did about its parked frame.
func Settled(id identity.Batch, submitted identity.Digest) string {
	return SettledPrefix + strings.TrimPrefix(Quarantine(id, submitted), QuarantinePrefix)
}

// ParseSettled reads what Settled writes.
func ParseSettled(key string) (identity.Batch, identity.Digest, error) {
	rest, ok := strings.CutPrefix(key, SettledPrefix)
	id, d, err := ParseQuarantine(QuarantinePrefix + rest)
	if !ok || err != nil {
		return identity.Batch{}, identity.Digest{}, notAKey(key, "settled")
	}
	return id, d, nil
}

// Parked is the key of the record of where an agent has a parked frame.
func Parked(id identity.Batch, submitted identity.Digest) string {
	return ParkedPrefix + strings.TrimPrefix(Quarantine(id, submitted), QuarantinePrefix)
}

// ParseParked reads what Parked writes.
func ParseParked(key string) (identity.Batch, identity.Digest, error) {
	rest, ok := strings.CutPrefix(key, ParkedPrefix)
	id, d, err := ParseQuarantine(QuarantinePrefix + rest)
	if !ok || err != nil {
		return identity.Batch{}, identity.Digest{}, notAKey(key, "parked")
	}
	return id, d, nil
}

// ClashesOf is the prefix of the records of other spools that used a boot id; it ends in a slash.
func ClashesOf(b identity.Boot) string { return ClashPrefix + bootDir(b) }

// Clash is the key of the record of a spool that used a boot id of another one. Spool ids may have any bytes, so that
// the key has their hash.
func Clash(b identity.Boot, spoolID string) string {
	return ClashesOf(b) + identity.Sum([]byte(spoolID)).String() + ".json"
}

// ParseClash reads the boot and the hash of the spool id from what Clash writes.
func ParseClash(key string) (identity.Boot, identity.Digest, error) {
	rest, ok := strings.CutPrefix(key, ClashPrefix)
	b, name, err := parseBootDir(rest)
	if !ok || err != nil {
		return identity.Boot{}, identity.Digest{}, notAKey(key, "boot-clash")
	}
	d, err := identity.ParseDigest(strings.TrimSuffix(name, ".json"))
	if err != nil || ClashesOf(b)+d.String()+".json" != key {
		return identity.Boot{}, identity.Digest{}, notAKey(key, "boot-clash")
	}
	return b, d, nil
}
