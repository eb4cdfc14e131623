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
		{Name: "the head precedes its part", File: "fold.go", Old: "		if err = p.bring(ctx, r, next, nil); err == nil {\n			err = write(ctx, r, next)\n		}", New: "		if err = write(ctx, r, next); err == nil {\n			err = p.bring(ctx, r, next, nil)\n		}", By: "TestSimulation"},
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
		{Name: "homes that contradict are merged", File: "folds.go", Old: "case a.Home == b.Home:", New: "case true:", By: "TestUnion|TestPartsAreMinded"},
		{Name: "a home that the epoch does not know is retired", File: "folds.go", Old: "case !h.knows(a.Home) || !h.knows(b.Home):", New: "case false:", By: "TestAHomeOf"},
		{Name: "what has a home that the epoch does not know is left out", File: "fold.go", Old: "if errors.Is(err, ErrUnknownHome) {", New: "if false {", By: "TestAHomeOf"},
		// Of what is prepared, and of heads that are raised.
		{Name: "a prepared head precedes its part", File: "prepared.go", Old: "			if err := create(ctx, r.Store, h.Boot, b); err != nil {", New: "			if err := create(ctx, r.Store, h.Boot, b); err != nil && r.Name != p.Own.Name {", By: "TestPrepareSimulation"},
		{Name: "parts of what is prepared lie in one region", File: "prepared.go", Old: "range append(p.Others[:len(p.Others):len(p.Others)], p.Own) {", New: "range []Region{p.Own} {", By: "TestPrepare"},
		{Name: "other regions do not know what is prepared", File: "prepared.go", Old: "		if err := Mark(ctx, r.Store, p.Own.Name, h.Boot); err != nil {", New: "		if err := error(nil); err != nil {", By: "TestPrepare"},
		{Name: "what was prepared before is prepared again", File: "prepared.go", Old: "case len(met) == 0:", New: "case len(met) <= 1:", By: "TestPrepare"},
		{Name: "parts that were prepared are not looked at", File: "prepared.go", Old: "range h.Meeting(e.Start, e.End) {", New: "range h.Meeting(e.Start, e.End)[:0] {", By: "TestPrepare"},
		{Name: "a prepared head is written over", File: "prepared.go", Old: "_, err = p.Own.Store.Replace(ctx, key, h.Marshal(), etag, o)", New: "_, now, _ := p.Own.Store.Get(ctx, key, objstore.GetOptions{})\n		_, err = p.Own.Store.Replace(ctx, key, h.Marshal(), now.ETag, o)", By: "TestPrepareSimulation"},
		{Name: "the rest of a long tail is dropped", File: "prepared.go", Old: "		if len(all) == 0 {\n			break\n		}", New: "		break", By: "TestPrepare"},
		{Name: "an unknown outcome is a head that was raised", File: "raise.go", Old: "if err == nil || !passes(err) || ctx.Err() != nil || try == tries {\n			return err", New: "if err == nil || passes(err) || ctx.Err() != nil || try == tries {\n			return nil", By: "TestRaise"},
		{Name: "a head is raised from where others have moved it", File: "raise.go", Old: "		case etag != r.etag:", New: "		case etag != r.etag:\n			r.etag = etag\n		case false:", By: "TestRaise"},
		{Name: "any head of the generation is ours", File: "raise.go", Old: "now.Generation == next.Generation && now.equal(next):", New: "now.Generation == next.Generation:", By: "TestRaise"},
		{Name: "heads that have everything are not raised", File: "raise.go", Old: "		if err = s.p.bring(ctx, r, next, has); err == nil {", New: "		if next.equal(r.head) {\n			continue\n		}\n		if err = s.p.bring(ctx, r, next, has); err == nil {", By: "TestRaise"},
		{Name: "a region that is away is not waited for", File: "raise.go", Old: "if err == nil && len(there) < len(f.Regions) {", New: "if false {", By: "TestRaise"},
		{Name: "parts of other heads are not brought", File: "raise.go", Old: "s.p.bring(ctx, r, next, has); err == nil {", New: "s.p.bring(ctx, r, Head{}, has); err == nil {", By: "TestRaise"},
		{Name: "entries that contradict are folded", File: "fold.go", Old: "fits = fits && o.same(e) && err == nil", New: "fits = err == nil || fits", By: "TestALenientFolder"},
		{Name: "entries that contradict in parts are folded", File: "fold.go", Old: "met = append(met[:len(met):len(met)], meeting(es, e.Start, e.End)...)\n		}\n		fits := true", New: "_ = es\n		}\n		fits := true", By: "TestALenientFolder"},
		{Name: "contradictions are merged", File: "folds.go", Old: "		if !out[n-1].same(e) {\n			return nil, contradiction(out[n-1], e)\n		}", New: "", By: "TestUnion"},
	}})
}
