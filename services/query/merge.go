package query

import (
	"cmp"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// page is a page of a list that several regions have, each sorted by its key.
type page[T any] struct {
	entries []T
	more    bool
}

// cutPage merges what regions have, sorted by key, and leaves n keys of it. Behind the last entry of a region that has
// more nothing is known, so nothing behind it is on the page.
func cutPage[T any](parts []page[T], n int, key func(T) string) (out []T, more bool) {
	var end string
	cut := false
	for _, p := range parts {
		out = append(out, p.entries...)
		if !p.more || len(p.entries) == 0 {
			more = more || p.more
			continue
		}
		if last := key(p.entries[len(p.entries)-1]); !cut || last < end {
			end, cut = last, true
		}
	}
	slices.SortStableFunc(out, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	keys, before := 0, ""
	for i, e := range out {
		k := key(e)
		if cut && k > end {
			return out[:i], true
		}
		if i == 0 || k != before {
			if keys++; keys > n {
				return out[:i], true
			}
		}
		before = k
	}
	return out, more || cut
}

// maxMergedRanges bounds gaps and overlaps of an agent, as of one region.
const maxMergedRanges = 1000

// mergeAgent puts together what two regions have of a boot: what one of them lacks and the other has is no gap. Where the list
// of a region's gaps is cut, those behind it are not known, and neither are they in the result.
func mergeAgent(a, b *queryv1.Agent) *queryv1.Agent {
	// A boot without an accepted number has nothing to add.
	switch {
	case b.GetRecordCount() == 0:
		a.Regions = append(a.Regions, b.GetRegions()...)
		return a
	case a.GetRecordCount() == 0:
		b.Regions = append(a.Regions, b.GetRegions()...)
		return b
	}
	x, y := covered(a), covered(b)
	common := intersect(x, y)
	all := unite(x, y)
	out := &queryv1.Agent{
		AgentId: a.GetAgentId(), BootId: a.GetBootId(), FirstSeq: all[0].Start, AcceptedThrough: all[0].End, LastSeq: all[len(all)-1].End,
		RecordCount: a.GetRecordCount() + b.GetRecordCount(), BatchCount: a.GetBatchCount() + b.GetBatchCount(),
		Overlaps:             unite(unite(seqRanges(a.GetOverlaps()), seqRanges(b.GetOverlaps())), common),
		LastAcceptedAtUnixNs: max(a.GetLastAcceptedAtUnixNs(), b.GetLastAcceptedAtUnixNs()),
		Regions:              append(slices.Clone(a.GetRegions()), b.GetRegions()...),
	}
	for _, r := range common {
		out.RecordCount -= min(out.RecordCount, r.End-r.Start+1)
	}
	for i := 1; i < len(all); i++ {
		out.Gaps = append(out.Gaps, &queryv1.SeqRange{Start: all[i-1].End + 1, End: all[i].Start - 1})
	}
	out.Gaps = out.Gaps[:min(len(out.Gaps), maxMergedRanges)]
	out.Overlaps = out.Overlaps[:min(len(out.Overlaps), maxMergedRanges)]
	for _, id := range append(slices.Clone(a.GetConcurrentBootIds()), b.GetConcurrentBootIds()...) {
		if id != out.BootId && !slices.Contains(out.ConcurrentBootIds, id) {
			out.ConcurrentBootIds = append(out.ConcurrentBootIds, id)
		}
	}
	slices.Sort(out.ConcurrentBootIds)
	return out
}

// seqRanges are the ranges of another region's message that can be ranges, sorted and apart.
func seqRanges(list []*queryv1.SeqRange) []*queryv1.SeqRange {
	var out []*queryv1.SeqRange
	for _, r := range list {
		if r.GetStart() <= r.GetEnd() {
			out = append(out, r)
		}
	}
	return unite(out, nil)
}

// covered are the accepted numbers of a boot.
func covered(a *queryv1.Agent) []*queryv1.SeqRange {
	at, last := a.GetFirstSeq(), max(a.GetFirstSeq(), a.GetLastSeq())
	var out []*queryv1.SeqRange
	for _, g := range seqRanges(a.GetGaps()) {
		// A gap lies between accepted numbers.
		if g.Start <= at || g.End >= last {
			continue
		}
		out = append(out, &queryv1.SeqRange{Start: at, End: g.Start - 1})
		at = g.End + 1
	}
	return append(out, &queryv1.SeqRange{Start: at, End: last})
}

// unite are the ranges of both, sorted and neither touching nor overlapping.
func unite(a, b []*queryv1.SeqRange) []*queryv1.SeqRange {
	all := append(slices.Clone(a), b...)
	slices.SortFunc(all, func(x, y *queryv1.SeqRange) int { return cmp.Compare(x.Start, y.Start) })
	var out []*queryv1.SeqRange
	for _, r := range all {
		if n := len(out); n > 0 && (out[n-1].End == math.MaxUint64 || r.Start <= out[n-1].End+1) {
			out[n-1].End = max(out[n-1].End, r.End)
			continue
		}
		out = append(out, &queryv1.SeqRange{Start: r.Start, End: r.End})
	}
	return out
}

// intersect are the numbers in both; each list is sorted and apart.
func intersect(a, b []*queryv1.SeqRange) (out []*queryv1.SeqRange) {
	for len(a) > 0 && len(b) > 0 {
		start, end := max(a[0].Start, b[0].Start), min(a[0].End, b[0].End)
		if start <= end {
			out = append(out, &queryv1.SeqRange{Start: start, End: end})
		}
		if a[0].End < b[0].End {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// agentKey sorts as lists of agents do.
func agentKey(a *queryv1.Agent) string { return a.GetAgentId() + "\x00" + a.GetBootId() }

// mergeAgents makes one entry of those of each boot; the list is sorted by boots.
func mergeAgents(list []*queryv1.Agent) (out []*queryv1.Agent) {
	for _, a := range list {
		if n := len(out); n > 0 && bootOf(out[n-1]) == bootOf(a) {
			out[n-1] = mergeAgent(out[n-1], a)
			continue
		}
		out = append(out, a)
	}
	return out
}

func bootOf(a *queryv1.Agent) identity.Boot {
	return identity.Boot{Agent: a.GetAgentId(), Boot: a.GetBootId()}
}
