package gc_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants bugs around the log of epochs that need a rare schedule; test/sim/mutants plants the others.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Run: "TestTheLog|TestACollectionWaits|TestAMarkerThat", Mutants: []mutants.Mutant{
		{Name: "whether the log has begun is asked before the marker is there", File: "execute.go", Old: "	condemned := orphans[:0]\n", New: "	known, kerr := x.c.epochs.Begun(ctx)\n	if kerr != nil {\n		return kerr\n	}\n	if condemned := orphans; !known {\n		for _, k := range condemned {\n			if err := x.c.condemn(ctx, k, x.plan); err == nil {\n				x.settle(ctx, k)\n			}\n		}\n		return x.flush(ctx)\n	}\n	condemned := orphans[:0]\n", By: "TestTheLogBeginsBeside"},
		{Name: "what is condemned is not named", File: "epochs.go", Old: "c.appender(), frames)", New: "c.appender(), frames[:0])", By: "TestACollectionWaits|TestAMarkerThat|TestTheLogBegins"},
		{Name: "nobody is waited for", File: "epochs.go", Old: "		if err != nil || left == 0 {\n", New: "		if err != nil || left >= 0 {\n", By: "TestACollectionWaits"},
		{Name: "a state that was lost lets earlier releases in", File: "runner.go", Old: "	case err != nil || begun:\n		return begun, err\n", New: "	case err != nil || begun:\n		return begun && r.cfg.Epochs, err\n", By: "TestTheLogOfEpochs"},
		{Name: "the log begins at once", File: "runner.go", Old: "if err != nil || !begun && now.Sub(time.Unix(st.EpochsAt, 0)) < max(quarantineOfEpochs, r.cfg.Lease) {", New: "if err != nil || st.EpochsAt < 0 {", By: "TestTheLogOfEpochs"},
	}})
}
