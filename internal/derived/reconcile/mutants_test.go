package reconcile

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what follows from a manifest: what is trusted,
// what a repair record says, the order and the repetition of writes.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Mutants: []mutants.Mutant{
			{Name: "a manifest of another batch is believed", File: "reconcile.go", Old: "	case m.Identity != id:", New: "	case false:", By: "TestBadManifests"},
			{Name: "a manifest of another authority is believed", File: "reconcile.go", Old: "	case authority != \"\" && m.AuthorityID != authority:", New: "	case false:", By: "TestBadManifests"},
			{Name: "a conflict of another frame is believed", File: "reconcile.go", Old: "c.Identity != id || c.SubmittedSHA256 != d:", New: "c.Identity != id:", By: "TestBadConflicts"},
			{Name: "all is well, and the record stays", File: "repair.go", Old: "		if !o.Recheck {", New: "		if o.Recheck || !o.Recheck {", By: "TestBlobRepairOpensAndHeals"},
			{Name: "a record that changes is seen for the first time", File: "repair.go", Old: "		rec.FirstSeen = old.FirstSeen\n", New: "", By: "TestRepairKeepsFirstSeen"},
			{Name: "a record keeps its first cause", File: "repair.go", Old: "if old.Cause == rec.Cause && old.ManifestKey == rec.ManifestKey {", New: "if old.ManifestKey == rec.ManifestKey {", By: "TestRepairKeepsFirstSeen"},
			{Name: "a record that was there was opened now", File: "repair.go", Old: "	if !errors.Is(err, objstore.ErrExists) {\n		return err\n	}\n	return r.correct", New: "	if !errors.Is(err, objstore.ErrExists) {\n		return err\n	}\n	res.Opened = true\n	return r.correct", By: "TestBlobRepairOpensAndHeals"},
			{Name: "an unknown write is taken for done", File: "derived.go", Old: "case !errors.Is(err, objstore.ErrExists):", New: "case errors.Is(err, objstore.ErrNotFound):", By: "TestCrashMatrix|TestDerivedWritesThatFail"},
			{Name: "a look that fails is a look that found", File: "derived.go", Old: "			if err == nil {\n				continue", New: "			if !errors.Is(err, objstore.ErrNotFound) {\n				continue", By: "TestDerivedWritesThatFail"},
			{Name: "what is known by its time is written first", File: "derived.go", Old: "	for _, d := range ds {\n		if o.HeadFirst", New: "	for i := range ds {\n		d := ds[len(ds)-1-i]\n		if o.HeadFirst", By: "TestDerivedWritesThatFail"},
		},
	})
}
