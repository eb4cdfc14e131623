package live_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what is kept and told: the edges of the window,
// what is known to be lost, late batches, what a snapshot sees, what blocks hide.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		// Without TestMemoryBoundHolds, which measures heaps for seconds.
		Run: "TestLoss|TestLate|TestWindowMovesOn|TestLastOfItsShape|TestPublishedRecords|TestAgainstModel|TestFarFuture|TestAgentBeyond|TestEvictedWinner|TestFrameOf|TestNewestHelp|TestHelps|TestMetadata|TestUnits",
		Mutants: []mutants.Mutant{
			{Name: "a loss at the range's end is not told", File: "losses.go", Old: "if s.Min > maxt {", New: "if s.Min >= maxt {", By: "TestLossOutlivesTheWindow"},
			{Name: "a loss at the range's begin is not told", File: "losses.go", Old: "if s.Max < t {", New: "if s.Max <= t {", By: "TestLossOutlivesTheWindow"},
			{Name: "a loss is told beyond the range", File: "losses.go", Old: "s = Span{max(s.Min, mint), min(s.Max, maxt)}", New: "s = Span{s.Min, s.Max}", By: "TestLossOutlivesTheWindow"},
			{Name: "one of two losses is told", File: "losses.go", Old: "s = out.union(s)", New: "s = Span{out.Min, out.Max}", By: "TestLossOfDistantBatches"},
			{Name: "any later batch follows a lost one", File: "losses.go", Old: "last >= 0 && runs[last].next == b.Identity.SeqStart", New: "last >= 0", By: "TestLossesAreNeverForgotten"},
			{Name: "a run of losses is as long as its first", File: "losses.go", Old: "r.span = r.span.union(span)", New: "_ = span", By: "TestLossesAreNeverForgotten"},
			{Name: "a run is forgotten with its first batch", File: "losses.go", Old: "			return false\n		}\n		start += n", New: "			break\n		}\n		start += n", By: "TestLossesAreNeverForgotten"},
			{Name: "a batch that nothing is known of is no loss", File: "late.go", Old: "return s.heldBy(id, hours) == Published })", New: "return s.heldBy(id, hours) != OnlyHere })", By: "TestLossStaysWhileNothingIsKnown"},
			{Name: "only batches that no block holds are lost", File: "evict.go", Old: "s.heldBy(b.Identity, b.hours) != Published", New: "s.heldBy(b.Identity, b.hours) == OnlyHere", By: "TestLateLoss"},
			{Name: "what a block holds is lost", File: "evict.go", Old: "if s.heldBy(b.Identity, b.hours) != Published {", New: "if true {", By: "TestLateLoss"},
			{Name: "a loss lies between distant samples too", File: "losses.go", Old: "	for i, h := range hours {\n		if n", New: "	return []Span{s}\n	for i, h := range hours {\n		if n", By: "TestLossBetweenDistantSamples"},
			{Name: "losses beyond the bound are forgotten", File: "losses.go", Old: "l.coarse = addSpan(l.coarse, s, maxCoarseSpans)", New: "_ = s", By: "TestLossesAreBounded"},
			{Name: "coarse spans are joined by dropping one", File: "losses.go", Old: "list[at].union(list[at+1])", New: "list[at]", By: "TestLossesAreBounded"},
			{Name: "the window's edge is outside it", File: "evict.go", Old: "s.full.top().maxT < horizon", New: "s.full.top().maxT <= horizon", By: "TestWindowMovesOn"},
			{Name: "a batch on the window's edge is late", File: "store.go", Old: "late := maxT < s.Horizon(now)", New: "late := maxT <= s.Horizon(now)", By: "TestLateAtTheEdge"},
			{Name: "a noted batch on the window's edge is expired", File: "store.go", Old: "	if maxT < s.Horizon(now) {\n		return Expired, nil", New: "	if maxT <= s.Horizon(now) {\n		return Expired, nil", By: "TestLateAtTheEdge"},
			{Name: "late batches are refused", File: "store.go", Old: "if late && !s.missing(a.Identity, hours) {", New: "if late {", By: "TestLateBatches"},
			{Name: "late batches that a block holds are taken", File: "store.go", Old: "if late && !s.missing(a.Identity, hours) {", New: "if false {", By: "TestLateBatches"},
			{Name: "a batch that grows late is dropped", File: "evict.go", Old: "if s.missing(b.Identity, b.hours) {", New: "if false {", By: "TestLateBatches"},
			{Name: "a batch that grows late stays though a block holds it", File: "evict.go", Old: "if s.missing(b.Identity, b.hours) {", New: "if s.cover != nil {", By: "TestLateAtTheEdge"},
			{Name: "a late batch that is no longer needed stays", File: "late.go", Old: "if !s.missing(b.Identity, b.hours) {", New: "if false {", By: "TestLateBatches"},
			{Name: "a snapshot tells of late batches that it does not see", File: "late.go", Old: "if b.visible(p.version) {", New: "if b != nil {", By: "TestLateHoursOfASnapshot"},
			{Name: "late batches that a snapshot does not see are counted", File: "late.go", Old: "if b.visible(p.version) && !fn(b.Identity) {", New: "if !fn(b.Identity) {", By: "TestLateHoursOfASnapshot"},
			{Name: "a batch has the hour of its first sample alone", File: "late.go", Old: "if at, ok := slices.BinarySearch(out, h); !ok {", New: "if at, ok := slices.BinarySearch(out, h); !ok && at == 0 {", By: "TestLateHoursOfASnapshot"},
			{Name: "a snapshot sees what comes later", File: "batch.go", Old: "return b.added <= version && (r == 0 || r > version)", New: "return r == 0 || r > version", By: "TestAgainstModel"},
			{Name: "a snapshot does not see what is evicted next", File: "batch.go", Old: "(r == 0 || r > version)", New: "r == 0", By: "TestLateBatches"},
			{Name: "columns go while a snapshot sees them", File: "evict.go", Old: "if b.removed.Load() > oldest {", New: "if b.removed.Load() > oldest+1 {", By: "TestLastOfItsShape"},
			{Name: "the last acceptance wins", File: "store.go", Old: "if !b.Wins(o.Claim) {", New: "if b.Wins(o.Claim) {", By: "TestAgainstModel"},
			{Name: "the last number that a winner has counts twice", File: "batch.go", Old: "r.start <= seq && seq <= r.end", New: "r.start <= seq && seq < r.end", By: "TestAgainstModel"},
			{Name: "identities that meet in one number do not overlap", File: "boots.go", Old: "o.Identity.SeqEnd >= b.Identity.SeqStart {", New: "o.Identity.SeqEnd > b.Identity.SeqStart {", By: "TestAgainstModel"},
			{Name: "the last number that a block counts is shown", File: "coverage.go", Old: "rs[i].End >= seq })", New: "rs[i].End > seq })", By: "TestPublishedRecordsAreHidden"},
			{Name: "the first number that a block counts is shown", File: "coverage.go", Old: "rs[i].Start <= seq\n", New: "rs[i].Start < seq\n", By: "TestPublishedRecordsAreHidden"},
			{Name: "a set of one hour hides another", File: "coverage.go", Old: "if !p.asked || p.hour != h {", New: "if !p.asked {", By: "TestPublishedRecordsAreHidden"},
			{Name: "a batch whose end a block counts is not hidden", File: "coverage.go", Old: "rs[i].Start > id.SeqEnd:", New: "rs[i].Start >= id.SeqEnd:", By: "TestPublishedRecordsAreHidden"},
			{Name: "the last help that comes wins", File: "helps.go", Old: "case !newerHelp(by, maxTime, h):", New: "case false:", By: "TestNewestHelpWins"},
			{Name: "the first help that comes wins", File: "helps.go", Old: "case !newerHelp(by, maxTime, h):", New: "case true:", By: "TestNewestHelpWins"},
			{Name: "of two helps of one time the first wins", File: "helps.go", Old: "cmp.Or(cmp.Compare(maxTime, than.Time), by.Compare(than.by)) > 0", New: "maxTime > than.Time", By: "TestNewestHelpWins"},
			{Name: "helps stay without their metrics", File: "helps.go", Old: "_, ok := names[name]; !ok && !h.recorded {", New: "_, ok := names[name]; !ok && !h.recorded && false {", By: "TestHelpsGoWithTheirMetrics"},
			{Name: "helps are not bounded", File: "helps.go", Old: "if s.helpBytes <= limit {", New: "if s.helpBytes >= 0 {", By: "TestHelpsAreBounded"},
			{Name: "who makes up helps takes those of others", File: "../../rollups/helps/helps.go", Old: "if a.bytes > most {", New: "if true {\n\t\t\tmost = 0", By: "TestHelpsAreBounded"},
			{Name: "the newest helps go", File: "../../rollups/helps/helps.go", Old: "cmp.Compare(x.Time, y.Time)", New: "cmp.Compare(y.Time, x.Time)", By: "TestHelpsAreBounded"},
			{Name: "a help that changes is counted again", File: "helps.go", Old: "int64(len(text) - len(h.Text))", New: "h.Bytes()", By: "TestHelpsGoWithTheirMetrics"},
			{Name: "helps of blocks replace those of newer batches", File: "helps.go", Old: "case !newerHelp(by, maxTime, h):", New: "case by.Boot != \"\" && !newerHelp(by, maxTime, h):", By: "TestHelpsOfBlocks"},
			{Name: "helps of blocks go with the series", File: "helps.go", Old: "!ok && !h.recorded {", New: "!ok && h != nil {", By: "TestHelpsOfBlocks"},
			{Name: "helps of former blocks stay", File: "helps.go", Old: "		h.recorded = false\n", New: "		_ = h\n", By: "TestHelpsOfBlocks"},
			{Name: "the type is that of the last shape", File: "metadata.go", Old: "at > best || at == best && m.compare(out) > 0 {", New: "best < math.MaxInt64 {", By: "TestMetadataOfTheNewestSample"},
			{Name: "of two types of one time the last shape wins", File: "metadata.go", Old: "at == best && m.compare(out) > 0", New: "at == best", By: "TestMetadataOfTheNewestSample"},
			{Name: "an open snapshot has types of later samples", File: "metadata.go", Old: "return pt.batch.visible(p.version) })", New: "return true })", By: "TestMetadataOfTheNewestSample"},
			{Name: "units are not bounded", File: "metadata.go", Old: "len(s.means) >= maxMeanings", New: "false", By: "TestUnitsAreBounded"},
			{Name: "the far future stays", File: "evict.go", Old: "b.maxT > now.Add(s.cfg.Future).UnixMilli()", New: "b.maxT < now.Add(-s.cfg.Future).UnixMilli()", By: "TestFarFutureGoesFirst"},
			{Name: "nobody is beyond its share", File: "agents.go", Old: "if s.beyondShare(a) {", New: "if false {", By: "TestAgentBeyondItsShareGoesFirst"},
			{Name: "an evicted winner masks nothing", File: "evict.go", Old: "		s.evict(b)\n		s.makePlaceholder(b)", New: "		s.evict(b)\n		s.forget(b)", By: "TestEvictedWinnerStillMasks"},
			{Name: "a frame of another identity is taken", File: "store.go", Old: "if b.Identity != a.Identity {", New: "if false {", By: "TestFrameOfAnotherIdentity"},
			{Name: "the frame of a conflict is taken", File: "store.go", Old: "if old != nil && old.sha != a.FrameSHA256 {", New: "if false {", By: "TestAgainstModel"},
		},
	})
}
