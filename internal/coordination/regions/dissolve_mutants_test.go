package regions_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsOfDissolvingAreCaught plants bugs of a linearizer's end.
func TestMutantsOfDissolvingAreCaught(t *testing.T) {
	const f, by = "dissolve.go", "Dissol|ABeginning"
	mutants.Check(t, mutants.List{Run: by, Skip: "Mutants", Timeout: 5 * time.Minute, Mutants: []mutants.Mutant{
		{Name: "claims of collectors are left", File: f, Old: "return e.Claimed+e.Durable+e.Other > 0", New: "return e.Durable+e.Other > 0", By: by},
		{Name: "what is durable is left", File: f, Old: "return e.Claimed+e.Durable+e.Other > 0", New: "return e.Claimed+e.Other > 0", By: by},
		{Name: "what can't be read is left", File: f, Old: "return e.Claimed+e.Durable+e.Other > 0", New: "return e.Claimed+e.Durable > 0", By: by},
		{Name: "one page of claims is enough", File: f, Old: "err != nil || len(entries) < claims.MaxScan {", New: "err != nil || true {", By: by},
		{Name: "claims are not read again once etcd is frozen", File: f, Old: "	err := k.foldSettled(ctx, s, k.frozen(s))", New: "	err := error(nil)", By: by},
		{Name: "claims are read once etcd is frozen only", File: f, Old: "if err := k.foldSettled(ctx, s, []claims.Guard{{Key: k.cfg.Keys.Epoch(), Is: claims.Holds, Value: s.value}}); err != nil {", New: "if err := error(nil); err != nil {", By: by},
		{Name: "nothing is folded", File: f, Old: "if _, err := folder.Fold(ctx, boots[i].boot, claims.Folds{}, n); err != nil {", New: "if err := error(nil); len(n) < 0 || err != nil {", By: by},
		{Name: "only the first claims of a boot are folded", File: f, Old: "last.entries = append(last.entries, ", New: "last.entries = append(last.entries[:min(len(last.entries), folds.MaxAdd)], ", By: by},
		{Name: "a boot that is full keeps etcd frozen", File: f, Old: " || errors.Is(err, folds.ErrFull) {", New: " {", By: by},
		{Name: "etcd is not frozen", File: f, Old: "Deletes: []string{k.cfg.Keys.Epoch(), k.cfg.Keys.Filled()}}},\n	})", New: "}},\n	})", By: by},
		{Name: "a late request freezes etcd again", File: f, Old: ", {Key: k.cfg.Keys.Epoch(), Is: claims.Modified, Revision: s.epochAt},", New: ",", By: by},
		{Name: "a recovery that did not end is frozen", File: f, Old: "	} else if err != nil {\n		return Record{}, err\n	}", New: "	}", By: by},
		{Name: "etcd stays frozen", File: f, Old: "		if err2 := k.thaw(ctx, s); err2 != nil {", New: "		if err2 := error(nil); err2 != nil {", By: by},
		{Name: "nobody goes on", File: "regions.go", Old: "recover && (errors.Is(err, ErrDissolved) || errors.Is(err, ErrDissolving))", New: "recover && errors.Is(err, ErrDissolved)", By: by},
		{Name: "whoever leads recovers what is frozen", File: "regions.go", Old: "case s.marked(newest):", New: "case false:", By: by},
		{Name: "the mark of another epoch counts", File: f, Old: "bytes.HasPrefix(s.mark, e)", New: "bytes.HasPrefix(s.mark, e[:1])", By: "TestACopyOf"},
		{Name: "the mark of another etcd counts", File: f, Old: "s.cluster == newest.Cluster && ", New: "", By: "TestACopyOf"},
		{Name: "the mark outlives a recovery", File: "recover.go", Old: "f.k.cfg.Keys.Filled(), f.k.cfg.Keys.Dissolving()}", New: "f.k.cfg.Keys.Filled()}", By: "TestACopyOf"},
		{Name: "a recovery begins by itself", File: "regions.go", Old: "case newest.Dissolved:", New: "case false:", By: by},
		{Name: "a mover goes on over the end", File: "move.go", Old: "if newest.Dissolved && newest.ID != c.again {", New: "if newest.ID == c.again && false {", By: by},
		{Name: "what was accepted since is not prepared", File: "prepare.go", Old: " && !newest.Dissolved; b.member {", New: "; b.member {", By: by},
		{Name: "the last region need not be prepared", File: "move.go", Old: "return slices.Compact(append(slices.Clone(newest.Regions), c.add))", New: "return []claims.Region{c.add}", By: by},
		{Name: "one of several regions may end it", File: f, Old: "case !slices.Equal(newest.Regions, []claims.Region{name}):", New: "case false:", By: by},
		{Name: "a region that may know more is not asked", File: f, Old: "		if !slices.ContainsFunc(newest.Retired, func(t Retired) bool { return t.Name == u.Region }) {", New: "		if false {", By: by},
		{Name: "etcd keeps the claims", File: f, Old: "		if err := f.drop(ctx, all); err != nil {", New: "		if err := f.drop(ctx, all+\"none/\"); err != nil {", By: by},
		{Name: "a copy of etcd keeps its epoch", File: f, Old: "	if s.value != nil {\n		// Of a copy", New: "	if false {\n		// Of a copy", By: by},
		{Name: "late requests drop what is there in the next epoch", File: "recover.go", Old: "return []claims.Guard{{Key: f.k.cfg.Keys.Epoch(), Is: claims.Absent}}", New: "return nil", By: by},
		{Name: "the number stays", File: f, Old: "Number: was.Number + 1", New: "Number: was.Number", By: by},
		{Name: "a region can't be added any more", File: "regions.go", Old: "c.again = r.ID", New: "c.again = claims.ID{}", By: by},
		{Name: "a late beginning goes over another end", File: "move.go", Old: "newest.ID != c.again {", New: "c.again.IsZero() {", By: "TestABeginningThatIsLate"},
	}})
}
