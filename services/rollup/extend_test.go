package rollup

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// TestExtendedGenerationIsTheWholeOne: chunk for chunk, byte for byte, whatever came late.
func TestExtendedGenerationIsTheWholeOne(t *testing.T) {
	extended := 0.0
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		w := newWorld(t, newMem())
		svc := w.worker(testConfig(), w.store)
		o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 1})
		must(t, err)
		agents := []string{agentOf(0, 0), agentOf(0, 1)}
		next := map[string]uint64{}
		for gen := range uint64(4) {
			for range 3 + rnd.IntN(8)*int(4-gen) {
				agent := agents[rnd.IntN(2)]
				var ps []point
				for i := range 1 + rnd.IntN(3) {
					ps = append(ps, point{fmt.Sprint("m", i), series.Type(1 + i%2), at(hour0, time.Duration(rnd.IntN(3700))*time.Second), float64(rnd.IntN(50))})
				}
				over := identity.Batch{Agent: agent, Boot: "b", SeqStart: next[agent] - 1, SeqEnd: next[agent] + uint64(len(ps)) - 2}
				if _, taken := w.frames[over]; rnd.IntN(40) == 0 && next[agent] > 0 && !taken {
					next[agent]-- // an overlap
				}
				next[agent] = w.accept(agent, next[agent], ps...).SeqEnd + 1
			}
			must(t, rounds(t.Context(), o))
			w.advance(time.Hour)
			must(t, rounds(t.Context(), o))
			w.check(hour0, 0, gen+1)
		}
		extended += testutil.ToFloat64(svc.m.Extended)
		p, err := w.planOf(svc, 4)
		must(t, err)
		all, err := w.workers[svc].builder.Build(t.Context(), p, nil, timegrid.Resolutions(), func() error { return nil })
		must(t, err)
		pub := w.state(svc, hour0, 0)
		for _, res := range timegrid.Resolutions() {
			of := pub.Blocks[res]
			if len(of.Objects) != len(all.Outputs[res]) {
				t.Fatalf("seed %d, %s: %d objects, want %d", seed, res, len(of.Objects), len(all.Outputs[res]))
			}
			for i, obj := range of.Objects {
				body, err := block.From(w.store).Chunk(t.Context(), &obj)
				must(t, err)
				want, err := all.Outputs[res][i].Chunk.Load()
				must(t, err)
				if !bytes.Equal(body, want) {
					t.Errorf("seed %d, %s: chunk %d differs", seed, res, i)
				}
			}
			if c := of.Counts; c.Published != all.Counts.Published || c.Duplicates != all.Counts.Duplicates || c.Overlapped != all.Counts.Overlapped {
				t.Errorf("seed %d: counts %+v, want %+v", seed, c, all.Counts)
			}
		}
	}
	if extended == 0 {
		t.Error("no generation was extended")
	}
	t.Logf("%v generations were extended", extended)
}
