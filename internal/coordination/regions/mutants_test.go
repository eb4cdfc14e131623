package regions_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants bugs of recoveries, which the tests must find.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Skip: "Mutants", Env: []string{"REGIONS_SIM_SCHEDULES=300"}, Timeout: 5 * time.Minute, Mutants: []mutants.Mutant{
		{Name: "another cluster is believed", File: "regions.go", Old: "case s.cluster != newest.Cluster:", New: "case false:", By: "TestRestore"},
		{Name: "a recovery that did not end is opened", File: "regions.go", Old: "case !s.filled:", New: "case false:", By: "TestKilled|TestOvertaken"},
		{Name: "any epoch with the number is right", File: "regions.go", Old: "s.epoch.Number != newest.Number || s.epoch.ID != newest.ID", New: "s.epoch.Number != newest.Number", By: "TestEpochsOfOneNumber"},
		{Name: "a region that is away is passed over", File: "move.go", Old: "if slices.Contains(regions, u.Region) {", New: "if false {", By: "TestRecoveryWaits"},
		{Name: "settings without a region retire it", File: "move.go", Old: "if !slices.Contains(k.names, n) {", New: "if false {", By: "TestAddARegion"},
		{Name: "the copy is believed", File: "recover.go", Old: "all := []string{keys.Claims(), keys.Folded(), keys.Forgottens()}", New: "all := []string{}", By: "TestRestore"},
		{Name: "a recovery that was overtaken writes on", File: "recover.go", Old: "case !r.Held:", New: "case false:", By: "TestOvertaken"},
		{Name: "inserts do not compare the epoch", File: "recover.go", Old: "txn := claims.Txn{Guards: f.guard(), Parts", New: "txn := claims.Txn{Parts", By: "TestOvertaken"},
		{Name: "the end does not compare the epoch", File: "recover.go", Old: "r, err := f.k.cfg.KV.Commit(ctx, claims.Txn{Guards: f.guard(), Parts: []claims.Part{{\n		Puts: []claims.Put{{Key: f.k.cfg.Keys.Filled()", New: "r, err := f.k.cfg.KV.Commit(ctx, claims.Txn{Parts: []claims.Part{{\n		Puts: []claims.Put{{Key: f.k.cfg.Keys.Filled()", By: "TestOvertaken"},
		{Name: "the lowest stamp wins", File: "scan.go", Old: "o.stamp.Compare(m.stamp)", New: "m.stamp.Compare(o.stamp)", By: "TestRecoveryTakes"},
		{Name: "affirmations are ignored", File: "scan.go", Old: "s.Compare(m.stamp) > 0 {", New: "false {", By: "TestRecoveryTakes"},
		{Name: "the last affirmation counts", File: "listing.go", Old: "s.Compare(affirmed[id]) > 0 {", New: "s.Compare(affirmed[id]) < 0 || affirmed[id].IsZero() {", By: "TestRecoveryTakes"},
		{Name: "ranges that meet are taken", File: "recover.go", Old: "if i < len(taken) && taken[i].id.SeqStart <= m.id.SeqEnd {", New: "if i < len(taken) && taken[i].id == m.id {", By: "TestRecoveryTakes"},
		{Name: "a manifest that can't be read is left out", File: "scan.go", Old: "err != nil {\n			return &RegionError{\"read a manifest\", r.Name, err}\n		}", New: "err != nil {\n			r.of.found[r.at].stamp.Epoch = 0\n		}", By: "TestRecoveryStops"},
		{Name: "another region's bucket is taken", File: "move.go", Old: "if there.Number > 0 && there.Region != r.Name {", New: "if false {", By: "TestTwoNames"},
		{Name: "settings with none of the regions begin anew", File: "move.go", Old: "case s.epoch.Number > 0:", New: "case false:", By: "TestAddARegion"},
		{Name: "epochs do not grow", File: "move.go", Old: "max(newest.Number, s.epoch.Number) + 1", New: "max(newest.Number, s.epoch.Number, 1)", By: "TestRestore"},
		// Of recoveries that meet late requests, and each other.
		{Name: "a copy takes the epoch of a recovery that began before it", File: "recover.go", Old: "claims.Txn{Guards: []claims.Guard{g}, Parts", New: "claims.Txn{Parts", By: "TestSimulation|TestOvertaken"},
		{Name: "claims are dropped whatever they are", File: "recover.go", Old: "Is: claims.Modified, Revision: e.Modified})", New: "Is: claims.Modified, Revision: e.Modified})\n			old.Guards = nil", By: "TestRequests"},
		{Name: "a late insert is applied in the open epoch", File: "recover.go", Old: ", {Key: f.k.cfg.Keys.Filled(), Is: claims.Absent}}", New: "}", By: "TestRequests"},
		{Name: "the mark of the last recovery stays", File: "recover.go", Old: ", Deletes: []string{f.k.cfg.Keys.Filled(), f.k.cfg.Keys.Dissolving()},", New: ", Deletes: []string{f.k.cfg.Keys.Dissolving()},", By: "TestRestore"},
		{Name: "the rest of the claims is not inserted", File: "recover.go", Old: "	if err := f.flush(ctx); err != nil {\n		return Opened{}, err\n	}", New: "", By: "TestSimulation|TestRecoveryTakes"},
		{Name: "inserted claims are not recovered ones", File: "recover.go", Old: "State: claims.Claimed, Recovered: true,", New: "State: claims.Claimed,", By: "TestSimulation|TestRecoveryTakes"},
		{Name: "the home is any region", File: "recover.go", Old: "Home: m.region,", New: "Home: f.epoch.Regions[0],", By: "TestSimulation"},
		{Name: "a region of the epoch is not read", File: "scan.go", Old: "if e.Retired(r.Name) {", New: "if e.Regions[0] == r.Name && len(e.Regions) > 1 {", By: "TestSimulation|TestRecoveryTakes"},
		{Name: "a boot of one region is read in that alone", File: "scan.go", Old: "for l.more && l.boot() == at {", New: "for l.more && l.boot() == at && (len(b.ids) == 0 || len(b.ids[l.Name]) > 0) {", By: "TestSimulation|TestRecoveryTakes"},
		{Name: "a record whose write nobody knows of is taken", File: "move.go", Old: "rec); err != nil {", New: "rec); err != nil && !errors.Is(err, objstore.ErrUnknown) {", By: "TestSimulation"},
		{Name: "an added region is in its settings alone", File: "move.go", Old: "e.Regions = append(e.Regions, c.add)", New: "", By: "TestAddARegion|TestSimulation"},
		{Name: "the lowest record is the newest", File: "regions.go", Old: "if f.Number > r.Number ||", New: "if !ok || f.Number < r.Number ||", By: "TestAMoverThatDied"},
		{Name: "revisions may go back", File: "regions.go", Old: "s.revision < o.Revision", New: "false", By: "TestRestoredUnder"},
		{Name: "an epoch that was opened since is distrusted", File: "regions.go", Old: "s.value != nil && (s.epoch.Number < was.Epoch.Number || s.epoch.ID == was.Epoch.ID)", New: "s.value != nil", By: "TestRestoredUnder"},
		{Name: "an epoch that is opened meanwhile is distrusted", File: "regions.go", Old: "claims.Txn{Guards: []claims.Guard{g}, Parts: []claims.Part{{Deletes", New: "claims.Txn{Parts: []claims.Part{{Deletes", By: "TestAnEarlierEpoch"},
		{Name: "an earlier epoch is trusted", File: "regions.go", Old: "(s.epoch.Number < was.Epoch.Number || s.epoch.ID == was.Epoch.ID)", New: "s.epoch.ID == was.Epoch.ID", By: "TestAnEarlierEpoch"},
		{Name: "a recovery goes on in a copy of its own etcd", File: "recover.go", Old: "if f.last.Key != \"\" {", New: "if false {", By: "TestEtcdForgets"},
		{Name: "what came back while etcd was emptied stays", File: "recover.go", Old: "		g = append(g, claims.Guard{Key: prefix, End: beyond(prefix), Is: claims.Absent})\n", New: "", By: "TestEtcdForgets"},
		// Of what is folded.
		{Name: "what is folded is inserted", File: "listing.go", Old: "	if !b.meets(id) {\n		return false\n	}\n	_, exact", New: "	if id.SeqEnd > 0 {\n		return false\n	}\n	_, exact", By: "TestSimulation|TestRecoveryLeaves"},
		{Name: "a fold of one region is enough for a recovery", File: "../folds/look.go", Old: "if err == nil && len(s.Heads) < len(l.folder.Regions) {", New: "if false {", By: "TestRecoveryWaitsForFolds"},
		{Name: "heads that differ stay so", File: "../folds/look.go", Old: "if len(s.Heads) == len(there) {", New: "if s.Head, err = Unite(s.Head, there[len(there)-1].head, l.folder.Retired); err == nil {", By: "TestSimulation|TestRecoveryLeaves"},
		{Name: "who is refused is told half a hash", File: "folded.go", Old: "if err == nil && folds.DigestOf(m.FrameSHA256) != e.Digest {", New: "if false {", By: "TestFolded"},
		{Name: "another range is another frame", File: "folded.go", Old: "if a.Outcome = claims.Conflict; found.Verdict == folds.OtherRange {", New: "if a.Outcome = claims.Conflict; false {", By: "TestFolded"},
		{Name: "what is folded is free", File: "folded.go", Old: "if err != nil || found.Verdict == folds.Free {", New: "if err != nil || found.Verdict != folds.Same {", By: "TestFolded|TestSimulation"},
		// Of a region that is retired.
		{Name: "what etcd has of a retired region is forgotten", File: "recover.go", Old: "if s.leaving() {", New: "if false {", By: "TestRetire|TestKilledAtEvery|TestSimulation"},
		{Name: "what is recovered of it is forgotten", File: "keep.go", Old: "c.State == claims.Claimed && !c.Recovered {", New: "c.State == claims.Claimed {", By: "TestRetire|TestWhatIsKept"},
		{Name: "what nobody was answered for is kept", File: "keep.go", Old: "|| c.State == claims.Claimed && !c.Recovered {", New: "{", By: "TestRetire"},
		{Name: "what a copy of etcd says of it is believed", File: "keep.go", Old: "m.stamp.Compare(c.Stamp) > 0", New: "false", By: "TestALateComplete|TestWhatIsKept"},
		{Name: "what other regions have affirmed says nothing", File: "keep.go", Old: "s.Compare(m.stamp) > 0 {", New: "false {", By: "TestALateComplete"},
		{Name: "what other regions have speaks against it, however early", File: "keep.go", Old: "m.stamp.Compare(c.Stamp) > 0", New: "true", By: "TestALateComplete|TestRetire"},
		{Name: "what is folded does not speak against it", File: "keep.go", Old: "return folded.meets(c.Identity) })", New: "return false })", By: "TestALateComplete"},
		{Name: "manifests before a claim are passed over", File: "keep.go", Old: "folded.below(left[0].Identity.SeqStart))", New: "left[0].Identity.SeqStart)", By: "TestALateComplete"},
		{Name: "the record of a retired region counts", File: "regions.go", Old: "if s.isRetired(name) {", New: "if false && s.isRetired(name) {", By: "TestTheRecordOf"},
		{Name: "what is left of a retired region is forgotten by the next to open", File: "move.go", Old: "if s.filled && s.epoch.Number == newest.Number {", New: "if true {", By: "TestKilledAtEvery"},
		{Name: "names of retired regions are forgotten", File: "move.go", Old: "retired = append(retired, Retired{Name: c.retire})", New: "", By: "TestRetire"},
		{Name: "a retired region takes part", File: "move.go", Old: "e.Regions = slices.Delete(e.Regions, i, i+1)", New: "", By: "TestRetire"},
		{Name: "etcd that was restored need not know everything", File: "move.go", Old: "c.forget || s.filled && s.cluster == newest.Cluster {", New: "c.forget || s.filled && newest.Number > 0 {", By: "TestRetireRefuses"},
		{Name: "the last region is retired", File: "retire.go", Old: "case len(newest.Regions) == 1:", New: "case false:", By: "TestRetire"},
		{Name: "what a retired region decided is decided", File: "folded.go", Old: "if found.Verdict == folds.Same && !f.retired(found.Entry.Home) {", New: "if found.Verdict == folds.Same {", By: "TestRetire|TestSimulation"},
		{Name: "what a retired region decided is free", File: "folded.go", Old: "found.Looked.Bound = true", New: "", By: "TestRetire"},
		{Name: "what was accepted again is left out", File: "listing.go", Old: "	return !exact\n", New: "	return exact || true\n", By: "TestRetire|TestSimulation"},
		{Name: "what lost against a retired region is taken", File: "listing.go", Old: "return !exact || e.Digest == folds.DigestOf(hash)", New: "return true || e.Digest == folds.DigestOf(hash) && exact", By: "TestRetire|TestSimulation"},
		{Name: "boots are found by their manifests alone", File: "scan.go", Old: "	for len(boots) < scanBoots {\n		at := ", New: "	for false {\n		at := ", By: "TestRetire|TestRecoveryLeaves"},
		{Name: "a number behind a run is passed over", File: "listing.go", Old: "layout.BootFrom(prefix, b.boot, r.end+1)", New: "layout.BootFrom(prefix, b.boot, r.end+2)", By: "TestRunsArePassedOver"},
		{Name: "what lies between runs is passed over", File: "listing.go", Old: "b.runs[n-1].end != math.MaxUint64 && b.runs[n-1].end+1 == e.Start {", New: "b.runs[n-1].end != math.MaxUint64 {", By: "TestRunsArePassedOver"},
		{Name: "what begins before a run is passed over with it", File: "listing.go", Old: "folded.inside(l.id.SeqStart); l.more", New: "folded.inside(l.id.SeqEnd); l.more", By: "TestRunsArePassedOver"},
		{Name: "all of a run is listed", File: "listing.go", Old: "; l.more && inside {", New: "; false && inside {", By: "TestRecoveryOfALong"},
		{Name: "what follows a page that was read ahead is left out", File: "listing.go", Old: "			l.page, l.next = p.Objects, p.Next\n			delete", New: "			l.page, l.next = p.Objects, \"\"\n			delete", By: "TestRecoveryOf"},
		{Name: "affirmations of one page count", File: "listing.go", Old: "p.Next == \"\" || seq > last {", New: "true || seq > last {", By: "TestRunsArePassedOver"},
		{Name: "affirmations of the last manifest may be on the next page", File: "listing.go", Old: "p.Next == \"\" || seq > last {", New: "p.Next == \"\" || seq >= last {", By: "TestRunsArePassedOver"},
		{Name: "a boot behind those with folds is left out", File: "scan.go", Old: "		s.all = true\n		return nil", New: "		s.all = true\n		s.lists = nil\n		return nil", By: "TestRunsArePassedOver|TestRecoveryTakes"},
		{Name: "a boot before those with folds is left out", File: "scan.go", Old: "if l.more && (s.all || l.boot() <= s.bound) && (!ok || l.boot() < at) {", New: "if l.more && (s.all || l.boot() <= s.bound) && !ok {", By: "TestRunsArePassedOver|TestSimulation"},
		// Of the linearizer, which the simulation must find.
		{Name: "answers of another cluster count", File: "../claims/flight.go", Old: "case g.cfg.Cluster != 0 && r.Cluster != g.cfg.Cluster:", New: "case false:", By: "TestSimulation"},
		{Name: "recovered claims are taken over", File: "../claims/decide.go", Old: "case c.Recovered:\n\t\treturn d.answer(Contested, c)\n\t}\n\tc.ID", New: "case false:\n\t\treturn d.answer(Contested, c)\n\t}\n\tc.ID", By: "TestSimulation"},
		{Name: "what is folded is decided anew", File: "../claims/decide.go", Old: "	if !d.seen(op.Identity, op.Looked) {", New: "	if d.seen(op.Identity, op.Looked); false {", By: "TestSimulation"},
		{Name: "a boot is forgotten without a trace", File: "../claims/part.go", Old: "p.Puts = append(p.Puts, Put{Key: d.keys.forgotten, Value: []byte{version}})", New: "", By: "TestSimulation"},
	}})
}
