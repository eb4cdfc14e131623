package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Numbers lists the snapshots of a shard, ascending.
func Numbers(ctx context.Context, r objstore.Reader, s shard.ID) ([]uint64, error) {
	var out []uint64
	for o, err := range objstore.List(ctx, r, objstore.ListOptions{Prefix: layout.LiveSnapshots(s)}) {
		if err != nil {
			return nil, fmt.Errorf("list snapshots of shard %s: %w", s, err)
		}
		// Unknown keys are left alone: they may be those of a later release.
		if _, n, err := layout.ParseLiveSnapshot(o.Key); err == nil {
			out = append(out, n)
		}
	}
	return out, nil
}

// All lists the snapshots of all shards, newest first within a shard. It takes one request, unless there are many.
func All(ctx context.Context, r objstore.Reader) (map[shard.ID][]uint64, error) {
	out := map[shard.ID][]uint64{}
	for o, err := range objstore.List(ctx, r, objstore.ListOptions{Prefix: layout.LiveSnapshotsPrefix}) {
		if err != nil {
			return nil, fmt.Errorf("list snapshots: %w", err)
		}
		if s, n, err := layout.ParseLiveSnapshot(o.Key); err == nil {
			out[s] = append(out[s], n)
		}
	}
	for _, ns := range out {
		slices.Reverse(ns)
	}
	return out, nil
}

// Read reads one snapshot. Errors: record.ErrCorrupt when the object is not a snapshot of this shard and number,
// objstore.ErrNotFound, and other errors of the store.
func Read(ctx context.Context, r objstore.Reader, s shard.ID, number uint64) (*Snapshot, error) {
	key := layout.LiveSnapshot(s, number)
	snap, _, err := record.Read(ctx, r, key, Kind, Parse)
	if err != nil {
		return nil, err
	}
	// The object may have been copied by hand, or the store may mix up keys.
	if snap.Shard != s || snap.Number != number {
		return nil, Kind.Corrupt(key, "it is number %d of shard %s", snap.Number, snap.Shard)
	}
	return snap, nil
}

// ReadPack reads a pack that the snapshot names and checks its header. Frames are checked when they are asked for.
// Errors are those of Read.
func ReadPack(ctx context.Context, r objstore.Reader, s *Snapshot, ref Ref) (*Pack, error) {
	key := ref.Key(s.Shard)
	// Callers count memory by what the snapshot says, so nothing longer is read.
	b, err := readPack(ctx, r, key, int64(ref.Bytes))
	if err != nil {
		return nil, err
	}
	p, err := DecodePack(b)
	if err == nil && (p.Shard != s.Shard || p.Shards != s.Shards) {
		err = PackKind.Corrupt(key, "it is of shard %s of %d", p.Shard, p.Shards)
	}
	if err == nil && (uint64(len(p.Entries)) != ref.Batches || slices.ContainsFunc(p.Entries, func(e accepted.Batch) bool { return !ref.Inputs.Covers(e.Identity) })) {
		err = PackKind.Corrupt(key, "it has other batches than the snapshot says")
	}
	if err != nil {
		return nil, PackKind.Wrap(key, err)
	}
	return p, nil
}

func readPack(ctx context.Context, r objstore.Reader, key string, limit int64) ([]byte, error) {
	b, _, err := r.Get(ctx, key, objstore.GetOptions{Limit: limit})
	if objstore.Unreadable(err) {
		return nil, PackKind.Corrupt(key, "%w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", key, err)
	}
	return b, nil
}

// absent: the object can't be read, and no later try can change that. One of a newer release is
// not absent: whoever continues without it would collect the packs that it names.
func absent(err error) bool {
	return errors.Is(err, objstore.ErrNotFound) || record.Unreadable(err)
}

// readRef reads a pack by its key alone, to describe it again: all its bytes are checked.
func readRef(ctx context.Context, r objstore.Reader, key string) (Ref, error) {
	_, number, sum, err := layout.ParseLivePack(key)
	if err != nil {
		return Ref{}, PackKind.Wrap(key, err)
	}
	// The key contains the digest of the whole object, which is checked below.
	b, err := readPack(ctx, r, key, MaxPackBytes)
	if err != nil {
		return Ref{}, err
	}
	if identity.Sum(b) != sum {
		return Ref{}, PackKind.Corrupt(key, "its hash differs")
	}
	p, err := DecodePack(b)
	if err != nil {
		return Ref{}, PackKind.Wrap(key, err)
	}
	return refOf(number, b, p)
}
