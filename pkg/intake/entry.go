// Package intake is the log of accepted batches that rollup workers follow. Reconcilers
// write it, shard by shard, as segments of many batches; the owner of a shard reads it
// and deletes what published sets cover. It is derived: whatever is lost is written again
// from the manifests. A batch may stand in it more than once.
//
// The package starts no goroutines and reads no clock. docs/protocol/intake.md has the
// order of writes and why nothing is missed.
package intake

import (
	"fmt"

	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// Entry is what a worker needs to know of an accepted batch.
type Entry struct {
	AgentID  string `json:"agent_id"`
	BootID   string `json:"boot_id"`
	SeqStart uint64 `json:"seq_start"`
	SeqEnd   uint64 `json:"seq_end"`

	FrameSHA256 identity.Digest `json:"frame_sha256"`
	FrameBytes  uint64          `json:"frame_bytes"`
	// RawBlobKey is where to look first for the frame.
	RawBlobKey string `json:"raw_blob_key"`
	// AcceptedAt, MinTime and MaxTime are Unix nanoseconds; the last two of the samples.
	AcceptedAt int64 `json:"accepted_at_unix_ns"`
	MinTime    int64 `json:"min_time_unix_ns"`
	MaxTime    int64 `json:"max_time_unix_ns"`
}

// EntryOf is the entry of an accepted batch.
func EntryOf(m accept.Manifest) Entry {
	return Entry{
		AgentID: m.Identity.Agent, BootID: m.Identity.Boot, SeqStart: m.Identity.SeqStart, SeqEnd: m.Identity.SeqEnd,
		FrameSHA256: m.FrameSHA256, FrameBytes: m.FrameBytes, RawBlobKey: m.RawBlobKey,
		AcceptedAt: m.AcceptedAt, MinTime: m.MinTime, MaxTime: m.MaxTime,
	}
}

// Identity of the batch.
func (e Entry) Identity() identity.Batch {
	return identity.Batch{Agent: e.AgentID, Boot: e.BootID, SeqStart: e.SeqStart, SeqEnd: e.SeqEnd}
}

// Hours are the first and the last hour that samples of the batch may lie in. A batch
// of a broken clock can span years: look at the frame before making work of each hour
// of a wide one.
func (e Entry) Hours() (first, last window.Hour) {
	return window.HourOfNS(e.MinTime), window.HourOfNS(e.MaxTime)
}

// Validate refuses what no accepted batch is.
func (e Entry) Validate() error {
	if err := e.Identity().Validate(); err != nil {
		return err
	}
	switch {
	case e.FrameSHA256.IsZero():
		return fmt.Errorf("%s: frame_sha256 is zero", e.Identity())
	case e.FrameBytes == 0:
		return fmt.Errorf("%s: frame_bytes is 0", e.Identity())
	case len(e.RawBlobKey) > maxKeyBytes:
		return fmt.Errorf("%s: raw_blob_key has %d bytes", e.Identity(), len(e.RawBlobKey))
	case e.MaxTime < e.MinTime:
		return fmt.Errorf("%s: max_time_unix_ns is before min_time_unix_ns", e.Identity())
	}
	return nil
}
