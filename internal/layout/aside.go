package layout

import (
	"encoding/hex"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

const (
	// RollupAsidePrefix has the records of agents that are set aside for an hour: they are not rolled up.
	RollupAsidePrefix = RollupPrefix + "aside/"
	// RollupAttemptsPrefix has the records of large hours that workers have started.
	RollupAttemptsPrefix = RollupPrefix + "attempts/"
)

// RollupAside is the key of the record that an agent is set aside for a shard's hour.
func RollupAside(h timegrid.Hour, s shard.ID, agent string) string {
	return RollupAsides(s) + sampleHour(h) + "agent=" + hex.EncodeToString([]byte(agent)) + ".json"
}

// RollupAsides is the prefix of a shard's records of agents set aside; keys sort by hour.
func RollupAsides(s shard.ID) string { return RollupAsidePrefix + "shard=" + s.String() + "/" }

// ParseRollupAside reads a key that RollupAside made.
func ParseRollupAside(key string) (timegrid.Hour, shard.ID, string, error) {
	s, rest, err := cutShard(key, RollupAsidePrefix)
	if err != nil {
		return 0, 0, "", notAKey(key, "aside")
	}
	h, rest, err := cutHour(rest)
	name, isJSON := strings.CutSuffix(rest, ".json")
	digits, isAgent := strings.CutPrefix(name, "agent=")
	agent, herr := hex.DecodeString(digits)
	if err != nil || herr != nil || !isJSON || !isAgent || RollupAside(h, s, string(agent)) != key {
		return 0, 0, "", notAKey(key, "aside")
	}
	return h, s, string(agent), nil
}

// RollupAttempt is the key of the record that a worker has started a shard's hour.
func RollupAttempt(h timegrid.Hour, s shard.ID) string {
	return RollupAttemptsPrefix + "shard=" + s.String() + "/" + strings.TrimSuffix(sampleHour(h), "/") + ".json"
}
