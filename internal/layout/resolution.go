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
