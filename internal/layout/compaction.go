package layout

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// BlockPlan is the key of the plan that the block is made from. The resolutions of an hour
// of a shard share one; a compaction has its own.
func BlockPlan(n BlockName) string {
	if n.Span == 0 {
		return RollupPlan(n.Hour, n.Shard, n.Generation)
	}
	return RollupPlans(n.Hour, n.Shard) + fmt.Sprintf("%s%s-%010d.json", n.Resolution, spanName(n.Span), n.Generation)
}

// ParseCompactionPlan reads the key of a compaction's plan.
func ParseCompactionPlan(key string) (BlockName, error) {
	var n BlockName
	i := strings.LastIndexByte(key, '/') + 1
	// The directory is that of an hour's plans: with a number appended it must parse as a plan of the hour.
	h, s, _, err := ParseRollupPlan(key[:i] + "0000000001.json")
	if err != nil {
		return n, notAKey(key, "plans")
	}
	n.Hour, n.Shard = h, s
	name, isJSON := strings.CutSuffix(key[i:], ".json")
	of, digits, ok := strings.Cut(name, "-")
	w, span, err := cutSpan(of)
	if err != nil || !ok || !isJSON || span == 0 {
		return n, notAKey(key, "plans")
	}
	n.Span = span
	if n.Resolution, err = timegrid.ParseResolution(w); err != nil {
		return n, notAKey(key, "plans")
	}
	if n.Generation, err = strconv.ParseUint(digits, 10, 64); err != nil || BlockPlan(n) != key {
		return n, notAKey(key, "plans")
	}
	return n, nil
}

// LogPrefix has the permanent logs of what was removed.
const LogPrefix = "gc/v1/log/"

// RetentionLog is the key of the record that the blocks of a resolution's hour are removed; d
// is the hash of their names, so that blocks that came later get their own record.
func RetentionLog(res timegrid.Resolution, h timegrid.Hour, d identity.Digest) string {
	return RetentionLogsHour(h) + res.String() + "-" + d.String()[:32] + ".json"
}

// RetentionLogsHour is the prefix of an hour's records of removed blocks; it ends in a slash.
func RetentionLogsHour(h timegrid.Hour) string { return LogPrefix + "retention/" + sampleHour(h) }

// FrameLogsPrefix has the logs of removed raw frames.
const FrameLogsPrefix = LogPrefix + "frames/"

// FrameLog is the key of a log of raw frames that were removed at the given time; d is the
// hash of its content.
func FrameLog(at time.Time, d identity.Digest) string {
	return FrameLogsPrefix + timedName(at, d)
}

// RollupFramesPrefix has the records of how far raw frames were removed.
const RollupFramesPrefix = RollupPrefix + "frames/"

// RollupFrames is the key of the record of how far a shard's raw frames were removed.
func RollupFrames(s shard.ID) string { return RollupFramesPrefix + "shard=" + s.String() + ".json" }

// RollupProgressPrefix has the records of how far the journal is rolled up.
const RollupProgressPrefix = RollupPrefix + "progress/"

// RollupProgress is the key of the record of how far a shard has rolled the journal up.
func RollupProgress(s shard.ID) string { return RollupProgressPrefix + "shard=" + s.String() + ".json" }

// ParseRollupProgress reads such a key.
func ParseRollupProgress(key string) (shard.ID, error) {
	rest, ok := strings.CutPrefix(key, RollupProgressPrefix+"shard=")
	name, ok2 := strings.CutSuffix(rest, ".json")
	id, err := shard.Parse(name)
	if !ok || !ok2 || err != nil || RollupProgress(id) != key {
		return 0, notAKey(key, "rollup progress")
	}
	return id, nil
}
