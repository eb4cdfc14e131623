package folds_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants bugs of folders and look-ups. Those that the simulation is to find name it.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Skip: "Mutants", Timeout: 2 * time.Minute, Mutants: []mutants.Mutant{
		{Name: "a head is written over", File: "fold.go", Old: "_, err = s.Replace(ctx, key, h.Marshal(), etag, o)", New: "_, now, _ := s.Get(ctx, key, objstore.GetOptions{})\n		_, err = s.Replace(ctx, key, h.Marshal(), now.ETag, o)", By: "TestSimulation"},
		{Name: "what is there is not kept", File: "fold.go", Old: "h.Tail, err = unite(h.Tail, fresh, f.Retired)", New: "h.Tail = fresh", By: "TestSimulation"},
		{Name: "an unknown outcome is a move", File: "fold.go", Old: "		if err == nil || !passes(err) || ctx.Err() != nil {\n			return h, err\n		}", New: "		if err == nil || errors.Is(err, objstore.ErrUnknown) {\n			return Head{Boot: boot, Generation: max(was.Generation+1, f.Epoch<<epochShift)}, nil\n		}\n		if !passes(err) {\n			return h, err\n		}", By: "TestSimulation"},
		{Name: "generations do not have the epoch", File: "fold.go", Old: "max(h.Generation+1, f.Epoch<<epochShift)", New: "h.Generation + 1", By: "TestSimulation"},
		{Name: "an epoch that is over moves the head", File: "fold.go", Old: "if h.Generation>>epochShift > f.Epoch {", New: "if false {", By: "TestSimulation|TestTheFirstRegion"},
		{Name: "a head that is behind is moved", File: "fold.go", Old: "		if h.Generation < g {\n			// The region", New: "		if false {\n			// The region", By: "TestSimulation"},
		{Name: "what others have is not gathered", File: "fold.go", Old: "h, err = f.unite(ctx, f.Regions[0].Store, h, o)", New: "h.Generation = max(h.Generation, o.Generation)", By: "TestSimulation"},
		{Name: "copies are not needed", File: "fold.go", Old: "if m.Copies < min(2, len(f.Regions)) {", New: "if false {", By: "TestCopies"},
		{Name: "a copy takes the place of another", File: "fold.go", Old: "next, err := f.unite(ctx, r.Store, h, was)", New: "next, err := h, error(nil)", By: "TestSimulation|TestACopyKeeps"},
		{Name: "parts are not copied", File: "fold.go", Old: "		if err := create(ctx, to, all.Boot, b); err != nil {\n			return err\n		}", New: "", By: "TestSimulation"},
		{Name: "the head precedes its part", File: "fold.go", Old: "	if body != nil {\n		if err := create(ctx, s, h.Boot, body); err != nil {\n			return Head{}, err\n		}\n	}", New: "	if body != nil {\n		defer func() { _ = create(ctx, s, h.Boot, body) }()\n	}", By: "TestSimulation"},
		{Name: "a cache that is old answers", File: "look.go", Old: "if !ok || h.Generation < g {", New: "if !ok {", By: "TestSimulation"},
		{Name: "a copy that is old answers", File: "look.go", Old: "if err == nil && h.Generation < g {", New: "if false {", By: "TestSimulation"},
		{Name: "what can't be read is free", File: "look.go", Old: "	return Head{}, errors.Join(errs...)", New: "	return Head{Boot: boot}, nil", By: "TestSimulation"},
		{Name: "a part that can't be read is empty", File: "look.go", Old: "	return nil, errors.Join(errs...)", New: "	return nil, nil", By: "TestSimulation|TestUnreadable"},
		{Name: "parts are not looked at", File: "look.go", Old: "range h.Meeting(id.SeqStart, id.SeqEnd) {", New: "range h.Meeting(id.SeqStart, id.SeqEnd)[:0] {", By: "TestSimulation"},
		{Name: "digests are not compared", File: "folds.go", Old: "e.End == o.End && e.Digest == o.Digest", New: "e.End == o.End", By: "TestSimulation|TestALongHistory"},
		{Name: "ranges that meet are free", File: "look.go", Old: "case found.Verdict == Free:", New: "case false:", By: "TestSimulation|TestALongHistory"},
		{Name: "homes that contradict are merged", File: "folds.go", Old: "case a.Home == b.Home || retired(b.Home) && !retired(a.Home):", New: "case true:", By: "TestUnion|TestPartsAreMinded"},
		{Name: "contradictions are merged", File: "folds.go", Old: "		if !out[n-1].same(e) {\n			return nil, contradiction(out[n-1], e)\n		}", New: "", By: "TestUnion"},
	}})
}
