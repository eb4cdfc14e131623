package snapshots

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what is read from packs.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "packs of frames that retention may have removed are read", File: "packs.go", Old: "if e.MaxTime >= horizon {", New: "if horizon != 0 {"},
		{Name: "a pack is read for a few of its frames", File: "packs.go", Old: "|| uint64(len(of))*worth < ref.Batches", New: ""},
		{Name: "a pack is read for one frame", File: "packs.go", Old: "len(of) < 2", New: "len(of) < 1"},
		{Name: "only what begins a run is in a pack", File: "packs.go", Old: "last := r.Start + (r.Records*r.Batches - 1)", New: "last := r.Start"},
		{Name: "batches that are in no run are in a pack", File: "packs.go", Old: "ref.Inputs.Covers(entries[i].Identity)", New: "ref.Batches > 0"},
		{Name: "the end of a grant ends the next one", File: "snapshots.go", Old: "if l.m.running[l.grant.Shard] == l {", New: "if true {"},
		{Name: "a grant that ended is read from", File: "snapshots.go", Old: "		delete(l.m.running, l.grant.Shard)\n", New: ""},
	}})
}
