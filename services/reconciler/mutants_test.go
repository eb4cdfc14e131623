package reconciler

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what is kept of the journal: the order in which a segment is taken up,
// rounds that fail, runs that are ended.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Timeout: 15 * time.Second, // three of them make a stream wait for ever
		// Without what runs whole services and waits long.
		Run: "TestJournalIs|TestLostCheckpoint|TestRunsWithout|TestFormer|TestReadingCosts|TestHintsAt|TestQueueHolds|TestRoundsJoin|TestSeenForgets|TestWatcherLags|TestRestartLists|TestListLedgers|TestAuditsAreBegun|TestADropped|TestAuditsThat|TestConflicts|TestOverlapsAre|TestOverlapsOf|TestAnAuditThat",
		Mutants: []mutants.Mutant{
			{Name: "a reconciler that the linearizer refuses is ready", File: "claims.go", Old: "c.k.refused.Store(&err)", New: "_ = err", By: "TestALinearizerThatDenies"},
			{Name: "one that was refused once is never ready", File: "claims.go", Old: "c.k.refused.Store(nil)", New: "_ = err", By: "TestALinearizerThatDenies"},
			{Name: "what lost against another region's is entered", File: "former.go", Old: "	if errors.Is(err, objstore.ErrNotFound) {", New: "	if err == nil || errors.Is(err, objstore.ErrNotFound) {", By: "TestABucketThatWas"},
			{Name: "what can't be read is entered", File: "former.go", Old: "		return audit.Judgement{Finding: audit.Undecided}, nil", New: "		return audit.Judgement{Finding: audit.Counted, Entry: m.Entry(journal.AuditedAccepted)}, nil", By: "TestABucketThatWas"},
			{Name: "a bucket of another region fits", File: "region.go", Old: "	case r.Dissolved || r.Region != ours:", New: "	case r.Dissolved:", By: "TestABucketOfARegion|TestABucketThatDoes"},
			{Name: "a region whose linearizer was dissolved goes on", File: "region.go", Old: "	case r.Dissolved || r.Region != ours:", New: "	case r.Region != ours:", By: "TestABucketOfARegion"},
			{Name: "a record that can't be read is no region's", File: "region.go", Old: "		return nil, fmt.Errorf(\"which region is the bucket? %w\", err)", New: "		return nil, nil", By: "TestABucketOfARegion"},
			{Name: "audits do not ask whether the bucket fits", File: "audits.go", Old: "	if len(todo) > 0 {", New: "	if false {", By: "TestABucketThatDoes"},
			{Name: "checks of events do not ask whether the bucket fits", File: "events.go", Old: "	if len(due) > 0 {", New: "	if false {", By: "TestABucketThatDoes"},
			{Name: "a check that found another region is forgotten", File: "events.go", Old: "			for _, id := range due {\n				c.k.checkLater(id)\n			}\n", New: "", By: "TestABucketThatDoes"},
			{Name: "claims are changed whatever the bucket is", File: "claims.go", Old: "		if len(page.Claims) > 0 {", New: "		if false {", By: "TestABucketThatDoes"},
			{Name: "a life goes on where the bucket was a region's meanwhile", File: "region.go", Old: "	if err == nil && (j != nil) != former {", New: "	if err == nil && (j != nil) != former && false {", By: "TestABucketThatDoes"},
			{Name: "a bucket that does not fit leaves it ready", File: "service.go", Old: "	if err := s.journal.misfit(); err != nil {", New: "	if err := s.journal.misfit(); err != nil && false {", By: "TestABucketThatDoes"},
			{Name: "one that did not fit once is never ready", File: "journal.go", Old: "	k.unfitting.Store(nil)\n", New: "", By: "TestABucketThatDoes"},
			{Name: "checks of events do not ask", File: "events.go", Old: "if err == nil && c.of != nil {", New: "if false {", By: "TestAuditsAsk|TestABucketThatWas"},
			{Name: "nothing is given to the folder", File: "journal.go", Old: "			if err := keeper.Offer(ctx, s); err != nil {\n				return err\n			}\n", New: "", By: "TestJournalIs"},
			{Name: "the ledgers are not applied", File: "journal.go", Old: "			k.apply(set, s.Entries)\n			k.to.applied", New: "			k.to.applied", By: "TestJournalIs"},
			{Name: "folded files are not applied", File: "journal.go", Old: "			k.apply(set, es)\n", New: "", By: "TestLostCheckpoint"},
			{Name: "the follower starts at the head", File: "journal.go", Old: "From: journal.Earliest(loaded.Positions, head),", New: "From: head,", By: "TestLostCheckpoint"},
			{Name: "no audit of a former bucket", File: "audits.go", Old: "case !complete || first && k.cfg.Audit.AtStart:", New: "case first && k.cfg.Audit.AtStart && !complete:", By: "TestFormer"},
			{Name: "an audit at every start", File: "audits.go", Old: "case !complete || first && k.cfg.Audit.AtStart:", New: "case !complete || first:", By: "TestRestartLists"},
			{Name: "an audit from before a drop is waited for", File: "audits.go", Old: "r.Through < head.Lost || ", New: "", By: "TestADropped"},
			{Name: "an audit that could not read a manifest is repeated at once", File: "audits.go", Old: "< unreadAgain", New: "< 0", By: "TestAnAuditThat"},
			{Name: "a dropped file needs no audit", File: "audits.go", Old: "proof.Covers(head.Lost), 0.0", New: "proof.Covers(0), 0.0", By: "TestADropped"},
			{Name: "an audit is late before its shards are due", File: "auditmetrics.go", Old: "r.DueAt(r.ShardCount() - 1)", New: "r.DueAt(0)", By: "TestAuditsThat"},
			{Name: "nobody notes when audits were due", File: "audits.go", Old: "	k.m.audits.note(audit.Full, full, k.cfg.Audit.Period)\n", New: "", By: "TestAnAuditThat"},
			{Name: "no audit of what is new", File: "audits.go", Old: "	if k.auditDue(news, now, k.cfg.Audit.Interval) {", New: "	if k.auditDue(news, now, 0) {", By: "TestAuditsAreBegun"},
			{Name: "a full audit once only", File: "audits.go", Old: "	if k.auditDue(full, now, k.cfg.Audit.Period) {", New: "	if len(full) == 0 {", By: "TestAuditsAreBegun"},
			{Name: "hints are not passed on", File: "journal.go", Old: "			k.m.lagged.Add(float64(k.relay.publish(s.Position)))\n", New: "", By: "TestHintsAt"},
			{Name: "hints are not read", File: "journal.go", Old: "return t != nil && t.Hint(p)", New: "return t != nil", By: "TestHintsAt"},
			{Name: "a watcher that lags is let go silently", File: "relay.go", Old: "h.end(w, errLagged)", New: "continue", By: "TestWatcherLags"},
			{Name: "a round that failed is well", File: "round.go", Old: "	if r.failed > 0 {", New: "	if false {", By: "TestRoundsJoin"},
			{Name: "what is decided is listed as open", File: "conflicts.go", Old: "		if unresolved && g.s.conflicts", New: "		if false && g.s.conflicts", By: "TestConflictsAreListed"},
			{Name: "what nobody has quarantined is decided", File: "conflicts.go", Old: "		_, err := g.s.store.Head(ctx, layout.Quarantine(id, sum))\n", New: "		err := error(nil)\n", By: "TestConflictsAreListed"},
			{Name: "who wanted another decision is not told", File: "conflicts.go", Old: "	case errors.As(err, &other):\n", New: "	case errors.As(err, &other) && stands != nil:\n", By: "TestConflictsAreListed"},
			{Name: "what an agent did is not shown", File: "conflicts.go", Old: "	case errors.Is(err, objstore.ErrNotFound):\n	case err != nil && !objstore.Unreadable(err):\n", New: "	case err == nil, errors.Is(err, objstore.ErrNotFound):\n	case err != nil && !objstore.Unreadable(err):\n", By: "TestConflictsAreListed"},
			{Name: "a release begins a quarantine", File: "conflicts.go", Old: "	if req.GetRelease() {\n", New: "	if false {\n", By: "TestConflictsListSenders"},
			{Name: "clashes behind a full page are not listed", File: "conflicts.go", Old: "		if next == \"\" { // that was the last one\n", New: "		if next == \"\" && n < size {\n", By: "TestConflictsListBoot"},
			{Name: "a page with clashes is too long", File: "conflicts.go", Old: "		size -= n\n", New: "		size -= 0 * n\n", By: "TestConflictsListBoot"},
			{Name: "a damaged record hides the others", File: "conflicts.go", Old: "	case record.Opaque(err):\n		c.Error = err.Error()\n	default:\n		return nil, err\n", New: "	default:\n		return nil, err\n", By: "TestConflictsListBoot"},
			{Name: "the later acceptance counts", File: "overlap.go", Old: "return accepted.Claim{Identity: a.id", New: "return -accepted.Claim{Identity: a.id", By: "TestOverlapsAre"},
			{Name: "a batch that begins far before a number is not found", File: "overlap.go", Old: "first > 0 && seen", New: "first > 0 && seen < 0 && seen", By: "TestOverlapsAre"},
			{Name: "what another region counts may be first", File: "overlap.go", Old: "return c.err == nil && !counted[c.id]", New: "return c.err != nil && !counted[c.id] && false", By: "TestOverlapsOf"},
			{Name: "a batch that ends before a number covers it", File: "overlap.go", Old: "if id.SeqEnd >= seq {", New: "if id.SeqEnd > 0 {", By: "TestOverlapsAre"},
			{Name: "pages of ledgers are endless", File: "grpc.go", Old: "		list = list[:size]\n", New: "", By: "TestListLedgers"},
		},
	})
}
