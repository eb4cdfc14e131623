package agent

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// Inspect reads the queue of an agent that is not running, as its next start would:
// the boot with its next sequence number, and what is pending. A running agent holds
// the directory's lock; then it is an error.
func Inspect(c Config) (BootStatus, queue.Stats, error) {
	dir := filepath.Join(c.DataDir, "queue")
	print, err := queue.FingerprintOf(dir)
	if err != nil {
		return BootStatus{}, queue.Stats{}, err
	}
	q, err := queue.Open(vfs.OS, dir, queue.Options{
		Agent: c.AgentID, Fingerprint: print, MaxBytes: int64(c.Queue.MaxBytes), SegmentBytes: int64(c.Queue.SegmentBytes),
		DeadBytes: int64(c.Queue.DeadLetterBytes), Policy: queue.Policy(c.Queue.Policy), Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return BootStatus{}, queue.Stats{}, fmt.Errorf("inspect queue: %w", err)
	}
	b, spool, next := q.Boot()
	st := q.Stats()
	return BootStatus{AgentID: b.Agent, BootID: b.Boot, SpoolID: spool, NextSeq: next}, st, q.Close()
}
