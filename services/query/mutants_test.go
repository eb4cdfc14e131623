package query_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of queries over regions: in what is asked, what is believed of an answer, how series and
// values are put together, and what is said of each region.
func TestMutantsAreCaught(t *testing.T) {
	const one, fails, middle, rolled, agents, who, names, limits = "TestRegionsAnswerAsOneNode", "TestWhatARegionMaySay", "TestARegionLostInTheMiddle",
		"TestRolledRowsCrossAsValues", "TestAgentsOfAllRegions", "TestWhoMayReadForAnotherRegion", "TestNamesOfAllRegions", "TestLimitsCountWhatRegionsSend"
	const store, session, query = "../../internal/queries/promstore/others.go", "internal/regions/session.go", "internal/regions/query.go"
	mutants.Check(t, mutants.List{
		Run: one,
		Mutants: []mutants.Mutant{
			{Name: "what this region has is left out of the merge", File: store, Old: "if m.live != nil || m.published != nil {", New: "if m.live != nil && m.published != nil {"},
			{Name: "values are put together though series meet", File: "../../internal/queries/promstore/everywhere.go", Old: "case order == 0:\n			return nil, false", New: "case order == 0:\n			out, a = append(out, a[0]), a[1:]", By: rolled},
			{Name: "series without a value do not keep values apart", File: "regionserver.go", Old: "if err := errors.Join(ses.Check(), w.Series(found[i].Full(), agentlabel.Seen{})); err != nil {", New: "if t, _, _ := found[i].Points(); t == nil {\n			continue\n		}\n		if err := errors.Join(ses.Check(), w.Series(found[i].Full(), agentlabel.Seen{})); err != nil {", By: "TestSeriesWithoutValuesKeepValuesApart"},
			{Name: "rolled rows are never used", File: "regionserver.go", Old: "	found, ok, err := ses.RolledForOthers(w.ctx, *c)\n	if err != nil || !ok {", New: "	found, ok, err := ses.RolledForOthers(w.ctx, *c)\n	if err != nil || ok || !ok {", By: rolled},
			{Name: "samples of a region are cut at the range's end", File: "regionserver.go", Old: "ask.GetStartUnixMs(), ask.GetEndUnixMs(), ms...)\n	if err != nil {\n		return err\n	}\n	var in", New: "ask.GetStartUnixMs(), ask.GetEndUnixMs()-1, ms...)\n	if err != nil {\n		return err\n	}\n	var in", By: "TestSamplesAtTheEdgesOfARange"},
			{Name: "samples of a region are cut at the range's begin", File: "regionserver.go", Old: "ask.GetStartUnixMs(), ask.GetEndUnixMs(), ms...)\n	if err != nil {\n		return err\n	}\n	var in", New: "ask.GetStartUnixMs()+1, ask.GetEndUnixMs(), ms...)\n	if err != nil {\n		return err\n	}\n	var in", By: "TestSamplesAtTheEdgesOfARange"},
			{Name: "a region that is lost in the middle stays in", File: query, Old: "torn := s.contributed && s.lost != nil", New: "torn := false && s.lost != nil", By: middle},
			{Name: "the caller's token goes to other regions", File: "../../internal/service/local.go", Old: "return metadata.NewOutgoingContext(ctx, nil)", New: "return ctx", By: "TestCredentialsBetweenRegions"},
			{Name: "a region without a deadline", File: session, Old: "s.lose(&Failure{Deadline,", New: "<-r.done; s.lose(&Failure{Deadline,", By: fails},
			{Name: "another region is believed", File: session, Old: "case o.GetRegion() != s.peer.name:", New: "case o.GetRegion() == \"\":", By: fails},
			{Name: "another version is believed", File: session, Old: "case o.GetVersion() != foreign.Version:", New: "case o.GetVersion() == 0:", By: fails},
			{Name: "another label is believed", File: session, Old: "case o.GetAgentLabel() != s.q.p.agentLabel:", New: "case false:", By: fails},
			{Name: "an answer before the stream is open is believed", File: session, Old: "if _, opening := s.pendingOpen(); opening {", New: "if _, opening := s.pendingOpen(); opening && false {", By: fails},
			{Name: "values that were not asked for are believed", File: session, Old: "if c.want.Call == nil {\n				return bad", New: "if c.want.Call != nil {\n				return bad", By: fails},
			{Name: "an answer that does not say how complete it is", File: session, Old: "	if c == nil {\n		return bad", New: "	if c == nil && d.GetMore() {\n		return bad", By: fails},
			{Name: "series that are not sorted are believed", File: "../../internal/queries/foreign/stream.go", Old: "labels.Compare(r.series[k-1].Labels, s.Labels) >= 0", New: "labels.Compare(r.series[k-1].Labels, s.Labels) == 0", By: fails},
			{Name: "samples of other times are believed", File: "../../internal/queries/foreign/stream.go", Old: "if c.mint < r.Mint || c.maxt > r.Maxt {", New: "if c.mint > r.Maxt {", By: fails},
			{Name: "samples of other regions do not count", File: "../../internal/queries/foreign/stream.go", Old: "if left.Samples -= int64(n); left.Samples < 0 {", New: "if left.Samples -= int64(n); left.Samples < -1e9 {", By: "TestLimitsAreKeptByTheOneThatAsks"},
			{Name: "bytes of other regions do not count", File: "../../internal/queries/foreign/stream.go", Old: "if left.Bytes -= int64(len(b)); left.Bytes < 0 {", New: "if left.Bytes -= int64(len(b)); left.Bytes < -1e9 {", By: "TestLimitsAreKeptByTheOneThatAsks"},
			{Name: "memory of other regions does not count", File: "../../internal/queries/foreign/stream.go", Old: "	return r.Reserve(memory)", New: "	return r.Reserve(0)", By: "TestLimitsAreKeptByTheOneThatAsks"},
			{Name: "memory of other regions is not given back", File: "internal/answer/evaluator.go", Old: "		s.foreign.Release()\n", New: "", By: limits + "|" + fails},
			{Name: "queries of other regions have the slots of this one's", File: "internal/answer/evaluator.go", Old: "		slots = e.serving\n", New: "		slots = e.slots\n", By: "TestQueriesOfTwoRegionsDoNotWaitForEachOther"},
			{Name: "a region that is missing makes nothing partial", File: "internal/answer/regions.go", Old: "	out.Partial = len(out.Reasons) > 0\n", New: "", By: "TestARegionThatIsAway"},
			{Name: "an answer without a region is complete through what the others are", File: "internal/answer/regions.go", Old: "r.Reason, r.Detail)})\n			known = false", New: "r.Reason, r.Detail)})", By: "TestARegionThatIsAway"},
			{Name: "operators read samples of other regions", File: "regionserver.go", Old: "authorizeFor(r.open.GetCaller(), samplesFor)", New: "authorizeFor(r.open.GetCaller(), listsFor)", By: who},
			{Name: "restrictions are ignored", File: "access.go", Old: "if len(c.GetRestrictions()) > 0 {", New: "if len(c.GetRestrictions()) > 5 {", By: who},
			{Name: "the region that is asked for does not matter", File: "regionserver.go", Old: "case o.GetRegion() != string(v.s.cfg.Region) || o.GetRegion() == \"\":", New: "case o.GetRegion() == \"\":", By: who},
			{Name: "gaps of one region are gaps of all", File: "merge.go", Old: "	all := unite(x, y)", New: "	all := unite(x, nil)", By: agents},
			{Name: "a page goes beyond what a region has said", File: "merge.go", Old: "if cut && k > end {", New: "if cut && k < end {", By: agents},
			{Name: "names of other regions are left out", File: "../../internal/queries/promstore/queryable.go", Old: "more, err = q.q.others.LabelNames(ctx, q.mint, q.maxt, ms)\n		vs = union(vs, more)", New: "more, err = q.q.others.LabelNames(ctx, q.mint, q.maxt, ms)\n		_ = more", By: names},
		},
	})
}
