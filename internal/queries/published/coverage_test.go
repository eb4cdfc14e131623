package published

import (
	"math"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Ranges join where they touch or overlap, and nowhere else: a number in a hole is one
// of a batch that no block has, and joined it would be read nowhere.
func TestCoverageLeavesHolesOpen(t *testing.T) {
	boot := identity.Boot{Agent: "a", Boot: "b"}
	r := func(start, end uint64) ledger.Range { return ledger.Range{Start: start, End: end} }
	for _, c := range []struct{ batches, want []ledger.Range }{
		{nil, nil},
		{[]ledger.Range{r(0, 9), r(10, 19)}, []ledger.Range{r(0, 19)}},
		{[]ledger.Range{r(0, 9), r(11, 20)}, []ledger.Range{r(0, 9), r(11, 20)}},
		{[]ledger.Range{r(0, 9), r(5, 14), r(16, 16)}, []ledger.Range{r(0, 14), r(16, 16)}},
		{[]ledger.Range{r(0, 99), r(10, 19), r(101, 110)}, []ledger.Range{r(0, 99), r(101, 110)}},
		{[]ledger.Range{r(math.MaxUint64, math.MaxUint64), r(3, 3)}, []ledger.Range{r(3, 3), r(math.MaxUint64, math.MaxUint64)}},
	} {
		var ids []identity.Batch
		for _, b := range c.batches {
			ids = append(ids, identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: b.Start, SeqEnd: b.End})
		}
		ids = append(ids, identity.Batch{Agent: "a", Boot: "c", SeqStart: 0, SeqEnd: 1000})
		in, err := catalog.NewInputs(ids)
		if err != nil {
			t.Fatal(err)
		}
		if got := rangesOf(&catalog.Block{Inputs: in}, boot); !slices.Equal(got, c.want) {
			t.Errorf("%v are covered as %v, want %v", c.batches, got, c.want)
		}
	}
}
