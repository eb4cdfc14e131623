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

// Prefixes and keys of rollups.
const (
	RollupPrefix    = "rollup/v1/"
	IndexPrefix     = "index/v1/"
	ManifestsPrefix = "manifests/v1/"
	PlansPrefix     = RollupPrefix + "plans/"
	DelayedPrefix   = "gc/v1/delayed/"
	// RollupConfigKey has the number of shards, which a deployment can't change.
	RollupConfigKey = RollupPrefix + "config.json"
	// RollupExpiryKey has the hour up to which the rows of each resolution have expired.
	RollupExpiryKey = RollupPrefix + "expiry.json"
	// RollupHelpsKey has the helps of metrics.
	RollupHelpsKey = RollupPrefix + "helps.json"
	// RollupClockKey is written to learn the store's time from the answer.
	RollupClockKey = RollupPrefix + "clock.json"
)

// MixedMetrics is the metric directory of chunks that hold several metrics.
const MixedMetrics = "_mixed"

// RollupChunk is the key of a chunk of an hour: d is the hash of its bytes, gen is the
// generation, which grows when an earlier object of the same bytes can't be used. metric is
// a metric's name or MixedMetrics.
func RollupChunk(res timegrid.Resolution, h timegrid.Hour, metric string, d identity.Digest, gen uint32) string {
	return RollupPrefix + "window=" + res.String() + "/" + sampleHour(h) + "metric=" + metricDir(metric) + "/" +
		d.String() + generation(gen) + ".lmrollup.zst"
}

// RollupIndex is the key of a chunk's index: d is the hash of the index' own bytes.
func RollupIndex(h timegrid.Hour, d identity.Digest, gen uint32) string {
	return IndexPrefix + sampleHour(h) + d.String() + generation(gen) + ".lmindex.zst"
}

func generation(gen uint32) string {
	if gen == 0 {
		return ""
	}
	return ".g" + strconv.FormatUint(uint64(gen), 10)
}

// sampleHour names the hour's start.
func sampleHour(h timegrid.Hour) string { return hourDir(h.Start()) }

