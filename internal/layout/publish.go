package layout

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ReferencesKey is the object with the present epoch of the reference sets.
const ReferencesKey = "gc/v1/references.json"

// RollupChunks is the prefix of the chunks of a resolution; it ends in a slash.
func RollupChunks(res timegrid.Resolution) string {
	return RollupPrefix + "window=" + res.String() + "/"
}

// RollupChunksHour is the prefix of the chunks of a resolution's hour; it ends in a slash.
func RollupChunksHour(res timegrid.Resolution, h timegrid.Hour) string {
	return RollupChunks(res) + sampleHour(h)
}

// RollupIndexesHour is the prefix of the indexes of an hour; it ends in a slash.
func RollupIndexesHour(h timegrid.Hour) string { return IndexPrefix + sampleHour(h) }

// RollupObjectName is the parsed key of a chunk or of an index.
type RollupObjectName struct {
	Index      bool
	Resolution timegrid.Resolution // of a chunk
	Hour       timegrid.Hour
	// MetricDir of a chunk, as in the key.
	MetricDir  string
	SHA256     identity.Digest
	Generation uint32
}

// Key is the object key of this name.
func (n RollupObjectName) Key() string {
	if n.Index {
		return RollupIndex(n.Hour, n.SHA256, n.Generation)
	}
	return RollupChunksHour(n.Resolution, n.Hour) + "metric=" + n.MetricDir + "/" + n.SHA256.String() + generation(n.Generation) + ".lmrollup.zst"
}

// ParseRollupObject reads the key of a chunk or of an index.
func ParseRollupObject(key string) (RollupObjectName, error) {
	var n RollupObjectName
	rest, isIndex := strings.CutPrefix(key, IndexPrefix)
	ext := ".lmindex.zst"
	var err error
	if n.Index = isIndex; !isIndex {
		ext = ".lmrollup.zst"
		of, ok := strings.CutPrefix(key, RollupPrefix+"window=")
		name, tail, ok2 := strings.Cut(of, "/")
		if n.Resolution, err = timegrid.ParseResolution(name); err != nil || !ok || !ok2 {
			return n, notAKey(key, "rollup")
		}
		rest = tail
	}
	h, file, err := cutHour(rest)
	if err != nil {
		return n, notAKey(key, "rollup")
	}
	n.Hour = h
	if !isIndex {
		dir, tail, ok := strings.Cut(file, "/")
		n.MetricDir, file = strings.TrimPrefix(dir, "metric="), tail
		if !ok || n.MetricDir == "" {
			return n, notAKey(key, "rollup")
		}
	}
	stem, ok := strings.CutSuffix(file, ext)
	sum, gen, again := strings.Cut(stem, ".g")
	if n.SHA256, err = identity.ParseDigest(sum); err != nil || !ok {
		return n, notAKey(key, "rollup")
	}
	if again {
		g, err := strconv.ParseUint(gen, 10, 32)
		if err != nil {
			return n, notAKey(key, "rollup")
		}
		n.Generation = uint32(g)
	}
	if n.Key() != key {
		return n, notAKey(key, "rollup")
	}
	return n, nil
}

// ParseRollupPlan reads the key of a plan.
func ParseRollupPlan(key string) (h timegrid.Hour, s shard.ID, gen uint64, err error) {
	rest, ok := strings.CutPrefix(key, PlansPrefix+"shard=")
	name, tail, ok2 := strings.Cut(rest, "/")
	if s, err = shard.Parse(name); err != nil || !ok || !ok2 {
		return 0, 0, 0, notAKey(key, "plans")
	}
	h, file, err := cutHour(tail)
	digits, isJSON := strings.CutSuffix(file, ".json")
	if err != nil || !isJSON {
		return 0, 0, 0, notAKey(key, "plans")
	}
	if gen, err = strconv.ParseUint(digits, 10, 64); err != nil || RollupPlan(h, s, gen) != key {
		return 0, 0, 0, notAKey(key, "plans")
	}
	return h, s, gen, nil
}

// Delayed is the key of an item of the delayed queue. It begins with the millisecond at which the item is
// due, so that a listing returns due items first; d is the hash of its content.
func Delayed(due time.Time, d identity.Digest) string {
	return DelayedPrefix + fmt.Sprintf("%020d-%s.json", max(due.UnixMilli(), 0), hex.EncodeToString(d[:16]))
}

// ParseDelayed reads the time at which the item is due from its key, in UTC.
func ParseDelayed(key string) (time.Time, error) {
	rest, ok := strings.CutPrefix(key, DelayedPrefix)
	name, isJSON := strings.CutSuffix(rest, ".json")
	digits, sum, ok2 := strings.Cut(name, "-")
	ms, err := strconv.ParseInt(digits, 10, 64)
	// ParseInt accepts a sign, which would give one item two keys.
	if !ok || !ok2 || !isJSON || err != nil || len(digits) != 20 || digits[0] == '+' || ms < 0 || len(sum) != 32 || !isHex(sum) {
		return time.Time{}, notAKey(key, "delayed")
	}
	return time.UnixMilli(ms).UTC(), nil
}
