package rollup

import (
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// Topic of a shard's messages in the work queue.
func Topic(id shard.ID) string { return "rollup-" + id.String() }

// Message says that new batches of an hour stand in the shard's intake. It is a hint: the
// intake has the truth, and a lost message costs a poll interval.
func Message(h window.Hour) []byte { return []byte(h.String()) }

// MessageKey keeps doubles of a waiting message away.
func MessageKey(id shard.ID, h window.Hour) string { return Log(id, h) }

// Log of the pending table that has the jobs of a shard's hour; their numbers are generations.
func Log(id shard.ID, h window.Hour) string { return LogPrefix(id) + "/" + h.String() }

// LogPrefix is the prefix of a shard's logs.
func LogPrefix(id shard.ID) string { return "rollup/" + id.String() }

// ParseLog reads the hour out of a log's name.
func ParseLog(id shard.ID, log string) (window.Hour, error) {
	prefix := LogPrefix(id) + "/"
	if len(log) != len(prefix)+len(hourLayout) || log[:len(prefix)] != prefix {
		return 0, fmt.Errorf("%q is not a log of shard %s", log, id)
	}
	t, err := time.Parse(hourLayout, log[len(prefix):])
	return window.HourStarting(t), err
}
