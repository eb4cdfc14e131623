package claims_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of the linearizer's core. Those that the simulation is to find name it.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Skip: "Mutants", Env: []string{"CLAIMS_SIM_SCHEDULES=1500"}, Timeout: 5 * time.Minute, Mutants: []mutants.Mutant{
		// Guards: what an answer was decided by is still so.
		{Name: "transactions do not compare the epoch", File: "flight.go", Old: "Txn: Txn{Guards: []Guard{{Key: g.keys.Epoch(), Is: Holds, Value: g.mark}}}", New: "Txn: Txn{}", By: "TestSimulation"},
		{Name: "the heads are not compared", File: "part.go", Old: "Guard{Key: d.keys.heads, Is: Modified, Revision: d.base.headsAt}", New: "Guard{Key: d.keys.heads + \"0\", Is: Absent}", By: "TestSimulation|TestFolding"},
		{Name: "what was forgotten since is not compared", File: "part.go", Old: "p.Guards = append(p.Guards, Guard{Key: d.keys.forgotten, Is: NotSince, Revision: d.looked})", New: "", By: "TestSimulation|TestForgetting"},
		{Name: "a boot with claims is forgotten", File: "part.go", Old: "p.Guards = append(p.Guards, Guard{Key: d.keys.from, End: d.keys.end, Is: Absent})", New: "", By: "TestForgettingIsGuarded"},
		{Name: "that a boot was forgotten is not written", File: "part.go", Old: "p.Puts = append(p.Puts, Put{Key: d.keys.forgotten, Value: []byte{version}})", New: "", By: "TestSimulation|TestForgetting"},
		{Name: "a claim is not compared", File: "part.go", Old: "Is: Modified, Revision: r.modified})", New: "Is: Modified, Revision: r.modified})\n		p.Guards = p.Guards[:len(p.Guards)-1]", By: "TestSimulation"},
		{Name: "the claim before a gap is not compared", File: "part.go", Old: "Is: Created, Revision: c.created})", New: "Is: Created, Revision: c.created})\n			p.Guards = p.Guards[:len(p.Guards)-1]", By: "TestTheClaimBefore"},
		{Name: "a gap may be filled", File: "part.go", Old: "p.Guards = append(p.Guards, Guard{Key: from, End: d.keys.afterClaim(g.end), Is: Absent})", New: "", By: "TestSimulation"},
		{Name: "a gap ends before the claim's end", File: "part.go", Old: "gap{before, id.SeqEnd}", New: "gap{before, id.SeqStart}", By: "TestSimulation"},
		{Name: "the last of two gaps counts", File: "part.go", Old: "max(d.gaps[i].end, id.SeqEnd)", New: "id.SeqEnd", By: "TestSimulation"},
		{Name: "operations that meet share a part", File: "part.go", Old: "d.alone || slices.ContainsFunc(d.touched, spanOf(id).meets)", New: "d.alone", By: "TestSimulation|TestOneBoot"},
		{Name: "a claim is remembered without its fence", File: "part.go", Old: "c.Stamp.Fence = uint64(revision)", New: "_ = revision", By: "TestSimulation"},
		// Decisions.
		{Name: "a claim of another hash is a conflict", File: "decide.go", Old: "case c.Hash != op.Hash:\n		return d.answer(Contested, c)", New: "case c.Hash != op.Hash:\n		return d.answer(Conflict, c)", By: "TestSimulation|TestLife"},
		{Name: "a range that is claimed is a conflict", File: "decide.go", Old: "return d.answer(Contested, by.Claim)", New: "return d.answer(RangeConflict, by.Claim)", By: "TestSimulation"},
		{Name: "hashes are not compared", File: "decide.go", Old: "case c.Hash != op.Hash && c.final():\n		return d.answer(Conflict, c)\n	case c.Hash == op.Hash && c.State", New: "case c.State", By: "TestSimulation"},
		{Name: "somebody else's claim is held", File: "decide.go", Old: "case c.ID == op.ID && c.Home == op.Region:\n		return d.answer(Held, c) // the answer was lost\n	// Nobody", New: "case true:\n		return d.answer(Held, c)\n	// Nobody", By: "TestSimulation"},
		{Name: "another region holds the claim", File: "decide.go", Old: "	case c.ID == op.ID && c.Home == op.Region:\n		return d.answer(Held, c) // the answer was lost\n	// Nobody", New: "	case c.ID == op.ID:\n		return d.answer(Held, c)\n	// Nobody", By: "TestLife"},
		{Name: "a take-over expects nobody", File: "decide.go", Old: "c.Hash != op.Hash || c.ID != op.Expect || ", New: "c.Hash != op.Hash || ", By: "TestSimulation|TestTakeOver"},
		{Name: "a recovered claim goes to another region", File: "decide.go", Old: "case c.Recovered:\n\t\treturn d.answer(Contested, c)\n\t}\n\tc.ID", New: "case false:\n\t\treturn d.answer(Contested, c)\n\t}\n\tc.ID", By: "TestRecovered"},
		{Name: "what is folded of a retired region is not bound", File: "decide.go", Old: "Bound: op.Looked.Bound,", New: "", By: "TestBound"},
		{Name: "the home region waits for a recovered claim", File: "decide.go", Old: "case c.Recovered && c.Home == op.Region:", New: "case false:", By: "TestRecovered"},
		{Name: "a recovered claim is another region's too", File: "decide.go", Old: "case c.Recovered && c.Home == op.Region:", New: "case c.Recovered:", By: "TestRecovered"},
		{Name: "a recovered claim is released", File: "decide.go", Old: "c.State != Claimed || c.Recovered {", New: "c.State != Claimed {", By: "TestRecovered"},
		{Name: "a recovered claim is replaced", File: "decide.go", Old: "case c.Recovered || c.Bound:", New: "case c.Bound:", By: "TestRecovered"},
		{Name: "a bound claim is replaced", File: "decide.go", Old: "case c.Recovered || c.Bound:", New: "case c.Recovered:", By: "TestBound"},
		{Name: "another hash has what is bound", File: "decide.go", Old: "case c.State != Claimed || c.Hash != op.Hash && c.Bound:", New: "case c.State != Claimed:", By: "TestBound"},
		{Name: "a durable claim is taken over", File: "decide.go", Old: "c.ID != op.Expect || c.State != Claimed:", New: "c.ID != op.Expect:", By: "TestSimulation|TestLife"},
		{Name: "anybody's claim is completed", File: "decide.go", Old: "if c.Hash != op.Hash || c.State != Claimed || c.ID != op.ID || c.Home != op.Region {\n		return d.found(op, c)\n	}\n	c.State, c.DurableAt", New: "if c.Hash != op.Hash || c.State != Claimed || c.Home != op.Region {\n		return d.found(op, c)\n	}\n	c.State, c.DurableAt", By: "TestSimulation|TestTakeOver|TestLife"},
		{Name: "a replaced claim is completed for the old hash", File: "decide.go", Old: "if c.Hash != op.Hash || c.State != Claimed || c.ID != op.ID || c.Home != op.Region {\n		return d.found(op, c)\n	}\n	c.State, c.DurableAt", New: "if c.State != Claimed || c.ID != op.ID || c.Home != op.Region {\n		return d.found(op, c)\n	}\n	c.State, c.DurableAt", By: "TestTakeOver"},
		{Name: "any region completes", File: "decide.go", Old: "if c.Hash != op.Hash || c.State != Claimed || c.ID != op.ID || c.Home != op.Region {\n		return d.found(op, c)\n	}\n	c.State, c.DurableAt", New: "if c.Hash != op.Hash || c.State != Claimed || c.ID != op.ID {\n		return d.found(op, c)\n	}\n	c.State, c.DurableAt", By: "TestLife"},
		{Name: "a claim is completed in another epoch", File: "decide.go", Old: "op.Kind != DoClaim && op.Epoch != d.epoch.Number", New: "false", By: "TestSimulation|TestOldEpochs"},
		{Name: "a durable claim is released", File: "decide.go", Old: "c.State != Claimed || c.Recovered {", New: "c.Recovered {", By: "TestSimulation|TestLife"},
		{Name: "anybody's claim is released", File: "decide.go", Old: "if c.ID != op.ID || c.Hash != op.Hash || c.State != Claimed || c.Rec", New: "if c.Hash != op.Hash || c.State != Claimed || c.Rec", By: "TestSimulation|TestTakeOver"},
		{Name: "durable claims are folded unsettled", File: "heads.go", Old: "if s.State == Settled && s.DurableAt", New: "if s.State != Claimed && s.DurableAt", By: "TestSimulation|TestFolding"},
		{Name: "claims are folded before their time", File: "heads.go", Old: " && s.DurableAt < before && ", New: " && ", By: "TestFolding"},
		{Name: "claims that have changed are folded", File: "decide.go", Old: "!there || d.base.claims[i].Claim != c {", New: "!there || i < 0 {", By: "TestSimulation|TestFolding"},
		{Name: "heads that others have moved are noted", File: "decide.go", Old: "if d.base.headsAt != op.Base && !noted {", New: "if false {", By: "TestSimulation|TestFolding"},
		{Name: "any head has everything", File: "heads.go", Old: "return there && g >= o.Generation", New: "return there || g > 0", By: "TestSimulation|TestFolding"},
		{Name: "a head of another region has everything", File: "heads.go", Old: "return there && g >= o.Generation", New: "return !there || g >= o.Generation", By: "TestSimulation|TestFolding"},
		{Name: "what was looked at before is enough", File: "heads.go", Old: "l.Since > 0 && l.Since >= f.Forgotten && ", New: "l.Since > 0 && ", By: "TestForgetting"},
		{Name: "what was looked at in another epoch is enough", File: "heads.go", Old: " && l.Epoch == f.Epoch\n", New: "\n", By: "TestSimulation|TestForgetting"},
		{Name: "what is folded is free", File: "decide.go", Old: "	if !d.seen(op.Identity, op.Looked) {", New: "	if d.seen(op.Identity, op.Looked); false {", By: "TestSimulation"},
		{Name: "nothing is folded from the first number on", File: "part.go", Old: "d.heads.Marshal(d.above)", New: "d.heads.Marshal(0)", By: "TestSimulation|TestFolding"},
		{Name: "above every number is free", File: "decide.go", Old: " && from != math.MaxUint64", New: " && math.MaxUint64 > 0", By: "TestAboveEverything"},
		{Name: "claims that end above what is folded are free", File: "decide.go", Old: "return id.SeqStart >= from", New: "return id.SeqEnd >= from", By: "TestSimulation|TestFolding"},
		{Name: "a partial view decides", File: "decide.go", Old: "if !d.base.knows(op.Identity) {", New: "if false {", By: "TestMany"},
		{Name: "one transaction forgets several boots by one key", File: "flight.go", Old: "forgotten[l.keys.forgotten] = true", New: "_ = forgotten", By: "TestForgettingOf"},
		// Grouping.
		{Name: "a boot is in two transactions", File: "group.go", Old: "if l.ready || l.flying || len(l.ops) == 0 {", New: "if l.ready || len(l.ops) == 0 {", By: "TestSimulation|TestGrouping"},
		{Name: "a store that forgot is believed", File: "flight.go", Old: "case r.Revision < floor:", New: "case false:", By: "TestAStore"},
		{Name: "a store that forgot one revision is believed", File: "flight.go", Old: "return f.floor + 1", New: "return f.floor", By: "TestAStore"},
		{Name: "another cluster is believed", File: "flight.go", Old: "case g.cfg.Cluster != 0 && r.Cluster != g.cfg.Cluster:", New: "case false:", By: "TestAStore"},
		{Name: "an unknown outcome is none", File: "flight.go", Old: "	unknown := errors.Is(err, ErrUnknown)\n	if unknown {\n		g.views.Remove(p.line.keys.boot)\n	}", New: "	unknown := true\n	if unknown {\n		err = ErrUnavailable\n	}", By: "TestLost"},
		{Name: "an operation is overtaken for ever", File: "flight.go", Old: "w.tries++; w.tries < g.cfg.MaxTries && !w.canceled", New: "!w.canceled", By: "TestOvertaken"},
		{Name: "a boot that has changed stays as it was known", File: "flight.go", Old: "	g.views.Remove(p.line.keys.boot)\n	err := g.stopped", New: "	err := g.stopped", By: "TestSimulation|TestOvertaken|TestTheClaimBefore"},
		{Name: "what was read is forgotten", File: "flight.go", Old: "r.Reads); err == nil {\n			g.views.Put(p.line.keys.boot, p.line.view, p.line.view.weight())", New: "r.Reads); err == nil {\n			g.views.Put(p.line.keys.boot, p.line.view, p.line.view.weight())\n			p.line.view = nil", By: "TestSimulation"},
		{Name: "a stopped group keeps what waits", File: "flight.go", Old: "		done = append(done, g.Stop(fmt.Errorf(\"%w: %w\", ErrEpoch, err))...)", New: "		g.stopped = ErrEpoch", By: "TestTheEpoch"},
		{Name: "a region gives up another's claim", File: "decide.go", Old: "if op.Region != \"\" && c.Home != op.Region {", New: "if false {", By: "Test[A-RT-Z]"},
		{Name: "a wide part is not counted", File: "flight.go", Old: "p.draft.size()+need > room", New: "need < 0", By: "TestFull"},
	}})
}
