package frames

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Pack is one object with the frames of several batches.
type Pack struct {
	// Entries are the positions of its batches among those that were asked for.
	Entries []int
	// Bytes of the object, which are in memory while its frames are used.
	Bytes uint64
	// Read gives what the object has in place of each frame of Entries, nil where it has nothing.
	Read func(ctx context.Context) ([][]byte, error)
	// Failed is called once where Read failed, or gave bytes that are not the accepted ones.
	Failed func(err error)
}

// eachPacked hands those frames to fn that collectors sent or packs have, one at a time, and gives the positions of the other entries. A pack is a copy
// that may be damaged, or be deleted while it is read. So it never fails a caller, who reads the blobs of whatever a pack does not give.
func eachPacked(ctx context.Context, r *Reader, all []accepted.Batch, fn func(i int, raw []byte) error) (rest []int, err error) {
	// What is in memory first: the packs that are left are fewer, or none is worth its request.
	var entries []accepted.Batch
	var at []int // of entries among all
	for i, e := range all {
		if raw := r.Arrived.get(e.FrameSHA256); raw != nil && int64(e.FrameBytes) <= r.MaxFrame {
			if err := fn(i, raw); err != nil {
				return nil, err
			}
			continue
		}
		entries, at = append(entries, e), append(at, i)
	}
	var packs []Pack
	if r.Packs != nil && len(entries) > 0 {
		packs = r.Packs(ctx, entries)
	}
	done := make([]bool, len(entries))
	size := func(k int) int64 { return int64(packs[k].Bytes) }
	err = readAll(ctx, r.AtOnce, len(packs), size, func(ctx context.Context, k int) ([][]byte, error) {
		return readPack(ctx, r, packs[k], entries)
	}, func(k int, raws [][]byte) error {
		for n, raw := range raws {
			i := packs[k].Entries[n]
			if raw == nil || done[i] {
				continue
			}
			if err := fn(at[i], raw); err != nil {
				return err
			}
			done[i] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range entries {
		if !done[i] {
			rest = append(rest, at[i])
		}
	}
	return rest, nil
}

// readPack gives the accepted frames among what a pack has, nil for each other. Its only error is that ctx ended.
func readPack(ctx context.Context, r *Reader, p Pack, entries []accepted.Batch) ([][]byte, error) {
	pctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	raws, err := p.Read(pctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		p.Failed(err)
		return nil, nil
	}
	damaged := 0
	for n, raw := range raws {
		e := entries[p.Entries[n]]
		switch {
		case raw == nil:
		case identity.Sum(raw) != e.FrameSHA256:
			damaged++
			raws[n] = nil
		case int64(e.FrameBytes) > r.MaxFrame:
			raws[n] = nil // Get says what is wrong with it
		}
	}
	if damaged > 0 {
		p.Failed(fmt.Errorf("%d frames of %d have other bytes than were accepted", damaged, len(raws)))
	}
	return raws, nil
}
