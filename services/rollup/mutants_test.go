package rollup

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of retention, which removes for good: whose clock
// it goes by, which hour is the last, what a failure leaves.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Run: "TestRetention",
		Mutants: []mutants.Mutant{
			{Name: "retention goes by the worker's clock", File: "internal/maintain/retention.go", Old: "timegrid.HourOf(confirmed.Add(-keep).UnixMilli()) - 1", New: "timegrid.HourOf(now.Add(-keep).UnixMilli()) - 1", By: "TestRetentionGoesByTheStoresClock"},
			{Name: "an hour expires before it ended so long ago", File: "internal/maintain/retention.go", Old: "timegrid.HourOf(confirmed.Add(-keep).UnixMilli()) - 1", New: "timegrid.HourOf(confirmed.Add(-keep).UnixMilli())", By: "TestRetentionGoesByTheStoresClock"},
			{Name: "retention does not wait for its time", File: "internal/maintain/retention.go", Old: "confirmed.Add(-keep)", New: "confirmed", By: "TestRetentionGoesByTheStoresClock"},
			{Name: "a clock that is far ahead is believed", File: "internal/storeclock/storeclock.go", Old: "if ahead > MaxAhead {", New: "if false {", By: "TestRetentionGoesByTheStoresClock"},
			{Name: "a clock that is behind is not heeded", File: "internal/storeclock/storeclock.go", Old: "if ahead < 0 {", New: "if false {", By: "TestRetentionGoesByTheStoresClock"},
			{Name: "a clock that is ahead by less is heeded", File: "internal/storeclock/storeclock.go", Old: "	if ahead < 0 {", New: "	if true {", By: "TestRetentionGoesByTheStoresClock"},
			{Name: "ahead is behind", File: "internal/storeclock/storeclock.go", Old: "ahead = now.Sub(info.LastModified)", New: "ahead = info.LastModified.Sub(now)", By: "TestRetentionGoesByTheStoresClock"},
			{Name: "retention of all resolutions is that of raw samples", File: "internal/maintain/retention.go", Old: "r.expirer.Expire(ctx, res, from, to)", New: "r.expirer.Expire(ctx, timegrid.OneMinute, from, to)", By: "TestRetentionGoesByTheStoresClock"},
			{Name: "the blocks of an hour that is decided stay", File: "../../internal/rollups/compact/expirer.go", Old: "_, err = r.cfg.Publisher.Expire(ctx, n)", New: "err = ctx.Err()", By: "TestRetentionRemoves"},
			{Name: "blocks go before it is decided", File: "../../internal/rollups/compact/expirer.go", Old: "if err := r.decide(ctx, res, to, r.cfg.Now()); err != nil {", New: "if err := ctx.Err(); err != nil {", By: "TestRetentionGoesByTheStoresClock"},
			{Name: "the last hour's blocks stay", File: "../../internal/rollups/compact/expirer.go", Old: "	}\n	return rep, flush()\n", New: "	}\n	return rep, nil\n", By: "TestRetentionRemoves"},
		},
	})
}

// TestMutantsOfFrameRemovalAreCaught: what a removal of raw frames asks before and after it has
// condemned, and what becomes of frames that duplicates wrote again.
func TestMutantsOfFrameRemovalAreCaught(t *testing.T) {
	const hour = "../../internal/rollups/compact/framehour.go"
	mutants.Check(t, mutants.List{
		Run: "TestRawFrames|TestARewrittenFrame|TestWhatComesBeforeTheProof",
		Mutants: []mutants.Mutant{
			{Name: "nothing is asked after the hour is condemned", File: hour, Old: "if why, err = x.whyNow(ctx); err != nil || why != \"\" {", New: "if err = ctx.Err(); err != nil {", By: "TestWhatComesBeforeTheProofKeepsRawFrames"},
			{Name: "blocks are not read again", File: hour, Old: "if c == nil || c.why != \"\" {", New: "if true {", By: "TestWhatComesBeforeTheProofKeepsRawFrames"},
			{Name: "repair records are not read again", File: hour, Old: "return dropNamed(ctx, x.f, frames, func(r framelog.Frame) identity.Batch { return r.Identity }, kept)", New: "return frames, nil", By: "TestWhatComesBeforeTheProofKeepsRawFrames"},
			{Name: "requests are not read again", File: hour, Old: "	return x.whyHourIsKept(ctx)\n", New: "	return \"\", nil\n", By: "TestWhatComesBeforeTheProofKeepsRawFrames"},
			{Name: "a worker reads no notes of rewritten frames", File: "internal/owner/rawframes.go", Old: "for _, n := range notes {", New: "for _, n := range notes[:0] {", By: "TestARewrittenFrameIsRemovedAgain"},
			{Name: "a note goes before its frame", File: "../../internal/rollups/compact/rewritten.go", Old: "return !x.finished[n.Identity]", New: "return false", By: "TestARewrittenFrameIsRemovedAgain"},
			{Name: "a note never goes", File: "../../internal/rollups/compact/rewritten.go", Old: "return !x.finished[n.Identity]", New: "return true", By: "TestARewrittenFrameIsRemovedAgain"},
		},
	})
}

