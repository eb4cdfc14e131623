package epochs

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of the log.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Run: "^Test[^M]|TestMany", Mutants: []mutants.Mutant{
		{Name: "a set is as of a reading that began before", File: "log.go", Old: "		l.asOf = reading\n", New: "		l.asOf = max(reading, l.began+1)\n", By: "TestTheEnd"},
		{Name: "a reading that fails has found the end", File: "log.go", Old: "	reading, set := l.began, l.set\n", New: "	reading, set := l.began, l.set\n	l.asOf = reading\n", By: "TestTheEnd"},
		{Name: "a whole epoch has its own names alone", File: "log.go", Old: "				add = all\n", New: "				_ = all\n", By: "TestManyEpochs"},
		{Name: "an unknown outcome is an error", File: "log.go", Old: "errors.Is(last, objstore.ErrUnknown) || ", New: "", By: "TestTwoCollections"},
		{Name: "epochs of another authority count", File: "log.go", Old: "e.AuthorityID != l.authority {", New: "false {", By: "TestEpochsThat"},
		{Name: "an epoch under another number counts", File: "record.go", Old: "e.Key() != key {", New: "false {", By: "TestEpochsThat"},
		{Name: "an epoch has its own names alone", File: "record.go", Old: "next.names = union(s.names, names)", New: "next.names = names", By: "TestTheFirstEpoch|TestManyEpochs|TestTwoCollections"},
		{Name: "names have no bound", File: "log.go", Old: "next.Everything = len(all) > MaxNames;", New: "next.Everything = false;", By: "TestTooMany"},
	}})
}
