package audit

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of audits: what a cursor passes over, who works on a shard, what counts as known,
// which boots have news, and when the journal may be called complete.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Mutants: []mutants.Mutant{
			{Name: "the cursor passes over what is not durable", File: "pass.go", Old: "	if err := p.resolve(ctx); err != nil {\n		return err\n	}\n	p.requests = 0", New: "	p.requests = 0", By: "TestFirst|TestKilled"},
			{Name: "no poll before an entry is written", File: "pass.go", Old: "	if _, err := p.follower.Poll(ctx); err != nil {\n		return err\n	}\n	for _, m", New: "	for _, m", By: "TestLateEntry"},
			{Name: "a shard is taken while its lease lasts", File: "auditor.go", Old: "now.Sub(time.Unix(s.UpdatedAt, 0)) < a.Lease:", New: "now.Sub(time.Unix(s.UpdatedAt, 0)) < 0:", By: "TestShardsAreShared"},
			{Name: "a shard of a dead process is never taken", File: "auditor.go", Old: "case s.Claim != a.claim && now", New: "case s.Claim != a.claim || now", By: "TestShardsAreShared|TestKilled"},
			{Name: "a shard begins before it is due", File: "auditor.go", Old: "		if now.Before(r.DueAt(i)) {", New: "		if now.Before(r.DueAt(0)) {", By: "TestShardsBegin"},
			{Name: "the journal is complete after a shard", File: "auditor.go", Old: "		if !shards[i].Finished() {\n			return false, nil\n		}\n", New: "", By: "TestFinish"},
			{Name: "the last shard has no end", File: "record.go", Old: "	if shard < len(r.Bounds) {", New: "	if false {", By: "TestShardsAreShared"},
			{Name: "a record is moved by whoever comes", File: "auditor.go", Old: "case gerr == nil && errors.Is(err, objstore.ErrPreconditionFailed):", New: "case false:", By: "TestTwoAuditors"},
			{Name: "what a pass leaves out is not read again", File: "scopes.go", Old: "			at = p.known.end()\n", New: "			at = until\n", By: "TestKilled|TestPasses"},
			{Name: "news are those since the last audit", File: "auditor.go", Old: "		return news[1].Through, nil", New: "		return news[0].Through, nil", By: "TestNewsAreFound"},
			{Name: "boots that the journal does not know have no news", File: "scopes.go", Old: "err == nil && !n.hasAccepted && (", New: "err != nil && !n.hasAccepted && (", By: "TestNewsAreFound"},
			{Name: "nothing comes before the first new batch", File: "scopes.go", Old: "			first = p.a.Ledgers.GapBefore(b, first)", New: "			first = max(first, p.a.Ledgers.GapBefore(b, first))", By: "TestNewsAreFound"},
			{Name: "what the ledgers know is written again", File: "pass.go", Old: "p.a.Ledgers != nil && p.a.Ledgers.Seen(id)", New: "p.a.Ledgers == nil", By: "TestLateBatch"},
			{Name: "a boot that was begun counts as listed", File: "scopes.go", Old: "p.s.Cursor < end {", New: "p.s.Cursor < layout.BootFrom(f.prefix, b.Boot, 0) {", By: "TestKilledNews|TestLongBoot"},
			{Name: "segments that are not folded are no news", File: "pass.go", Old: "	if p.follower, err = p.known.follow(p.a, head.Positions()); err != nil {\n		return err\n	}\n	_, err = p.follower.Poll(ctx)", New: "	if p.follower, err = p.known.follow(p.a, head.Positions()); err != nil {\n		return err\n	}", By: "TestNewsAreFound"},
			{Name: "derived keys of the last groups are not wanted", File: "derived.go", Old: "		until := cmp.Or(w.until, end)", New: "		until := end", By: "TestDerived|TestKilledDerived"},
			{Name: "derived keys of conflicts are not wanted", File: "derived.go", Old: "e.Outcome.Conflict() != w.x.conflicts {", New: "e.Outcome.Conflict() {", By: "TestDerived"},
			{Name: "a missing key is reported for each entry of its batch", File: "derived.go", Old: "	delete(m, f)\n	w.count--\n", New: "	w.count--\n", By: "TestDerived"},
			{Name: "what is missing is nobody's", File: "derived.go", Old: "	if w.count == 0 {", New: "	if w.count >= 0 {", By: "TestDerived"},
			{Name: "an audit proves completeness whatever is dropped later", File: "auditor.go", Old: "Audit: key, Head: r.Through}", New: "Audit: key, Head: ^uint64(0)}", By: "TestADropped|TestLosses"},
			{Name: "an audit that could not read a manifest proves that a dropped file is entered again", File: "auditor.go", Old: "head.Lost == 0 || r.Unread == 0", New: "true", By: "TestADamagedManifest"},
			{Name: "an audit of a journal before this one proves completeness", File: "auditor.go", Old: "r.Through > head.Number:", New: "false:", By: "TestADropInAJournal"},
			{Name: "segments count whose file was dropped", File: "pass.go", Old: "	if p.follower, err = p.known.follow(p.a, head.Positions()); err != nil {", New: "	if p.follower, err = p.known.follow(p.a, journal.Positions{}); err != nil {", By: "TestADropped|TestLosses"},
			{Name: "a copy of another region's batch is entered", File: "judge.go", Old: "		p.s.CopyBytes += m.FrameBytes\n		return nil", New: "		p.s.CopyBytes += m.FrameBytes\n		j.Entry = m.Entry(journal.AuditedAccepted)", By: "TestManifestsOfSeveralRegions"},
			{Name: "what nobody has decided is entered", File: "judge.go", Old: "		p.s.Undecided++\n		return nil", New: "		p.s.Undecided++\n		j.Entry = m.Entry(journal.AuditedAccepted)", By: "TestManifestsOfSeveralRegions"},
			{Name: "an audit goes on without the linearizer", File: "judge.go", Old: "	if err != nil {\n		return err\n	}\n	switch j.Finding {", New: "	if err != nil {\n		return nil\n	}\n	switch j.Finding {", By: "TestManifestsOfSeveralRegions"},
			{Name: "a batch is settled before its entry is durable", File: "pass.go", Old: "	for p.a.Writer.Waiting() > 0 {", New: "	for p.settle(ctx); p.a.Writer.Waiting() > 0; {", By: "TestManifestsOfSeveralRegions"},
			{Name: "a loser gets an entry in each audit", File: "judge.go", Old: "p.known.has(id, m.FrameSHA256)", New: "p.known.has(id, identity.Digest{1})", By: "TestManifestsOfSeveralRegions"},
			{Name: "a manifest of another authority is asked about", File: "judge.go", Old: "err != nil || m.AuthorityID != p.a.Authority {", New: "err != nil {", By: "TestManifestsOfSeveralRegions"},
			{Name: "a manifest of another authority is journalled", File: "pass.go", Old: "err == nil && authority != p.a.Authority {", New: "err == nil && authority == \"\" {", By: "TestFirstAudit"},
		},
	})
}
