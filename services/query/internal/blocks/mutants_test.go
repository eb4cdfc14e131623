package blocks

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what blocks are known to hold: failed
// reads, hours that were not read, late batches, the age of what is known.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Mutants: []mutants.Mutant{
			{Name: "an hour that could not be listed is empty", File: "keeper.go", Old: "	if err == nil {\n		for h := from; h <= to; h++ {", New: "	if true {\n		for h := from; h <= to; h++ {", By: "TestFailedReads"},
			{Name: "a failed refresh is no error", File: "keeper.go", Old: "	k.state.Store(s)\n	return err", New: "	k.state.Store(s)\n	return nil", By: "TestFailedReads"},
			{Name: "no answer means no blocks", File: "keeper.go", Old: "if errors.Is(err, objstore.ErrNotFound) {", New: "if err != nil {", By: "TestFailedReads"},
			{Name: "an hour that was not read holds everything", File: "keeper.go", Old: "if _, ok := s.read[h]; !ok {", New: "if _, ok := s.read[h]; !ok {\n			continue\n		}\n		if _, ok := s.read[h]; !ok {", By: "TestFailedReads"},
			{Name: "a set of the hour holds every batch", File: "keeper.go", Old: "if !s.view.Covers(id, h, timegrid.Raw) {", New: "if len(s.view.Blocks(h, timegrid.Raw)) == 0 {", By: "TestHeldInAllItsHours"},
			{Name: "one hour's block holds a batch of two", File: "keeper.go", Old: "	for _, h := range hours {\n		if _, ok", New: "	for _, h := range hours[:1] {\n		if _, ok", By: "TestHeldInAllItsHours"},
			{Name: "the last hour of a batch is not looked at", File: "keeper.go", Old: "	for h := first; h <= last; h++ {\n		hours", New: "	for h := first; h < last; h++ {\n		hours", By: "TestHeldInAllItsHours"},
			{Name: "a batch of many hours is not needed", File: "keeper.go", Old: "	if last-first >= maxHours {\n		return true", New: "	if last-first >= maxHours {\n		return false", By: "TestHeldInAllItsHours"},
			{Name: "what is held is needed", File: "keeper.go", Old: "return !held\n", New: "return held\n", By: "TestHeldInAllItsHours"},
			{Name: "an hour that a batch waits for is not asked for", File: "keeper.go", Old: "		k.wanted[h] = struct{}{}\n", New: "", By: "TestFailedReads"},
			{Name: "older hours are never read again", File: "keeper.go", Old: "(h >= recent || now.Sub(at) < k.cfg.TTL)", New: "(h >= recent || now.Sub(at) >= 0)", By: "TestHoursAreReadAgain"},
			{Name: "older hours are good for a moment too long", File: "keeper.go", Old: "now.Sub(at) < k.cfg.TTL", New: "now.Sub(at) <= k.cfg.TTL", By: "TestHoursAreReadAgain"},
			{Name: "an hour that failed is wanted no more", File: "run.go", Old: "					k.want(h)\n", New: "					_ = h\n", By: "TestHoursThatFailAreWantedStill"},
			{Name: "a poll that fails has settled", File: "run.go", Old: "k.refreshHours(ctx, k.recent(now), k.newest(now)); err != nil {", New: "k.refreshHours(ctx, k.recent(now), k.newest(now)); ctx.Err() != nil {\n		_ = err", By: "TestFailedReads"},
			{Name: "hours of late batches are not read", File: "run.go", Old: "if err := k.refreshWanted(ctx, now); err != nil {", New: "if err := ctx.Err(); err != nil {", By: "TestFailedReads"},
			{Name: "hours of the window are dropped", File: "run.go", Old: "k.cat.Forget(recent, newest)", New: "k.cat.Forget(newest, newest)", By: "TestHoursAreReadAgain"},
			{Name: "the intake is known though it could not be read", File: "run.go", Old: "	if err := g.Wait(); err != nil {\n		return false, err\n	}\n", New: "	_ = g.Wait()\n", By: "TestFailedReads"},
			{Name: "the intake is known before the blocks", File: "run.go", Old: "		return false, nil // without the blocks every batch would look missing", New: "		return true, nil", By: "TestFailedReads"},
			{Name: "a damaged segment holds nothing", File: "run.go", Old: "		k.damaged.Store(true)\n", New: "", By: "TestIntakeIsLookedThrough"},
			{Name: "the damage of a segment is forgotten", File: "keeper.go", Old: "k.known.Load() && !k.damaged.Load()", New: "k.known.Load()", By: "TestIntakeIsLookedThrough"},
			{Name: "a batch of the window is taken for late", File: "run.go", Old: "if e.MaxTime >= k.d.Now()", New: "if e.MaxTime > k.d.Now()", By: "TestIntakeIsLookedThrough"},
			{Name: "a batch across the window's edge is taken for late", File: "run.go", Old: "if e.MaxTime >= k.d.Now()", New: "if e.MinTime >= k.d.Now()", By: "TestIntakeIsLookedThrough"},
			{Name: "a late batch that a block holds is taken", File: "run.go", Old: "		if !k.Needed(e.Identity, e.MinTime, e.MaxTime) {\n			continue", New: "		if false {\n			continue", By: "TestIntakeIsLookedThrough"},
			{Name: "the hours of an entry are not read", File: "run.go", Old: "if err := k.readHours(ctx, e); err != nil {", New: "if err := ctx.Err(); err != nil {", By: "TestIntakeIsLookedThrough"},
			{Name: "a delta counts beside the block that has its batch", File: "../../../../internal/rollups/catalog/deltas.go", Old: "s != nil && s.Inputs.Covers(b.Identity) {", New: "s != nil && false {", By: "TestEachRecordOnce"},
			{Name: "a delta that is gone is forgotten at once", File: "../../../../internal/rollups/catalog/deltas.go", Old: "				return ok && read < at", New: "				return ok && read > at", By: "TestADeltaThatIsGone"},
			{Name: "a delta that is gone is read although its successor is there", File: "../../../../internal/rollups/catalog/deltas.go", Old: "!ok || !gone {", New: "!ok || gone && !gone {", By: "TestADeltaThatIsGone"},
			{Name: "a batch of a delta is held in all hours", File: "../../../../internal/rollups/catalog/view.go", Old: "return ok && b.In(h)", New: "return ok && b.Batch != nil", By: "TestDeltasInAView"},
			{Name: "memory shows what a delta has", File: "../../../../internal/queries/published/coverage.go", Old: "len(late) > 0 {", New: "len(late) < 0 {", By: "TestEachRecordOnce"},
			{Name: "numbers that a block has count in a delta", File: "../../../../internal/queries/published/late.go", Old: "		b.Lose(i, lost[i])\n", New: "", By: "TestOverlapsOfDeltas"},
			{Name: "a delta that can't be read hides memory", File: "../../../../internal/queries/published/late.go", Old: "		if frames[b.Identity] == nil {\n			continue\n		}\n", New: "		if frames[b.Identity] == nil {\n			out.ids = append(out.ids, b.Identity)\n			continue\n		}\n", By: "TestADamagedDelta"},
			{Name: "rolled rows are read beside late samples", File: "../../../../internal/queries/published/rolled.go", Old: "return l.Name.Shard == s.Name.Shard }", New: "return l.Name.Shard > s.Name.Shard }", By: "TestRolledRowsBesideDeltas"},
			{Name: "the deltas are not listed at the start", File: "run.go", Old: "	if !k.deltas.Load() {", New: "	if k.deltas.Load() {", By: "TestANodeThatStartsFindsDeltas"},
			{Name: "deltas are not listed after the intake", File: "run.go", Old: "	if err := k.RefreshDeltas(ctx); err != nil {\n		return false, err\n	}\n	// Only", New: "	// Only", By: "TestABatchThatLeavesTheIntakeIsInADelta"},
			{Name: "a late batch that can't be taken is passed over", File: "run.go", Old: "if err := k.d.Take(ctx, layout.Accepted(e.Identity)); err != nil {", New: "if err := k.d.Take(ctx, layout.Accepted(e.Identity)); err != nil {\n			continue\n		} else if err != nil {", By: "TestIntakeIsLookedThrough"},
		},
	})
}
