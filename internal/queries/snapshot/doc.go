// Package snapshot has the live-state snapshots of shards: with them a query node starts from a few objects
// instead of one request for each frame of its window. Snapshot k of a shard consists of the packs of snapshot k-1
// that still have samples of the window, and packs of the batches since. Packs hold the exact frames. The owner of
// the shard makes the chain, as jobs of internal/coordination/work.
//
// A snapshot is an optimization and no authority: an audit of the identity manifests finds what it lacks. The
// package starts no goroutines and reads no clock. docs/format/snapshots.md has the formats,
// docs/protocol/snapshots.md the order of writes.
package snapshot

import (
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// Kinds of the objects, and of what a chain stores in pending work: the body of a message, and a checkpoint. A
// pack is frames after a header, which is a record.
var (
	Kind     = record.Kind{Schema: "lightmetrics.live_snapshot.v1", Title: "live snapshot", MaxBytes: MaxSnapshotBytes}
	PackKind = record.Kind{Schema: "lightmetrics.live_pack.v1", Title: "pack", MaxBytes: MaxPackBytes}

	JobKind      = record.Kind{Schema: "lightmetrics.snapshot_job.v1", Title: "snapshot job", MaxBytes: work.MaxBody, Exact: true}
	ProgressKind = record.Kind{Schema: "lightmetrics.snapshot_progress.v1", Title: "progress of a snapshot", MaxBytes: work.MaxState, Exact: true}
)
