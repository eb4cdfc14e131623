package scrub

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of the scrub's record: who has a chunk, where it goes on, and when a pass ends.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Mutants: []mutants.Mutant{
			{Name: "a chunk is taken while its lease lasts", File: "scrub.go", Old: "k.Claim == c.Claim || now", New: "true || now"},
			{Name: "a chunk of a dead process is never taken", File: "scrub.go", Old: "k.Claim == c.Claim || now.Sub(time.Unix(k.At, 0)) >= c.Lease", New: "k.Claim == c.Claim"},
			{Name: "a chunk is nobody's after a takeover", File: "scrub.go", Old: "k.First == j.First && k.Claim == c.Claim", New: "k.First == j.First"},
			{Name: "a restart begins again", File: "scrub.go", Old: "r.Chunks[i].Done, r.Chunks[i].At = j.Done, now.Unix()", New: "r.Chunks[i].At = now.Unix()"},
			{Name: "the order of merged files is trusted", File: "scrub.go", Old: "k.Done, k.Bytes, k.Suspects, k.Key = 0, 0, 0, files[0].Key", New: "k.Key = files[0].Key"},
			{Name: "a pass ends while others work on it", File: "scrub.go", Old: "len(files) == 0 && len(r.Chunks) == 0 && now", New: "len(files) == 0 && now"},
			{Name: "there is one pass only", File: "scrub.go", Old: ">= c.Period {", New: "< 0 {"},
			{Name: "passes follow at once", File: "scrub.go", Old: "now.Sub(time.Unix(r.BeganAt, 0)) >= c.Period", New: "true"},
			{Name: "the record of a newer release is replaced", File: "scrub.go", Old: "		if err != nil && !absent && !errors.Is(err, record.ErrCorrupt) {", New: "		if false {"},
			{Name: "a pass never ends", File: "scrub.go", Old: "r.EndedAt, ok = now.Unix(), false", New: "ok = false", By: "TestPassesEnd"},
			{Name: "a pass that goes on counts as the last one", File: "scrub.go", Old: "r.EndedAt == 0 && r.Last != nil", New: "false", By: "TestPassesEnd"},
			{Name: "a released chunk waits for its lease", File: "scrub.go", Old: "			r.Chunks[i].At = 0\n", New: "			_ = 0\n"},
		},
	})
}
