package live

import (
	"math/rand/v2"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestLossesAreBounded: beyond the bound losses become coarse spans that hold all of them,
// and what a block holds afterwards takes none of those back.
func TestLossesAreBounded(t *testing.T) {
	const seed = 4
	rnd := rand.New(rand.NewPCG(seed, 1))
	l := losses{max: maxLossBytes}
	n := maxLossBytes / lossRunBytes * 2
	times := make([]int64, n)
	for i := range times {
		times[i] = rnd.Int64N(1 << 40)
		b := &batch{minT: times[i], maxT: times[i], hours: []timegrid.Hour{timegrid.HourOf(times[i])}}
		b.Identity = identity.Batch{Agent: "a", Boot: "b", SeqStart: uint64(10 * i), SeqEnd: uint64(10*i + 2)} // gaps: no runs
		l.add(b)
	}
	if l.bytes > maxLossBytes || len(l.coarse) == 0 || len(l.coarse) > maxCoarseSpans {
		t.Fatalf("%d bytes, %d coarse spans", l.bytes, len(l.coarse))
	}
	check := func(from int) {
		t.Helper()
		p := Snapshot{lost: l.spans()}
		for i, s := range p.lost[1:] {
			if s.Min <= p.lost[i].Max {
				t.Fatalf("span %d meets the one before", i+1)
			}
		}
		for _, at := range times[from:] {
			if _, ok := p.Lost(at, at); !ok {
				t.Fatalf("%d is not reported", at)
			}
		}
	}
	check(0)
	coarse := len(l.coarse)
	l.forget(func(identity.Batch, []timegrid.Hour) bool { return true })
	if l.bytes != 0 || len(l.runs) != 0 || len(l.coarse) != coarse {
		t.Errorf("%d bytes, %d runs, %d coarse spans of %d are left", l.bytes, len(l.runs), len(l.coarse), coarse)
	}
	check(n/2 + n/8) // those that became coarse
}
