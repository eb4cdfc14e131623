package layout

import (
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// RollupDeltasPrefix has the deltas: late batches that no block has yet, several in one object.
const RollupDeltasPrefix = RollupPrefix + "deltas/"

// DeltaName is the parsed key of a delta.
type DeltaName struct {
	Shard shard.ID
	// From and To are the first and the last hour of its samples.
	From, To timegrid.Hour
	// SHA256 of its header.
	SHA256 identity.Digest
}

// RollupDeltas is the prefix of a shard's deltas; keys sort by first hour.
func RollupDeltas(s shard.ID) string { return RollupDeltasPrefix + "shard=" + s.String() + "/" }

// Key is the object key of this name.
func (n DeltaName) Key() string {
	return RollupDeltas(n.Shard) + n.From.String() + "_" + n.To.String() + "-" + n.SHA256.String() + ".lmdelta"
}

// ParseRollupDelta reads the key of a delta.
func ParseRollupDelta(key string) (DeltaName, error) {
	s, rest, err := cutShard(key, RollupDeltasPrefix)
	if err != nil {
		return DeltaName{}, notAKey(key, "deltas")
	}
	const hour = "2006-01-02T15"
	rest, ok := strings.CutSuffix(rest, ".lmdelta")
	if !ok || len(rest) < 2*len(hour)+2 {
		return DeltaName{}, notAKey(key, "deltas")
	}
	from, ferr := time.Parse(hour, rest[:len(hour)])
	to, terr := time.Parse(hour, rest[len(hour)+1:2*len(hour)+1])
	sum, derr := identity.ParseDigest(rest[2*len(hour)+2:])
	if ferr != nil || terr != nil || derr != nil {
		return DeltaName{}, notAKey(key, "deltas")
	}
	n := DeltaName{s, timegrid.HourStarting(from), timegrid.HourStarting(to), sum}
	if n.Key() != key || n.To < n.From {
		return DeltaName{}, notAKey(key, "deltas")
	}
	return n, nil
}
