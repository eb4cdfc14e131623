package accept_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsOfGlobalAreCaught plants a bug at each guard of the acceptance over several regions.
func TestMutantsOfGlobalAreCaught(t *testing.T) {
	const f = "global.go"
	mutants.Check(t, mutants.List{
		// The simulation finds them within some schedules; a run that is cut short would prove nothing.
		Run: "^TestGlobalSimulation$", Env: []string{"ACCEPT_GLOBAL_SEEDS=3000"}, Timeout: 5 * time.Minute,
		Mutants: []mutants.Mutant{
			{Name: "an earlier manifest is not affirmed", File: f, Old: "	if res.Manifest.Stamp().Compare(claim.Stamp) < 0 {", New: "	if false {"},
			{Name: "a claim that has moved on is answered", File: f, Old: "	case a.Outcome != ClaimDecided || a.Claim.Home != c.cfg.Region:", New: "	case false:"},
			{Name: "a claim of another region is used without a take-over", File: f, Old: "	case there.Home == c.cfg.Region:", New: "	case true:"},
			{Name: "what is durable elsewhere is answered before it is settled", File: f, Old: "		if a.Claim.Home != c.cfg.Region && !a.Claim.Settled {", New: "		if false {"},
			{Name: "a claim is a conflict", File: f, Old: "	return a, c.p.retry(ReasonClaimContested, fmt.Errorf(\"another claim stands in the way: %s of region %s\", a.Claim.Identity, a.Claim.Home))", New: "	a.Outcome = ClaimConflict\n	return a, nil"},
			{Name: "the marker is not read", File: f, Old: "	return c.b.verifyNotCondemned(ctx)\n", New: "	return nil\n"},
			{Name: "the marker of a frame that lost is not read", File: f, Old: "	if !carried {\n		if err := c.b.verifyNotCondemned(ctx)", New: "	if false {\n		if err := c.b.verifyNotCondemned(ctx)"},
			{Name: "the hash of a bound claim is replaced", File: f, Old: "if claim.Fixed || claim.Bound {", New: "if claim.Fixed {", By: "TestBound"},
			{Name: "the key's other frame is not looked at", File: f, Old: "	if res.Outcome == Conflict {\n		return Result{}, c.replace(", New: "	if false {\n		return Result{}, c.replace("},
			{Name: "a batch elsewhere has this region as its home", File: f, Old: "m.ClaimFence = claim.Home, ", New: "m.ClaimFence = c.cfg.Region, "},
			{Name: "a batch elsewhere counts here", File: f, Old: "m.Entry(journal.Elsewhere)", New: "m.Entry(journal.Duplicate)"},
			{Name: "the manifest has a stamp that no claim had", File: f, Old: "claim.Claim.Stamp.Epoch, claim.Claim.Stamp.Fence\n", New: "claim.Claim.Stamp.Epoch, ^uint64(0)\n"},
			{Name: "what this region has is elsewhere", File: f, Old: "	if claim.Claim.Home == g.cfg.Region {\n		return c.again(", New: "	if false {\n		return c.again("},
			{Name: "a manifest without the frame needs no blob", File: f, Old: "	if c.inline {\n		// A collector that writes blobs", New: "	if false {\n		// A collector that writes blobs", By: "TestGlobalInlineNeedsABlob"},
			{Name: "a record of the conflict without the frame needs no blob", File: f, Old: "	if c.inline && !carried {", New: "	if false {", By: "TestGlobalInlineNeedsABlob"},
			{Name: "the answer does not wait for the journal", File: f, Old: "	return c.p.awaitEntry(ctx, t)\n", New: "	_ = t\n	return journal.Position{}, nil\n"},
			{Name: "the blob is not written", File: f, Old: "	if !c.inline {\n		if err := c.b.ensure(ctx); err != nil {", New: "	if false {\n		if err := c.b.ensure(ctx); err != nil {"},
			{Name: "a conflict does not name the identity that it meets", File: f, Old: "if a.Outcome == ClaimRangeConflict {", New: "if false {", By: "TestGlobal$"},
			{Name: "the record of a conflict does not name it", File: "decide.go", Old: ", Met: res.Met,", New: ",", By: "TestGlobal$"},
			{Name: "the claim is not completed", File: f, Old: "	switch {\n	case err != nil:\n		return Result{}, err\n	case a.Outcome", New: "	a, err = ClaimAnswer{Outcome: ClaimDecided, Claim: claim}, nil\n	switch {\n	case err != nil:\n		return Result{}, err\n	case a.Outcome"},
		},
	})
}
