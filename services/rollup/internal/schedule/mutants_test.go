package schedule

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of the times at which hours are due.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "what was begun waits", File: "schedule.go", Old: "if h.Unfinished {", New: "if false {", By: "TestDueAt"},
		{Name: "generations follow each other at once", File: "schedule.go", Old: "if again && since.Add(p.LateAfter).After(at) {", New: "if false {", By: "TestDueAt"},
		{Name: "the generation before does not count", File: "schedule.go", Old: "if again && h.Published.After(since) && !h.Published.After(now) {", New: "if false {", By: "TestDueAt"},
		{Name: "a block of a clock that is ahead counts", File: "schedule.go", Old: "&& !h.Published.After(now) {", New: "{", By: "TestDueAt"},
		{Name: "an early time is taken where it is later", File: "schedule.go", Old: "if why != OnTime && soon.Before(at) {", New: "if why != OnTime {", By: "TestDueAt"},
		{Name: "hours far ahead wait for their end", File: "schedule.go", Old: "case p.FarAhead(h.Hour, now):", New: "case false:", By: "TestDueAt"},
		{Name: "no room is no reason", File: "schedule.go", Old: "case h.Expedited:", New: "case false:", By: "TestDueAt"},
		{Name: "small corrections are steps", File: "schedule.go", Old: "if back > clockStep {", New: "if back > 0 {", By: "TestClock"},
		{Name: "a step is noticed again and again", File: "schedule.go", Old: "	c.last = now\n", New: "	if back <= 0 {\n		c.last = now\n	}\n", By: "TestClock"},
	}})
}