// TestMutantsOfFollowingAreCaught: what is taken of the journal, what the record of a shard's progress says of it, and
// what a new owner makes of that.
func TestMutantsOfFollowingAreCaught(t *testing.T) {
	const follow, keeper = "internal/owner/follow.go", "internal/owner/keeper.go"
	mutants.Check(t, mutants.List{
		Run: "TestHealedBatch|TestNumbersCount|TestABatchThat|TestAWideFrame|TestVerifyFinds|TestGenerationsSay|TestAPlanOf",
		Mutants: []mutants.Mutant{
			{Name: "a batch that overlaps another is an input of its own hours alone", File: follow, Old: "		enter(p.With, mine, backlog.Shared)\n", New: "		_ = mine\n"},
			{Name: "a batch is no input of the hours of one that it overlaps", File: follow, Old: "		enter(p.Batch, others[i], backlog.Shared)\n", New: "		_ = others[i]\n"},
			{Name: "a batch that an overlap made known is not taken when it comes", File: follow, Old: "!f.backlog.Knows(e.Identity)", New: "!f.backlog.Has(e.Identity)"},
			{Name: "the ends of a wide batch are all of its hours", File: follow, Old: "return hs, backlog.Ends, true", New: "return hs, backlog.All, true"},
			{Name: "hours that could not be read are not asked for again", File: follow, Old: "if len(batches) == 0 {\n		return nil\n	}\n	f.unreadAt", New: "if len(batches) >= 0 {\n		return nil\n	}\n	f.unreadAt"},
			{Name: "batches that can't be taken now are not in the record", File: follow, Old: "if !ok || len(f.deferred) == 0 {", New: "if true {"},
			{Name: "batches that can't be taken now are dropped", File: follow, Old: "	f.deferred = append(f.deferred, batches...)\n", New: ""},
			{Name: "what the record names is not taken", File: follow, Old: "err := f.takeOld(ctx, f.saved.record.Pending)", New: "var err error"},
			{Name: "a new owner reads from where its worker's follower is", File: follow, Old: "	f.behind, f.nextTry = true, time.Time{}\n", New: "	f.nextTry = time.Time{}\n"},
			{Name: "a plan has positions while a batch waits that is in no hour yet", File: follow, Old: "return f.through, f.Complete() && !f.through.IsZero()", New: "return f.through, !f.through.IsZero()"},
			{Name: "plans have the positions at which their owner began", File: follow, Old: "		f.through = at\n", New: "		if f.through.IsZero() {\n			f.through = at\n		}\n"},
			{Name: "nothing is pending in the record", File: keeper, Old: "Positions: at, Pending: pending}", New: "Positions: at}"},
			{Name: "the record of somebody else counts for nothing", File: keeper, Old: "	k.record = p\n	var b", New: "	_ = p\n	var b"},
		},
	})
}

// TestMutantsOfHelpsAreCaught: what is published is in the record of helps, also if its worker died at once.
func TestMutantsOfHelpsAreCaught(t *testing.T) {
	const job, late = "internal/job/job.go", "internal/owner/late.go"
	mutants.Check(t, mutants.List{
		Run: "TestHelpsAreRecorded",
		Mutants: []mutants.Mutant{
			{Name: "helps are recorded after their blocks", File: job, Old: "	if err := j.Helps.Save(ctx); err != nil {\n		return nil, err\n	}\n	if err := j.publish(ctx, g, made, inputs); err != nil {\n		return nil, err\n	}\n",
				New: "	if err := j.publish(ctx, g, made, inputs); err != nil {\n		return nil, err\n	}\n	if err := j.Helps.Save(ctx); err != nil {\n		return nil, err\n	}\n"},
			{Name: "helps are recorded after their delta", File: late, Old: "if err := d.helps.Save(ctx); err != nil {", New: "if err := ctx.Err(); err != nil {"},
			{Name: "helps of late batches are not learned", File: late, Old: "	d.helps.Learn(e, f)\n", New: ""},
		},
	})
}

// TestMutantsOfLostFramesAreCaught: what becomes of an hour when the frame of what it has published is gone.
func TestMutantsOfLostFramesAreCaught(t *testing.T) {
	const build, job = "internal/build/build.go", "internal/job/job.go"
	mutants.Check(t, mutants.List{
		Run: "TestALateBatchBeside|TestABatchThatNeeds",
		Mutants: []mutants.Mutant{
			{Name: "an hour waits for the frames of what it has published", File: build, Old: "b.build(ctx, p, before, resolutions, step, true)", New: "b.build(ctx, p, before, resolutions, step, false)"},
			{Name: "numbers that published inputs have count for new ones too", File: build, Old: "b.fromFrames(ctx, p.Hour, freshIn, lost, fresh, part)", New: "b.fromFrames(ctx, p.Hour, freshIn, nil, fresh, part)"},
			{Name: "published inputs keep the numbers that new ones win", File: build, Old: "	if !ok {\n		e :=", New: "	if !ok && p == nil {\n		e :="},
			{Name: "what repeats a record makes the whole hour wait", File: build, Old: "if both != nil && only {", New: "if false {"},
			{Name: "what needs the frame of another waits for its own", File: job, Old: "s.Unreadable.AddNeeding(e.Identity, bad.Entry, j.Now())", New: "s.Unreadable.Add(e.Identity, j.Now())"},
			{Name: "numbers that published hours keep count in others", File: job, Old: "if err := j.checkElsewhere(ctx, g); err != nil {", New: "if err := ctx.Err(); err != nil {"},
			{Name: "what needs a frame waits in the published hours alone", File: "internal/job/shard.go", Old: "listed && (needs != nil || e.In(h))", New: "listed && needs != nil == !e.In(h)"},
		},
	})
}

// TestMutantsOfPacksAreCaught: what hours are made of when snapshots have copies of their frames. internal/frames has those of reading packs.
func TestMutantsOfPacksAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Run: "TestHoursAre",
		Mutants: []mutants.Mutant{
			{Name: "jobs read no packs", File: "worker.go", Old: "	packed.Packs = w.snapshots.Packs\n", New: "", By: "TestHoursAreMadeOfPacks"},
		},
	})
}
