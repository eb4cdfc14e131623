// Package snapshot has the live-state snapshots of shards: a query node starts from a few
// objects in place of one request per frame of its window. Snapshot k of a shard is the
// packs of snapshot k-1 that still hold samples of the window, and packs of the batches
// since. Packs hold the exact frames. The owner of the shard makes the chain as jobs of
// pkg/work.
//
// A snapshot is an optimization and no authority: what it lacks, an audit of the identity
// manifests finds. The package starts no goroutines and reads no clock.
// docs/format/snapshots.md has the formats, docs/protocol/snapshots.md the order of writes.
package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
)

// ErrCorrupt is wrapped by the errors of objects that are not what this package writes.
var ErrCorrupt = errors.New("corrupt snapshot object")

// canonical JSON: no white space, keys in the order of the fields, nothing escaped that need not be.
func canonical(v any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}), nil
}
