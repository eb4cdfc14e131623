package snapshot

import (
	"math/rand/v2"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func sum(b []byte) identity.Digest { return identity.Sum(b) }

// Whatever comes, groups are within bounds, in order and disjoint; the packs of a long
// chain stay few, and each batch is written a few times.
func TestMergesKeepPacksFew(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	for range 50 {
		meanBatches, meanBytes := 1+rng.Uint64N(400), 1+rng.Uint64N(40<<10)
		var packs []Ref
		var total, written Ref
		for range 500 {
			n := 1 + rng.Uint64N(2*meanBatches)
			r := Ref{Batches: min(n, MaxPackBatches), Bytes: min(n*meanBytes+100, MaxPackBytes)}
			total.Batches, total.Bytes = total.Batches+r.Batches, total.Bytes+r.Bytes
			plan := mergePlan(packs, MaxPackBatches)
			var next []Ref
			in := map[int]int{}
			for g, group := range plan {
				m := Ref{}
				for k, i := range group {
					if _, twice := in[i]; twice || k > 0 && i <= group[k-1] {
						t.Fatalf("plan %v", plan)
					}
					in[i] = g
					m.Batches, m.Bytes = m.Batches+packs[i].Batches, m.Bytes+packs[i].Bytes
				}
				if len(group) < 2 || m.Batches > MaxPackBatches || m.Bytes > MaxPackBytes {
					t.Fatalf("group %v of %+v", group, m)
				}
				written.Batches += m.Batches
				next = append(next, m)
			}
			for i := range packs {
				if _, ok := in[i]; !ok {
					next = append(next, packs[i])
				}
			}
			packs = append(next, r)
		}
		small := 0
		for i := range packs {
			if tier(&packs[i], MaxPackBatches) < full {
				small++
			}
		}
		if small > 3*(fan+1) {
			t.Errorf("%d small packs", small)
		}
		bound := 2*int(total.Bytes/MaxPackBytes+total.Batches/MaxPackBatches) + 3*(fan+1)
		if len(packs) > bound {
			t.Errorf("%d packs of %d batches and %d bytes, bound %d", len(packs), total.Batches, total.Bytes, bound)
		}
	}
}
