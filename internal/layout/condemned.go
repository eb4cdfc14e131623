package layout

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Condemned is the key of the permanent marker that generation gen of d is, or may be, deleted.
func Condemned(d identity.Digest, gen uint32) string {
	b := hex.AppendEncode(append(make([]byte, 0, 128), CondemnedPrefix...), d[:])
	b = strconv.AppendUint(append(b, ".g"...), uint64(gen), 10)
	return string(append(b, ".json"...))
}

// ParseCondemned reads the key of a marker.
func ParseCondemned(key string) (identity.Digest, uint32, error) {
	name, ok := strings.CutPrefix(strings.TrimSuffix(key, ".json"), CondemnedPrefix)
	hash, number, dot := strings.Cut(name, ".g")
	d, err := identity.ParseDigest(hash)
	gen, nerr := strconv.ParseUint(number, 10, 32)
	if !ok || !dot || err != nil || nerr != nil || Condemned(d, uint32(gen)) != key {
		return identity.Digest{}, 0, notAKey(key, "condemned")
	}
	return d, uint32(gen), nil
}

// CondemnedEpochsPrefix is the prefix of the log of epochs.
const CondemnedEpochsPrefix = CondemnedPrefix + "epochs/"

// CondemnedEpoch is the key of an epoch of condemned names; number 0 begins the log.
func CondemnedEpoch(n uint64) string {
	return string(append(appendSeq([]byte(CondemnedEpochsPrefix), n), ".json"...))
}

// CondemnedHour is the key of the record of the generations that are condemned of all frames
// whose last sample lies in the hour.
func CondemnedHour(h timegrid.Hour) string {
	return CondemnedPrefix + strings.TrimSuffix(sampleHour(h), "/") + ".json"
}

// Rewritten is the key of the note that generation gen of the batch's frame was written after
// retention had condemned those below it. h is the hour of the batch's last sample.
func Rewritten(h timegrid.Hour, id identity.Batch, gen uint32) string {
	return RewrittenHour(h) + strings.TrimSuffix(identityPath(id), ".json") + generation(gen) + ".json"
}

// RewrittenHour is the prefix of an hour's notes of rewritten frames; it ends in a slash.
func RewrittenHour(h timegrid.Hour) string { return RewrittenPrefix + sampleHour(h) }

// ParseRewritten reads the key of a note of a rewritten frame.
func ParseRewritten(key string) (timegrid.Hour, identity.Batch, uint32, error) {
	fail := func() (timegrid.Hour, identity.Batch, uint32, error) {
		return 0, identity.Batch{}, 0, notAKey(key, "rewritten")
	}
	rest, ok := strings.CutPrefix(key, RewrittenPrefix)
	if !ok {
		return fail()
	}
	h, rest, err := cutHour(rest)
	if err != nil {
		return fail()
	}
	name, ok := strings.CutSuffix(rest, ".json")
	dot := strings.LastIndex(name, ".g")
	if !ok || dot < 0 {
		return fail()
	}
	gen, err := strconv.ParseUint(name[dot+len(".g"):], 10, 32)
	if err != nil {
		return fail()
	}
	id, err := parseIdentityPath(name[:dot] + ".json")
	if err != nil || Rewritten(h, id, uint32(gen)) != key {
		return fail()
	}
	return h, id, uint32(gen), nil
}

// Keys of garbage collection as a service.
const (
	// GCStateKey is the record of who collects, and how far the sweep is.
	GCStateKey = "gc/v1/state.json"
	// OrphanReportsPrefix has what collectors report of blobs whose submissions ended without an outcome.
	OrphanReportsPrefix = "gc/v1/orphans/"
	// BlobLogsPrefix has the logs of blobs that were collected.
	BlobLogsPrefix = LogPrefix + "blobs/"
)

// OrphanReport is the key of a report that was written at the given time; d is the hash of its content.
func OrphanReport(at time.Time, d identity.Digest) string {
	return OrphanReportsPrefix + timedName(at, d)
}

// BlobLog is the key of a log of collected blobs that was written at the given time; d is the hash of its content.
func BlobLog(at time.Time, d identity.Digest) string { return BlobLogsPrefix + timedName(at, d) }

// timedName is a name that sorts by time.
func timedName(at time.Time, d identity.Digest) string {
	return fmt.Sprintf("%020d-%s.json", max(at.UnixMilli(), 0), d.String()[:32])
}
