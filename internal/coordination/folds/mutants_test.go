package folds_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants bugs of folders and look-ups. Those that the simulation is to find name it.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Skip: "Mutants", Timeout: 2 * time.Minute, Mutants: []mutants.Mutant{
		{Name: "a head is written over", File: "fold.go", Old: "_, err = r.Store.Replace(ctx, key, h.Marshal(), r.etag, o)", New: "_, now, _ := r.Store.Get(ctx, key, objstore.GetOptions{})\n		_, err = r.Store.Replace(ctx, key, h.Marshal(), now.ETag, o)", By: "TestSimulation"},
		{Name: "what a region has is not kept", File: "fold.go", Old: "next, err := f.unite(ctx, p, want, r.head)\n		if err", New: "next, err := want, error(nil)\n		if err", By: "TestSimulation"},
		{Name: "what others have is not wanted", File: "fold.go", Old: "if want, err = f.unite(ctx, p, want, r.head); err != nil {", New: "if r.Name != p.there[0].Name {\n			continue\n		}\n		if want, err = f.unite(ctx, p, want, r.head); err != nil {", By: "TestSimulation|TestARegionKeeps"},
		{Name: "an unknown outcome is a move", File: "fold.go", Old: "		if err == nil {\n			return next, nil\n		}\n		if !passes", New: "		if err == nil || errors.Is(err, objstore.ErrUnknown) {\n			return next, nil\n		}\n		if !passes", By: "TestSimulation"},
		{Name: "generations do not grow", File: "fold.go", Old: "next.Generation = r.head.Generation + 1", New: "next.Generation = max(r.head.Generation, 1)", By: "TestSimulation"},
		{Name: "regions that are behind fold", File: "fold.go", Old: "named && h.Generation >= g {", New: "named {", By: "TestRegionsComeAndGo"},
		{Name: "any region tells of a boot that etcd does not know", File: "fold.go", Old: "enough = len(there) >= max(1, len(f.Regions)-1)", New: "enough = len(there) >= 1", By: "TestSimulation"},
		{Name: "one region is enough", File: "fold.go", Old: "if len(m.Heads) < min(2, len(f.Regions)) {", New: "if len(m.Heads) == 0 {", By: "TestSimulation"},
		{Name: "parts are not copied", File: "fold.go", Old: "			err = create(ctx, to.Store, next.Boot, b)\n", New: "			_ = b\n", By: "TestSimulation"},
		{Name: "the head precedes its part", File: "fold.go", Old: "		if err = p.bring(ctx, r, next); err == nil {\n			err = write(ctx, r, next)\n		}", New: "		if err = write(ctx, r, next); err == nil {\n			err = p.bring(ctx, r, next)\n		}", By: "TestSimulation"},
		{Name: "a part is named twice", File: "folds.go", Old: "if h.Tail = nil; h.names(p) {", New: "if h.Tail = nil; false {", By: "TestSimulation"},
		{Name: "a cache that is old answers", File: "look.go", Old: "ok && s.Suffices(known) {", New: "ok {", By: "TestSimulation"},
		{Name: "a head that is old answers", File: "look.go", Old: "if err == nil && h.Generation >= g {", New: "if err == nil {", By: "TestRegionsComeAndGo"},
		{Name: "any region's head answers", File: "look.go", Old: "		if !named {\n			continue\n		}", New: "		_ = named", By: "TestSimulation"},
		{Name: "heads that differ are each taken for all", File: "look.go", Old: "if len(s.Heads) == len(there) {", New: "if true {", By: "TestSimulation"},
		{Name: "all that is there now was seen", File: "look.go", Old: "claims.Heads{{Region: m.Region, Generation: g}}, Above", New: "append(m.Heads[:0:0], append(m.Heads, claims.HeadAt{Region: \"zzz\", Generation: g})...), Above", By: "TestSimulation"},
		{Name: "parts are not below anything", File: "folds.go", Old: "		last = max(last, p.End)\n", New: "		_ = p\n", By: "TestSimulation"},
		{Name: "what is above is one too few", File: "folds.go", Old: "	return last + 1\n", New: "	return last\n", By: "TestSimulation"},
		{Name: "what is folded is guessed to be free", File: "look.go", Old: "if !ok || len(meeting(s.Tail, id.SeqStart, id.SeqEnd)) > 0 {", New: "if !ok {", By: "TestSimulation"},
		{Name: "a part that can't be read is empty", File: "look.go", Old: "	return nil, errors.Join(errs...)", New: "	return nil, nil", By: "TestSimulation|TestUnreadable"},
		{Name: "parts are not looked at", File: "look.go", Old: "range h.Meeting(id.SeqStart, id.SeqEnd) {", New: "range h.Meeting(id.SeqStart, id.SeqEnd)[:0] {", By: "TestSimulation"},
		{Name: "digests are not compared", File: "folds.go", Old: "e.End == o.End && e.Digest == o.Digest", New: "e.End == o.End", By: "TestSimulation|TestALongHistory"},
		{Name: "ranges that meet are free", File: "look.go", Old: "case found.Verdict == Free:", New: "case false:", By: "TestSimulation|TestALongHistory"},
		{Name: "homes that contradict are merged", File: "folds.go", Old: "case a.Home == b.Home || retired(b.Home) && !retired(a.Home):", New: "case true:", By: "TestUnion|TestPartsAreMinded"},
		{Name: "contradictions are merged", File: "folds.go", Old: "		if !out[n-1].same(e) {\n			return nil, contradiction(out[n-1], e)\n		}", New: "", By: "TestUnion"},
	}})
}
