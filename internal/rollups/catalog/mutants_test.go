package catalog

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs in the reading of copies, and in listings of parts.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Run: "TestCopiesChangeNoView|TestCopiesSaveRequests|TestHoursAreListedAtOnce|TestADenseHourDoesNotSpendTheBudget|TestPartsLeaveRequests|TestDamagedCopiesAreRefused|TestPayloadsOfCopies|TestCopiesOfAnotherAuthority",
		Mutants: []mutants.Mutant{
			{Name: "a copy counts whatever its record is now", File: "copies.go", Old: `x.ETag != "" && x.ETag == l.Info.ETag`, New: `x.ETag != ""`, By: "TestCopiesChangeNoView"},
			{Name: "copies of another authority count", File: "copies.go", Old: "c.AuthorityID != authority || c.Day != day", New: "c.Day != day", By: "TestCopiesOfAnotherAuthority"},
			{Name: "copies are never taken", File: "copies.go", Old: "			if x := copies.Find(l.Name); x != nil", New: "			if x := copies.Find(l.Name); x != nil && false", By: "TestCopiesSaveRequests"},
			{Name: "the hash of copies is not checked", File: "copies_format.go", Old: " || !bytes.Equal(sum[:], b[16:copiesHeader])", New: " || len(sum) == 0", By: "TestDamagedCopiesAreRefused"},
			{Name: "where a compaction stands is not copied", File: "copies.go", Old: "c.Redirect = &Redirect{Name: s.Redirect.Name, Block: s.Redirect.Block}", New: "c.Redirect = nil", By: "TestCopiesChangeNoView"},
			{Name: "a part of the hours ends before its last", File: "listing.go", Old: "n.Hour <= to {", New: "n.Hour < to {", By: "TestHoursAreListedAtOnce"},
			{Name: "the page's last hour is not listed again", File: "listing.go", Old: "StartAfter: page.Next}", New: "StartAfter: layout.BlockManifestsHour(at + 1)}", By: "TestHoursAreListedAtOnce"},
			{Name: "parts overlap", File: "listing.go", Old: "parts[len(parts)-1].to = h - 1", New: "parts[len(parts)-1].to = h", By: "TestHoursAreListedAtOnce"},
			{Name: "an hour that was listed in part counts", File: "listing.go", Old: "return nil, l.from, err", New: "return nil, l.from + 1, err", By: "TestHoursAreListedAtOnce"},
			{Name: "a dense hour makes a request of every hour", File: "listing.go", Old: "if n <= 2*usual {", New: "if n <= 2000*usual {", By: "TestADenseHourDoesNotSpendTheBudget"},
			{Name: "parts take all requests", File: "listing.go", Old: "timegrid.Hour(max(c.left.Load()/4, 1))", New: "timegrid.Hour(max(c.left.Load()*4, 1))", By: "TestPartsLeaveRequests"},
		},
	})
}
