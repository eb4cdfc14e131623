package regions_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsOfMoversAreCaught plants bugs of movers that are there at once, of which the simulation of movers is to find most.
func TestMutantsOfMoversAreCaught(t *testing.T) {
	const sim = "TestSimulationOfMovers"
	mutants.Check(t, mutants.List{Run: sim + "|TestTwo|TestRetire|TestARetirement", Env: []string{"REGIONS_SIM_SCHEDULES=6000"}, Timeout: 5 * time.Minute, Mutants: []mutants.Mutant{
		{Name: "of a circle none counts", File: "newest.go", Old: "n, ok := s.right(open, counts)", New: "n, ok := s.right(nil, counts)", By: sim + "|TestTwo"},
		{Name: "the epoch of etcd says nothing about a circle", File: "newest.go", Old: "r.Number == s.epoch.Number && r.ID == s.epoch.ID {", New: "r.Number == s.epoch.Number && false {", By: sim},
		{Name: "the first of any circle counts", File: "newest.go", Old: "	for n := range counts {\n		if len(circle) > 0 && ", New: "	for n := range s.found {\n		if len(circle) > 0 || ", By: sim + "|TestTwo"},
		{Name: "void records retire regions", File: "newest.go", Old: "			if !void[by] {\n				gone", New: "			if !void[by] || true {\n				gone", By: sim},
		{Name: "two regions are retired in one epoch", File: "move.go", Old: "if len(left) < max(1, len(s.epoch.Regions)-1) {", New: "if len(left) < 0 {", By: sim},
		{Name: "both of two regions are retired", File: "move.go", Old: "len(e) == 2 && last != \"\" && last != c.retire &&", New: "false &&", By: sim + "|TestTwo"},
		{Name: "the record that is left is the last one", File: "move.go", Old: "if err := s.last(newest, c.retire); err != nil {", New: "if err := error(nil); err != nil {", By: sim + "|TestTheRecordOf"},
		{Name: "a region that does not answer knows of nothing later", File: "move.go", Old: "if u.Region != but && !newest.retired(u.Region) {", New: "if false {", By: "TestTheRecordOf"},
		{Name: "etcd knows of nothing later", File: "move.go", Old: "	return s.latest(newest)\n", New: "	return nil\n", By: "TestTheRecordOf"},
		{Name: "etcd stays reserved", File: "recover.go", Old: "part.Deletes = append(part.Deletes, f.k.cfg.Keys.Retiring())", New: "part.Deletes = append(part.Deletes, f.k.cfg.Keys.Dissolving())", By: "TestRetiringARegionThatIs"},
		{Name: "what was begun to be retired can't be retired", File: "move.go", Old: "last != \"\" && last != c.retire && slices", New: "last != \"\" && slices", By: "TestARetirementThatBegan"},
		{Name: "the other of two regions is retired beside an addition", File: "move.go", Old: "if e, last := s.epoch.Regions, s.lastRetiring(s.epoch.Regions); len(e)", New: "if e, last := newest.Regions, s.lastRetiring(newest.Regions); len(e)", By: "TestARetirementThatBegan"},
		{Name: "any region is held by a retirement that began", File: "move.go", Old: "last != c.retire && slices.Contains(e, c.retire) {", New: "last != c.retire {", By: "TestARetirementThatBegan"},
		{Name: "an empty bucket is that of a region", File: "move.go", Old: "if slices.Contains(of, n) && slices.Contains(s.epoch.Regions, n) {", New: "if false {", By: sim},
		{Name: "what an empty bucket had is forgotten without a word", File: "move.go", Old: "err != nil && c.forget == \"\" {", New: "err != nil && false {", By: "TestRetireTwo"},
		{Name: "beside an empty bucket nothing is retired", File: "move.go", Old: "err != nil && c.forget == \"\" {", New: "err != nil {", By: "TestRetireTwo"},
		{Name: "a record of long ago is recovered", File: "move.go", Old: "if known {\n		if err := s.latest(newest); err", New: "if known {\n		if err := error(nil); err", By: "TestTheRecordOf"},
		{Name: "what takes no part is retired by who is late", File: "move.go", Old: "} else if c.retire != \"\" && !newest.retired(c.retire) {", New: "} else if false {", By: "TestARetirementOf"},
		{Name: "a retirement succeeds by an epoch of another one", File: "retire.go", Old: "if err == nil && !slices.Contains(o.Retired, name) {", New: "if false {", By: "TestARetirementThatIsGone"},
		{Name: "an epoch that was overtaken before it was in etcd is opened", File: "recover.go", Old: "if err := k.holds(ctx, e); err != nil {", New: "if err := error(nil); err != nil {", By: "TestAnEpochThatWas"},
		{Name: "the last retirement that began counts, of any region", File: "leave.go", Old: "if slices.Contains(of, n) {", New: "if last = \"\"; slices.Contains(of, n) {", By: "TestARetirementThatBegan"},
		{Name: "the bucket of a retired region is not read", File: "leave.go", Old: "		} else if s.answers(n) && n", New: "		} else if false && n", By: "TestEtcdIsLostWhile"},
		{Name: "a copy that has a later epoch is not doubted", File: "move.go", Old: "(s.filled || s.value != nil && len(s.retiring) > 0):", New: "s.filled:", By: "TestALateBeginInACopy"},
		{Name: "a later epoch that was never opened is trusted", File: "regions.go", Old: "s.value != nil && !s.filled\n", New: "false\n", By: "TestALaterEpochThatWasNever"},
		{Name: "an emptied bucket of a retired region had nothing", File: "leave.go", Old: "slices.Contains(s.absent, t.Name) && !slices.Contains(s.epoch.Regions, t.Name)", New: "slices.Contains(s.absent, t.Name)", By: "TestAnEmptiedBucketOfARegion"},
		{Name: "to forget one region forgets others", File: "leave.go", Old: "asked := t.Name == c.forget || newest", New: "asked := c.forget != \"\" || newest", By: "TestToForgetOneRegion"},
		{Name: "to forget reads the bucket", File: "leave.go", Old: "s.answers(n) && n != c.forget {", New: "s.answers(n) {", By: "TestToForgetDoesNotRead"},
		{Name: "one record alone that everything is folded says nothing", File: "newest.go", Old: "r.Retired[i].Done || f.Number", New: "r.Retired[i].Done || false && f.Number", By: "TestOneRecordSays"},
		{Name: "of two retired regions the first one is right", File: "keep.go", Old: "f.epoch.Retired(r.Name) && !slices.Contains(f.reads, r.Name) {", New: "f.epoch.Retired(r.Name) {", By: "TestTwoRegionsThatAreThere"},
		{Name: "what a retired region had is forgotten without a word", File: "leave.go", Old: "if !t.Done && !asked", New: "if false && !asked", By: "TestEtcdIsLostWhile|TestACopyFrom"},
		{Name: "etcd is thought to have everything", File: "leave.go", Old: "&& slices.Contains(s.retiring, name)", New: "", By: "TestRetiringARegionThatIs"},
		{Name: "another etcd is thought to have everything", File: "leave.go", Old: "s.value != nil && s.cluster == newest.Cluster && slices", New: "s.value != nil && slices", By: "TestRetiringARegionThatIs|TestEtcdIsLostWhile|TestACopyFrom"},
		{Name: "an etcd that is doubted is thought to have everything", File: "move.go", Old: "Deletes: []string{k.cfg.Keys.Filled(), k.cfg.Keys.Retiring()}}},", New: "Deletes: []string{k.cfg.Keys.Filled()}}},", By: "TestRetiringARegionThatIs"},
		{Name: "it is not noted that everything is kept", File: "move.go", Old: "m.Joining, m.Retired = nil, done(m.Retired)", New: "m.Joining = nil", By: "TestRetire"},
		{Name: "the end of a recovery comes into a copy that is doubted", File: "move.go", Old: "Parts:  []claims.Part{{Puts: []claims.Put{{Key: key, Value: s.value}}, Deletes", New: "Parts:  []claims.Part{{Deletes", By: "TestTheEndOfARecovery"},
		{Name: "nobody goes on with a retirement that forgets", File: "retire.go", Old: "k.openBy(ctx, s, true, c)", New: "k.openBy(ctx, s, true, change{})", By: "TestARetirementThatForgets"},
		{Name: "an addition does not say that it was overtaken", File: "move.go", Old: "if errors.Is(err, objstore.ErrPreconditionFailed) {\n			err = fmt", New: "if false {\n			err = fmt", By: "TestAnAdditionThatIs"},
	}})
}
