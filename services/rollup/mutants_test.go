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
