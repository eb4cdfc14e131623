// Package framelog has the record of raw frames that were removed on purpose: what
// retention writes before it deletes, and what checks of a bucket ask before they call a
// frame missing. The identity manifests of removed frames stay.
package framelog

import (
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Kind is the kind of a log.
var Kind = record.Kind{Schema: "lightmetrics.removed_frames.v1", Title: "log of removed frames", MaxBytes: 8 << 20}

// MaxFrames bounds a log.
const MaxFrames = 1000

// Log of one removal: what it names is gone, or about to be.
type Log struct {
	AuthorityID string
	// By names who removed.
	By string
	// Before is the time that all samples of the frames lie before, RemovedAt when the log
	// was written; Unix nanoseconds.
	Before    int64
	RemovedAt int64
	Frames    []Frame
}

// Frame is one removed frame: an accepted batch's.
type Frame struct {
	accepted.Identity
	FrameSHA256 identity.Digest `json:"frame_sha256"`
	FrameBytes  uint64          `json:"frame_bytes"`
	// Keys of all generations of the blob.
	Keys []string `json:"keys"`
}

type logJSON struct {
	AuthorityID string  `json:"authority_id"`
	By          string  `json:"by"`
	Before      int64   `json:"before_unix_ns"`
	RemovedAt   int64   `json:"removed_at_unix_ns"`
	Frames      []Frame `json:"frames"`
}

// Marshal writes the canonical JSON, of a log that can be one.
func (l Log) Marshal() ([]byte, error) {
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("log of removed frames: %w", err)
	}
	return Kind.Marshal(logJSON(l)), nil
}

// Key of the log with these bytes.
func (l Log) Key(body []byte) string {
	return layout.FrameLog(time.Unix(0, l.RemovedAt), identity.Sum(body))
}

// Parse reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func Parse(b []byte) (Log, error) {
	var j logJSON
	if err := Kind.Unmarshal(b, &j); err != nil {
		return Log{}, err
	}
	l := Log(j)
	if err := l.validate(); err != nil {
		return Log{}, Kind.Wrap("", err)
	}
	return l, nil
}

func (l Log) validate() error {
	if l.AuthorityID == "" || l.By == "" || len(l.Frames) == 0 || len(l.Frames) > MaxFrames {
		return fmt.Errorf("authority %.128q, by %.128q, %d frames", l.AuthorityID, l.By, len(l.Frames))
	}
	for _, f := range l.Frames {
		if err := f.Identity.Validate(); err != nil {
			return err
		}
		for _, k := range f.Keys {
			if d, _, err := layout.ParseBlob(k); err != nil || d != f.FrameSHA256 {
				return fmt.Errorf("key %.200q is not of the frame %s", k, f.FrameSHA256)
			}
		}
	}
	return nil
}