// metricDir is the directory of a metric. A name of the classic character set is used as it
// is. Other names, long ones and those that begin like MixedMetrics are written as hex after
// "x-", which no classic name contains.
func metricDir(metric string) string {
	if metric == MixedMetrics {
		return metric
	}
	// A metric that is called _mixed must not share the directory of MixedMetrics.
	plain := metric != "" && len(metric) <= 200 && !strings.HasPrefix(metric, "_mixed")
	for i := range len(metric) {
		c := metric[i]
		plain = plain && (c == '_' || c == ':' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9')
	}
	if plain {
		return metric
	}
	if len(metric) > 200 {
		// Long names may then share a directory, which is harmless: chunks are named by their hashes.
		metric = metric[:200]
	}
	return "x-" + hex.EncodeToString([]byte(metric))
}

// BlockManifest is the key of the manifest of a block; its creation publishes the block.
func BlockManifest(h timegrid.Hour, s shard.ID, res timegrid.Resolution, gen uint64) string {
	return BlockName{Hour: h, Shard: s, Resolution: res, Generation: gen}.Key()
}

// BlockManifestsHour is the prefix of the manifests of an hour's blocks; it ends in a slash.
func BlockManifestsHour(h timegrid.Hour) string { return ManifestsPrefix + sampleHour(h) }

// BlockName is the parsed key of a block's manifest.
type BlockName struct {
	Hour       timegrid.Hour
	Shard      shard.ID
	Resolution timegrid.Resolution
	Generation uint64
	// Span is 0 for the block of one hour of one shard. Else the block is a compaction of that
	// many hours from Hour on, of shards from Shard on.
	Span uint16
}

// Key is the object key of this name.
func (n BlockName) Key() string { return string(n.appendKey(make([]byte, 0, 96))) }

// appendKey appends the key. Readers of many hours build and check tens of thousands of keys.
func (n BlockName) appendKey(b []byte) []byte {
	b = append(b, ManifestsPrefix...)
	b = appendHourDir(b, n.Hour.Start())
	b = appendDigits(b, uint64(n.Shard), 4)
	b = append(b, '-')
	b = append(b, n.Resolution.String()...)
	if n.Span > 0 {
		b = append(b, spanName(n.Span)...)
	}
	b = append(b, '-')
	b = appendDigits(b, n.Generation, 10)
	return append(b, ".json"...)
}

// SlotPrefix is the common prefix of the keys of all generations of the block.
func (n BlockName) SlotPrefix() string {
	return BlockManifestsHour(n.Hour) + n.Shard.String() + "-" + n.Resolution.String() + spanName(n.Span) + "-"
}

// spanName is the suffix of the resolution in keys of compactions, such as ".24h".
func spanName(span uint16) string {
	if span == 0 {
		return ""
	}
	return fmt.Sprintf(".%dh", span)
}

// cutSpan splits a resolution's name and the suffix that spanName made.
func cutSpan(s string) (w string, span uint16, err error) {
	w, hours, ok := strings.Cut(s, ".")
	if !ok {
		return w, 0, nil
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(hours, "h"), 10, 16)
	if err != nil || n == 0 || "."+hours != spanName(uint16(n)) {
		return "", 0, ErrNotAKey
	}
	return w, uint16(n), nil
}

// ParseBlockManifest reads the key of a block's manifest.
func ParseBlockManifest(key string) (BlockName, error) {
	var n BlockName
	rest, ok := strings.CutPrefix(key, ManifestsPrefix)
	h, file, err := cutHour(rest)
	name, isJSON := strings.CutSuffix(file, ".json")
	id, name, dash := strings.Cut(name, "-")
	resolution, digits, dash2 := strings.Cut(name, "-")
	if !ok || err != nil || !isJSON || !dash || !dash2 {
		return n, notAKey(key, "manifests")
	}
	n.Hour = h
	if n.Shard, err = shard.Parse(id); err != nil {
		return n, notAKey(key, "manifests")
	}
	of, span, err := cutSpan(resolution)
	if err != nil {
		return n, notAKey(key, "manifests")
	}
	n.Span = span
	if n.Resolution, err = timegrid.ParseResolution(of); err != nil {
		return n, notAKey(key, "manifests")
	}
	var built [96]byte
	if n.Generation, err = strconv.ParseUint(digits, 10, 64); err != nil || string(n.appendKey(built[:0])) != key {
		return n, notAKey(key, "manifests")
	}
	return n, nil
}

// RollupPlan is the key of the plan, the fixed inputs, of a generation of a shard's hour.
func RollupPlan(h timegrid.Hour, s shard.ID, gen uint64) string {
	return RollupPlans(h, s) + fmt.Sprintf("%010d.json", gen)
}

// RollupPlansOf is the prefix of the plans of a shard; it ends in a slash.
func RollupPlansOf(s shard.ID) string { return PlansPrefix + "shard=" + s.String() + "/" }

// RollupPlans is the prefix of the plans of a shard's hour; it ends in a slash.
func RollupPlans(h timegrid.Hour, s shard.ID) string { return RollupPlansOf(s) + sampleHour(h) }

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != ""
}

// cutHour splits "date=…/hour=…/rest".
func cutHour(s string) (timegrid.Hour, string, error) {
	const dir = "date=2006-01-02/hour=15/"
	if len(s) < len(dir) {
		return 0, "", ErrNotAKey
	}
	at := func(i, digits int) (n int) {
		for _, c := range []byte(s[i : i+digits]) {
			n = n*10 + int(c-'0')
		}
		return n
	}
	// What is no number, or no date, gives another hour, whose directory differs.
	h := timegrid.HourStarting(time.Date(at(5, 4), time.Month(at(10, 2)), at(13, 2), at(21, 2), 0, 0, 0, time.UTC))
	var built [len(dir) + 8]byte
	if string(appendHourDir(built[:0], h.Start())) != s[:len(dir)] {
		return 0, "", ErrNotAKey
	}
	return h, s[len(dir):], nil
}
