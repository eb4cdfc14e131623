package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// LogKind is the kind of a log of collected blobs.
var LogKind = record.Kind{Schema: "lightmetrics.collected_blobs.v1", Title: "log of collected blobs", MaxBytes: 4 << 20}

// MaxLogged bounds the entries of a log.
const MaxLogged = 4096

// Log is a part of what a collection did. The entries of the blobs that it condemned are durable before the
// first of them is deleted; what became of them stands in a later one.
type Log struct {
	AuthorityID string `json:"authority_id"`
	// By names the process, Plan is the id of its plan, which the markers have, and Source where the plan came from.
	By     string `json:"by"`
	Plan   string `json:"plan_id"`
	Source Source `json:"source"`
	// At by the process's clock, Unix nanoseconds.
	At      int64      `json:"at_unix_ns"`
	Entries []LogEntry `json:"entries"`
}

// LogEntry is one entry.
type LogEntry struct {
	Key    string `json:"key"`
	Action Action `json:"action"`
	Reason Reason `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	Bytes  int64  `json:"bytes"`
}

// Source of a plan. Values are stable.
type Source string

// Sources.
const (
	FromSweep   Source = "SWEEP"
	FromReports Source = "REPORTS"
)

// maxDetail bounds the detail of an entry.
const maxDetail = 512

// Marshal writes the canonical JSON.
func (l Log) Marshal() []byte { return LogKind.Marshal(l) }

// Key is the object key of the log whose marshalled bytes are body.
func (l Log) Key(body []byte) string {
	return layout.BlobLog(time.Unix(0, l.At), identity.Sum(body))
}

// ParseLog reads what Marshal writes; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseLog(b []byte) (Log, error) {
	var l Log
	err := LogKind.Unmarshal(b, &l)
	if err == nil && (len(l.Entries) == 0 || len(l.Entries) > MaxLogged) {
		err = fmt.Errorf("%d entries", len(l.Entries))
	}
	return l, LogKind.Wrap("", err)
}

// write creates the log. It is never replaced: its key has the hash of its content.
func (l Log) write(ctx context.Context, s objstore.Creator) error {
	body := l.Marshal()
	if _, err := s.Create(ctx, l.Key(body), body, jsonContent); err != nil && !errors.Is(err, objstore.ErrExists) {
		return fmt.Errorf("log of collected blobs: %w", err)
	}
	return nil
}
