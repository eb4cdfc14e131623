// Package framelog has the record of raw frames that were removed on purpose: what
// retention writes before it deletes, and what checks of a bucket ask before they call a
// frame missing. The identity manifests of removed frames stay.
package framelog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/layout"
)

// Schema names the JSON schema of a log.
const Schema = "lightmetrics.removed_frames.v1"

// Bounds of a log. A reader refuses longer ones unread.
const (
	MaxFrames = 1000
	MaxBytes  = 8 << 20
)

// ErrLog is wrapped by every error of a log that can't be read as one.
var ErrLog = errors.New("invalid log of removed frames")

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
	AgentID  string          `json:"agent_id"`
	BootID   string          `json:"boot_id"`
	SeqStart uint64          `json:"seq_start"`
	SeqEnd   uint64          `json:"seq_end"`
	SHA256   identity.Digest `json:"frame_sha256"`
	Bytes    uint64          `json:"frame_bytes"`
	// Keys of all generations of the blob.
	Keys []string `json:"keys"`
}

// Identity of the batch.
func (f Frame) Identity() identity.Batch {
	return identity.Batch{Agent: f.AgentID, Boot: f.BootID, SeqStart: f.SeqStart, SeqEnd: f.SeqEnd}
}

type logJSON struct {
	Schema      string  `json:"schema"`
	AuthorityID string  `json:"authority_id"`
	By          string  `json:"by"`
	Before      int64   `json:"before_unix_ns"`
	RemovedAt   int64   `json:"removed_at_unix_ns"`
	Frames      []Frame `json:"frames"`
}

// Marshal writes the canonical JSON. Errors wrap ErrLog.
func (l Log) Marshal() ([]byte, error) {
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLog, err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(logJSON{Schema, l.AuthorityID, l.By, l.Before, l.RemovedAt, l.Frames}); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLog, err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), nil
}

// Key of the log with these bytes.
func (l Log) Key(body []byte) string {
	return layout.FrameLog(time.Unix(0, l.RemovedAt), identity.Sum(body))
}

// Parse reads what Marshal writes, and nothing else. Errors wrap ErrLog.
func Parse(b []byte) (Log, error) {
	if len(b) > MaxBytes {
		return Log{}, fmt.Errorf("%w: %d bytes, at most %d", ErrLog, len(b), MaxBytes)
	}
	var j logJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return Log{}, fmt.Errorf("%w: %w", ErrLog, err)
	}
	if j.Schema != Schema {
		return Log{}, fmt.Errorf("%w: schema %.64q", ErrLog, j.Schema)
	}
	l := Log{j.AuthorityID, j.By, j.Before, j.RemovedAt, j.Frames}
	again, err := l.Marshal()
	if err == nil && !bytes.Equal(again, b) {
		err = fmt.Errorf("%w: not in its canonical form", ErrLog)
	}
	return l, err
}

func (l Log) validate() error {
	if l.AuthorityID == "" || l.By == "" || len(l.Frames) == 0 || len(l.Frames) > MaxFrames {
		return fmt.Errorf("authority %.128q, by %.128q, %d frames", l.AuthorityID, l.By, len(l.Frames))
	}
	for _, f := range l.Frames {
		if err := f.Identity().Validate(); err != nil {
			return err
		}
		for _, k := range f.Keys {
			if d, _, err := layout.ParseBlob(k); err != nil || d != f.SHA256 {
				return fmt.Errorf("key %.200q is not of the frame %s", k, f.SHA256)
			}
		}
	}
	return nil
}
