package blocks

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what blocks are known to hold: failed
// reads, hours that were not read, late batches, the age of what is known.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Timeout: 20 * time.Second, // one of them makes a test wait for ever
		Mutants: []mutants.Mutant{
			{Name: "an hour that could not be listed is empty", File: "keeper.go", Old: "	case err != nil:\n	case to", New: "	case to", By: "TestFailedReads"},
			{Name: "a failed refresh is no error", File: "keeper.go", Old: "	k.state.Store(s)\n	return err", New: "	k.state.Store(s)\n	return nil", By: "TestFailedReads"},
			{Name: "no answer means no blocks", File: "keeper.go", Old: "if errors.Is(err, objstore.ErrNotFound) {", New: "if err != nil {", By: "TestFailedReads"},
			{Name: "an hour that was not read holds everything", File: "keeper.go", Old: "if _, ok := s.readAt(h); !ok {", New: "if _, ok := s.readAt(h); !ok {\n			continue\n		}\n		if _, ok := s.readAt(h); !ok {", By: "TestFailedReads"},
			{Name: "a set of the hour holds every batch", File: "keeper.go", Old: "if !s.view.Covers(id, h, timegrid.Raw) {", New: "if len(s.view.Blocks(h, timegrid.Raw)) == 0 {", By: "TestHeldInAllItsHours"},
			{Name: "one hour's block holds a batch of two", File: "keeper.go", Old: "	for _, h := range hours {\n		if _, ok", New: "	for _, h := range hours[:1] {\n		if _, ok", By: "TestHeldInAllItsHours"},
			{Name: "the last hour of a batch is not looked at", File: "keeper.go", Old: "	for h := first; h <= last; h++ {\n		hours", New: "	for h := first; h < last; h++ {\n		hours", By: "TestHeldInAllItsHours"},
			{Name: "a batch of many hours is not needed", File: "keeper.go", Old: "		return true\n	}\n	var hours", New: "		return false\n	}\n	var hours", By: "TestHeldInAllItsHours"},
			{Name: "what is held is needed", File: "keeper.go", Old: "return !held\n", New: "return held\n", By: "TestHeldInAllItsHours"},
			{Name: "an hour that a batch waits for is not asked for", File: "keeper.go", Old: "		k.wanted[h] = struct{}{}\n", New: "", By: "TestFailedReads"},
			{Name: "older hours are never read again", File: "keeper.go", Old: "(h >= recent || now.Sub(at) < k.cfg.TTL)", New: "(h >= recent || now.Sub(at) >= 0)", By: "TestHoursAreReadAgain"},
			{Name: "older hours are good for a moment too long", File: "keeper.go", Old: "now.Sub(at) < k.cfg.TTL", New: "now.Sub(at) <= k.cfg.TTL", By: "TestHoursAreReadAgain"},
			{Name: "an hour that failed is wanted no more", File: "run.go", Old: "					k.want(h)\n", New: "					_ = h\n", By: "TestHoursThatFailAreWantedStill"},
			{Name: "a poll that fails counts as done", File: "run.go", Old: "k.refreshHours(ctx, k.recent(now), endless); err != nil {", New: "k.refreshHours(ctx, k.recent(now), endless); ctx.Err() != nil {\n		_ = err", By: "TestFailedReads"},
			{Name: "hours of late batches are not read", File: "run.go", Old: "if err := k.refreshWanted(ctx, now); err != nil {", New: "if err := ctx.Err(); err != nil {", By: "TestFailedReads"},
			{Name: "hours of the window are dropped", File: "keeper.go", Old: "k.cat.Forget(old.open, endless)", New: "k.cat.Forget(endless, endless)", By: "TestHoursAreReadAgain"},
			{Name: "who may wait has no hours read", File: "keeper.go", Old: "if _, err := k.View(ctx, first, last); err != nil {", New: "if err := ctx.Err(); err != nil {", By: "TestMissingReads"},
			{Name: "a failed reading of hours means that a batch is held", File: "keeper.go", Old: "if _, err := k.View(ctx, first, last); err != nil {\n		return false, err", New: "if _, err := k.View(ctx, first, last); err != nil {\n		return false, nil", By: "TestFailedReads"},
			{Name: "a batch of many hours is not missing", File: "keeper.go", Old: "	if last-first >= maxHours {\n		return true, nil", New: "	if last-first >= maxHours {\n		return false, nil", By: "TestMissingReads"},
			{Name: "hours after now are not read by polls", File: "run.go", Old: "k.refreshHours(ctx, k.recent(now), endless)", New: "k.refreshHours(ctx, k.recent(now), timegrid.HourOf(now.UnixMilli())+1)", By: "TestHoursAheadAreRead"},
			{Name: "hours after now are not read by queries", File: "keeper.go", Old: "if last, ok := s.view.Last(); ok {", New: "if last, ok := s.view.Last(); ok && last < first {", By: "TestHoursAheadAreRead"},
			{Name: "queries read ahead without a bound", File: "keeper.go", Old: "return min(max(first, last), first+ahead)", New: "return max(first, last)", By: "TestHoursAheadAreRead"},
			{Name: "blocks beyond the bound are not told", File: "keeper.go", Old: "return s.view.Any(newest+1, upTo)", New: "return s.view.Any(newest+1, upTo-1)", By: "TestHoursAheadAreRead"},
			{Name: "blocks that come later are read at once", File: "run.go", Old: "			k.later.Store(true)\n", New: "", By: "TestBlocksThatComeLater"},
			{Name: "a delta counts beside the block that has its batch", File: "../../../../internal/rollups/catalog/deltas.go", Old: "s != nil && s.Inputs.Covers(b.Identity) {", New: "s != nil && false {", By: "TestEachRecordOnce"},
			{Name: "a delta that is gone is forgotten at once", File: "../../../../internal/rollups/catalog/deltas.go", Old: "				return ok && read < at", New: "				return ok && read > at", By: "TestADeltaThatIsGone"},
			{Name: "a delta that is gone is read although its successor is there", File: "../../../../internal/rollups/catalog/deltas.go", Old: "!ok || !gone {", New: "!ok || gone && !gone {", By: "TestADeltaThatIsGone"},
			{Name: "a batch of a delta is held in all hours", File: "../../../../internal/rollups/catalog/view.go", Old: "return ok && b.In(h)", New: "return ok && b.Batch != nil", By: "TestDeltasInAView"},
			{Name: "memory shows what a delta has", File: "../../../../internal/queries/published/coverage.go", Old: "len(late) > 0 {", New: "len(late) < 0 {", By: "TestEachRecordOnce"},
			{Name: "numbers that a block has count in a delta", File: "../../../../internal/queries/published/late.go", Old: "		b.Lose(i, lost[i])\n", New: "", By: "TestOverlapsOfDeltas"},
			{Name: "a delta that can't be read hides memory", File: "../../../../internal/queries/published/late.go", Old: "		if frames[b.Identity] == nil {\n			continue\n		}\n", New: "		if frames[b.Identity] == nil {\n			out.ids = append(out.ids, b.Identity)\n			continue\n		}\n", By: "TestADamagedDelta"},
			{Name: "rolled rows are read beside late samples", File: "../../../../internal/queries/published/rolled.go", Old: "return l.Name.Shard == s.Name.Shard }", New: "return l.Name.Shard > s.Name.Shard }", By: "TestRolledRowsBesideDeltas"},
			{Name: "the deltas are not listed at the start", File: "run.go", Old: "	if k.deltasAt.IsZero() || now", New: "	if !k.deltasAt.IsZero() && now", By: "TestANodeThatStartsFindsDeltas"},
			{Name: "older hours stay as they were read before the progress", File: "keeper.go", Old: "	k.dropOlder()\n	k.turn.Release(1)", New: "	k.turn.Release(1)", By: "TestRenew"},
			{Name: "deltas stay as they were read before the progress", File: "keeper.go", Old: "	return k.Refresh(ctx, k.recent(k.d.Now()), endless)", New: "	return k.refreshHours(ctx, k.recent(k.d.Now()), endless)", By: "TestABatchThatLeaves"},
		},
	})
}
