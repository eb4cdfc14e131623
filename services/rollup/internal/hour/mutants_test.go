package hour

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what tells which generation is next, and what it may lose.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "what raw has decided is decided", File: "state.go", Old: "first = min(first, s.Top[res])", New: "_ = res", By: "TestAGenerationThatIsHalfDone"},
		{Name: "what one resolution has decided is decided", File: "state.go", Old: "first = min(first, s.Top[res])", New: "first = max(first, s.Top[res])", By: "TestAnAbortThatWasCutShort"},
		{Name: "one block that covers is enough", File: "state.go", Old: "		if !b.Inputs.Covers(id) {\n			return false", New: "		if !b.Inputs.Covers(id) {\n			return true", By: "TestAGenerationThatIsHalfDone"},
		{Name: "expired blocks cover nothing", File: "state.go", Old: "if in, ok := s.Expired[res]; !ok || !in.Covers(id) {", New: "if true {", By: "TestExpiredBlocksCover"},
		{Name: "expired blocks cover everything", File: "state.go", Old: "if in, ok := s.Expired[res]; !ok || !in.Covers(id) {", New: "if _, ok := s.Expired[res]; !ok {", By: "TestExpiredBlocksCover"},
		{Name: "an expired generation may be aborted", File: "state.go", Old: "if _, expired := s.Expired[res]; expired ||", New: "if", By: "TestExpiredBlocksCover"},
		{Name: "a record that can't be read was aborted", File: "state.go", Old: "return len(s.Damaged) > 0", New: "return false", By: "TestAnAbortThatWasCutShort"},
		{Name: "the newest block is the raw one", File: "state.go", Old: "if b := s.Blocks[res]; b != nil && (newest == nil ||", New: "if b := s.Blocks[min(res, timegrid.Raw)]; b != nil && (newest == nil ||", By: "TestExpiredBlocksCover"},
		{Name: "a request is done at one resolution", File: "state.go", Old: "b == nil || b.Name.Generation <= gen {", New: "b == nil || b.Name.Generation < gen {", By: "TestAGenerationThatIsHalfDone"},
	}})
}
