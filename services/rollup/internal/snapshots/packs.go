package snapshots

import (
	"cmp"
	"context"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
)

const (
	// worth is the least part of a pack's batches, as 1/worth, that must be wanted for it to be read.
	worth = 8
	// maxAge of the newest sample of a batch that is read from a pack. Retention removes no frame
	// within 24 hours of it, so what retention removed is never read from a pack, however long the
	// window of the snapshots is.
	maxAge = 12 * time.Hour
)

// packsOf gives the packs of a snapshot that save requests to whoever reads the frames of all entries.
func packsOf(c *Config, s *snapshot.Snapshot, entries []accepted.Batch) (out []frames.Pack) {
	wanted := byBoot(entries, c.Now().Add(-maxAge).UnixNano())
	taken := make([]bool, len(entries))
	for i := range s.Packs {
		ref := &s.Packs[i]
		of := find(ref, entries, wanted, taken)
		// A single frame is read from its blob for the same price, and a few are not worth the bytes of all others.
		if len(of) < 2 || uint64(len(of))*worth < ref.Batches {
			continue
		}
		for _, i := range of {
			taken[i] = true
		}
		out = append(out, frames.Pack{
			Entries: of, Bytes: ref.Bytes,
			Read: func(ctx context.Context) ([][]byte, error) { return read(ctx, c, s, *ref, entries, of) },
			Failed: func(err error) {
				c.Metrics.PackFailures.Inc()
				c.Log.Warn("a pack can't be used; the blobs of its frames are read", "pack", ref.Key(s.Shard), "error", err)
			},
		})
	}
	return out
}

// byBoot gives the positions of the entries with samples after the horizon, by boot and in the order of their numbers.
func byBoot(entries []accepted.Batch, horizon int64) map[identity.Boot][]int {
	out := map[identity.Boot][]int{}
	for i, e := range entries {
		if e.MaxTime >= horizon {
			out[e.Identity.BootOf()] = append(out[e.Identity.BootOf()], i)
		}
	}
	for _, of := range out {
		slices.SortFunc(of, func(a, b int) int { return cmp.Compare(entries[a].Identity.SeqStart, entries[b].Identity.SeqStart) })
	}
	return out
}

// find gives the wanted entries that the pack has and no pack before it. It goes through the runs of the pack,
// because there are fewer of them than batches, and an hour has many packs.
func find(ref *snapshot.Ref, entries []accepted.Batch, wanted map[identity.Boot][]int, taken []bool) (of []int) {
	for _, b := range ref.Inputs.Boots() {
		mine := wanted[identity.Boot{Agent: b.Agent, Boot: b.Boot}]
		if len(mine) == 0 {
			continue
		}
		next := 0
		for _, r := range b.Runs {
			last := r.Start + (r.Records*r.Batches - 1)
			// Covers asks all runs: a batch of a later run that overlaps this one is found here.
			k, _ := slices.BinarySearchFunc(mine, r.Start, func(i int, start uint64) int { return cmp.Compare(entries[i].Identity.SeqStart, start) })
			for next = max(next, k); next < len(mine) && entries[mine[next]].Identity.SeqStart <= last; next++ {
				if i := mine[next]; !taken[i] && ref.Inputs.Covers(entries[i].Identity) {
					of = append(of, i)
				}
			}
		}
	}
	return of
}

// read gives the pack's bytes of the entries at positions of, not compared with their hashes; nil for what the pack lacks.
func read(ctx context.Context, c *Config, s *snapshot.Snapshot, ref snapshot.Ref, entries []accepted.Batch, of []int) ([][]byte, error) {
	p, err := snapshot.ReadPack(ctx, c.Store, s, ref)
	if err != nil {
		return nil, err
	}
	at := make(map[identity.Batch]int, len(p.Entries))
	for i, e := range p.Entries {
		at[e.Identity] = i
	}
	out := make([][]byte, len(of))
	for n, i := range of {
		if k, ok := at[entries[i].Identity]; ok {
			out[n] = p.Bytes(k)
		}
	}
	c.Metrics.PackReads.Inc()
	return out, nil
}
