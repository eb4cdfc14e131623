package forward

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of the reconciler's steps, which the simulation or a test of this package must find.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Mutants: []mutants.Mutant{
			{Name: "a manifest of an earlier stamp is not affirmed", File: "forward.go", Old: "		created, err := f.affirm(ctx, m, c)\n", New: "		created, err := false, error(nil)\n", By: "TestSimulation"},
			{Name: "the affirmation has the manifest's stamp", File: "affirm.go", Old: "FrameSHA256: m.FrameSHA256, Stamp: c.Stamp,", New: "FrameSHA256: m.FrameSHA256, Stamp: m.Stamp(),", By: "TestSimulation"},
			{Name: "the frame is not looked at", File: "forward.go", Old: "	lost, err := f.keep(ctx, c.Identity)", New: "	lost, err := \"\", error(nil)", By: "TestSimulation"},
			{Name: "a condemned generation counts", File: "../../acceptance/accept/standing.go", Old: "	if err != nil || condemned {\n		return false, err\n	}\n", New: "	if err != nil || condemned && gen > 1000 {\n		return false, err\n	}\n", By: "TestSimulation"},
			{Name: "a claim without a manifest is kept", File: "forward.go", Old: "		return r.as(Stuck, \"it was recovered from a manifest that is not there any more\"), nil\n	}\n	return f.release(ctx, r, c)", New: "		return r.as(Stuck, \"it was recovered from a manifest that is not there any more\"), nil\n	}\n	return r.as(Moved, \"\"), nil", By: "TestSimulation"},
			{Name: "a claim of another frame than the key's is released", File: "forward.go", Old: "	a, err := f.change(ctx, claims.DoReplace, c, m.FrameSHA256)\n", New: "	a, err := f.change(ctx, claims.DoRelease, c, c.Hash)\n", By: "TestSimulation"},
			{Name: "a claim is settled before its entry is durable", File: "finish.go", Old: "	if err := run.Close(ctx); err != nil {\n		return 0, err\n	}\n	// Only now", New: "	_ = run.Close(ctx)\n	// Only now", By: "TestSimulation"},
			{Name: "what is durable is settled without an entry", File: "finish.go", Old: "		if _, err := run.Add(r.Entry); err != nil {\n			return 0, err\n		}\n", New: "", By: "TestSimulation"},
			{Name: "what is durable is left", File: "forward.go", Old: "	case c.State == claims.Durable:\n		return f.durable(Durable, r, m, c), nil\n", New: "	case c.State == claims.Durable:\n		return r.as(Moved, \"\"), nil\n", By: "TestSimulation"},
			{Name: "a secondary copy is entered", File: "ask.go", Old: "		if c.Home != f.cfg.Region {\n			return Asked{Verdict: Secondary, Home: c.Home}, nil\n		}\n", New: "", By: "TestSimulation"},
			{Name: "a manifest that nobody decided is entered", File: "ask.go", Old: "	return Asked{Verdict: Open}, nil", New: "	r := f.durable(Durable, Result{}, m, c)\n	return Asked{Verdict: Ours, Entry: r.Entry, Claim: r.Claim}, nil", By: "TestSimulation"},
			{Name: "a loser is not quarantined", File: "ask.go", Old: "		e, err := f.quarantine(ctx, m, c)\n", New: "		e, err := journal.Entry{}, error(nil)\n", By: "TestSimulation"},
			{Name: "an entry has the home of nobody", File: "forward.go", Old: "	r.Entry.HomeRegion, r.Entry.ClaimEpoch = string(f.cfg.Region), c.Stamp.Epoch\n", New: "	r.Entry.HomeRegion, r.Entry.ClaimEpoch = m.HomeRegion, c.Stamp.Epoch\n", By: "TestEntries"},
			{Name: "a claim that moved on counts as completed", File: "forward.go", Old: "	case a.Outcome != claims.Decided || a.Claim.Home != f.cfg.Region:", New: "	case a.Outcome != claims.Decided && a.Outcome != claims.Moved:", By: "TestSimulation"},
			{Name: "the hash of what is bound is replaced", File: "forward.go", Old: "	case c.Bound:\n		r.Why", New: "	case false:\n		r.Why", By: "TestBound|TestSimulation"},
			{Name: "what was recovered is stuck without its frame, and what was not as well", File: "forward.go", Old: "	case lost != \"\" && !c.Recovered:", New: "	case lost != \"\" && false:", By: "TestSimulation"},
		},
	})
}
