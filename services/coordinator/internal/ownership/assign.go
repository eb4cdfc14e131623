package ownership

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/shard"
)

// Assign gives every shard a worker: rendezvous hashing with exact quotas, which changes the present assignment
// instead of making a new one. Each worker gets floor(K/n) or ceil(K/n) shards; those that own most keep the
// larger quota, so that as few shards move as a balanced assignment allows. Which shards move, and where to, is
// decided by the highest score. Without workers nothing changes. workers are distinct; targets is not written to.
func Assign(targets, workers []string) []string {
	k, n := len(targets), len(workers)
	next := slices.Clone(targets)
	if n == 0 {
		return next
	}
	quota := quotas(targets, workers)
	owned := map[string][]shard.ID{}
	for i, w := range targets {
		if _, ok := quota[w]; ok {
			owned[w] = append(owned[w], shard.ID(i))
		} else {
			next[i] = ""
		}
	}
	// A worker above its quota gives away the shards for which its score is lowest.
	for _, w := range workers {
		own := owned[w]
		if len(own) <= quota[w] {
			continue
		}
		slices.SortFunc(own, func(a, b shard.ID) int { return cmp.Compare(score(a, w), score(b, w)) })
		for _, s := range own[:len(own)-quota[w]] {
			next[s] = ""
		}
		owned[w] = own[len(own)-quota[w]:]
	}
	type pair struct {
		score  uint64
		shard  shard.ID
		worker string
	}
	var pairs []pair
	room := map[string]int{}
	for _, w := range workers {
		room[w] = quota[w] - len(owned[w])
		for s := range k {
			if room[w] > 0 && next[s] == "" {
				pairs = append(pairs, pair{score(shard.ID(s), w), shard.ID(s), w})
			}
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.shard, b.shard), cmp.Compare(a.worker, b.worker))
	})
	for _, p := range pairs {
		if next[p.shard] == "" && room[p.worker] > 0 {
			next[p.shard] = p.worker
			room[p.worker]--
		}
	}
	return next
}

// quotas sum up to K: K mod n workers have one more than the others.
func quotas(targets, workers []string) map[string]int {
	k, n := len(targets), len(workers)
	load := map[string]int{}
	for _, w := range targets {
		load[w]++
	}
	order := slices.Clone(workers)
	slices.SortFunc(order, func(a, b string) int {
		// Ties are decided by the score of a shard that does not exist, so that no worker is preferred for its
		// name.
		return cmp.Or(cmp.Compare(load[b], load[a]), cmp.Compare(score(shard.Max, b), score(shard.Max, a)), cmp.Compare(a, b))
	})
	q := make(map[string]int, n)
	for i, w := range order {
		q[w] = k / n
		if i < k%n {
			q[w]++
		}
	}
	return q
}

// score is the rendezvous weight of a worker for a shard: the first eight bytes of
// SHA-256 over the shard (four bytes, big-endian) and the worker's name.
func score(s shard.ID, worker string) uint64 {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(worker)), uint32(s))
	h := sha256.Sum256(append(b, worker...))
	return binary.BigEndian.Uint64(h[:8])
}

// Moved returns the shards whose target changed; a shard without a target before did not move.
func Moved(before, after []string) []shard.ID {
	var out []shard.ID
	for i := range before {
		if before[i] != "" && before[i] != after[i] {
			out = append(out, shard.ID(i))
		}
	}
	return out
}
