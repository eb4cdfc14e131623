// Package framelog has the log of raw frames that were removed on purpose. Retention writes a
// log before it deletes; whoever finds a frame missing reads the logs to learn whether that was
// intended. The identity manifests of removed frames stay.
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

// Log is the record of one removal: the frames that it names are deleted, or about to be.
type Log struct {
	AuthorityID string
	// By names the process that removed them.
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

// Marshal writes the canonical JSON; an error says which field is invalid.
func (l Log) Marshal() ([]byte, error) {
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("log of removed frames: %w", err)
	}
	return Kind.Marshal(logJSON(l)), nil
}

// Key is the object key of the log whose marshalled bytes are body.
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
