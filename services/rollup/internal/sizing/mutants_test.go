package sizing

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what fits an hour into memory.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "a part more may be enough", File: "sizing.go", Old: "a.Parts*factor)", New: "a.Parts+factor/factor)", By: "TestResize"},
		{Name: "a death is like an overflow", File: "sizing.go", Old: "factor = manyParts", New: "factor = moreParts", By: "TestResize"},
		{Name: "a repair request may lose agents", File: "sizing.go", Old: "if !a.KeepAll {", New: "if true {", By: "TestResize"},
		{Name: "what a block holds is set aside", File: "sizing.go", Old: "if !a.Held(e) {", New: "if true {", By: "TestResize"},
		{Name: "an agent with nothing new is set aside", File: "sizing.go", Old: "if fresh[z.Agent] == 0 {", New: "if false {", By: "TestResize"},
		{Name: "small agents are set aside", File: "sizing.go", Old: "&& mine >= l.Hour()/largeShare {", New: "{", By: "TestResize"},
		{Name: "after a death all agents are set aside", File: "sizing.go", Old: "if len(out) == 0 && a.Died ||", New: "if a.Died ||", By: "TestResize"},
		{Name: "a plan that is the same is made again", File: "sizing.go", Old: "return d, len(d.SetAside) > 0 || d.Parts != a.Parts", New: "return d, true", By: "TestResize"},
		{Name: "what a block holds is left out", File: "sizing.go", Old: "return setAside(e.Agent) && !a.Held(e)", New: "return setAside(e.Agent)", By: "TestKeep"},
		{Name: "what was learned does not count", File: "sizing.go", Old: "l.partsOf(int64(perRecord*float64(records)))", New: "1", By: "TestParts"},
	}})
}
