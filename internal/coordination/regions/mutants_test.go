package regions_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants bugs of recoveries, which the tests must find.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Skip: "Mutants", Timeout: 2 * time.Minute, Mutants: []mutants.Mutant{
		{Name: "another cluster is believed", File: "regions.go", Old: "case s.cluster != newest.Cluster:", New: "case false:", By: "TestRestore"},
		{Name: "a recovery that did not end is opened", File: "regions.go", Old: "case !s.filled:", New: "case false:", By: "TestKilled|TestOvertaken"},
		{Name: "any epoch with the number is right", File: "regions.go", Old: "s.epoch.Number != newest.Number || s.epoch.ID != newest.ID", New: "s.epoch.Number != newest.Number", By: "TestEpochsOfOneNumber"},
		{Name: "a region that is away is passed over", File: "move.go", Old: "if slices.Contains(regions, u.Region) {", New: "if false {", By: "TestRecoveryWaits"},
		{Name: "settings without a region retire it", File: "move.go", Old: "if !slices.Contains(k.names, n) {", New: "if false {", By: "TestAddARegion"},
		{Name: "the copy is believed", File: "recover.go", Old: "for _, all := range []string{k.cfg.Keys.Claims(), k.cfg.Keys.Folded()} {", New: "for _, all := range []string{} {", By: "TestRestore"},
		{Name: "a recovery that was overtaken writes on", File: "recover.go", Old: "case !r.Held:", New: "case false:", By: "TestOvertaken"},
		{Name: "inserts do not compare the epoch", File: "recover.go", Old: "txn := claims.Txn{Guards: f.guard(), Parts", New: "txn := claims.Txn{Parts", By: "TestOvertaken"},
		{Name: "the end does not compare the epoch", File: "recover.go", Old: "r, err := f.k.cfg.KV.Commit(ctx, claims.Txn{Guards: f.guard(), Parts: []claims.Part{{Puts: []claims.Put{{Key: f.k.cfg.Keys.Filled()", New: "r, err := f.k.cfg.KV.Commit(ctx, claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: f.k.cfg.Keys.Filled()", By: "TestOvertaken"},
		{Name: "the lowest stamp wins", File: "scan.go", Old: "o.stamp.Compare(m.stamp)", New: "m.stamp.Compare(o.stamp)", By: "TestRecoveryTakes"},
		{Name: "affirmations are ignored", File: "scan.go", Old: "s.Compare(m.stamp) > 0 {", New: "false {", By: "TestRecoveryTakes"},
		{Name: "the last affirmation counts", File: "scan.go", Old: "if s.Compare(affirmed[id]) > 0 {", New: "if s.Compare(affirmed[id]) < 0 || affirmed[id].IsZero() {", By: "TestRecoveryTakes"},
		{Name: "ranges that meet are taken", File: "recover.go", Old: "if i < len(taken) && taken[i].id.SeqStart <= m.id.SeqEnd {", New: "if i < len(taken) && taken[i].id == m.id {", By: "TestRecoveryTakes"},
		{Name: "a manifest that can't be read is left out", File: "scan.go", Old: "		if err != nil {\n			return nil, &RegionError{\"read a manifest\", l.Name, err}\n		}", New: "		if err != nil {\n			if err := l.advance(ctx); err != nil {\n				return nil, err\n			}\n			continue\n		}", By: "TestRecoveryStops"},
		{Name: "another region's bucket is taken", File: "move.go", Old: "if there.Number > 0 && there.Region != r.Name {", New: "if false {", By: "TestTwoNames"},
		{Name: "settings with none of the regions begin anew", File: "move.go", Old: "case s.epoch.Number > 0:", New: "case false:", By: "TestAddARegion"},
		{Name: "epochs do not grow", File: "move.go", Old: "max(newest.Number, s.epoch.Number) + 1", New: "max(newest.Number, s.epoch.Number, 1)", By: "TestRestore"},
	}})
}
