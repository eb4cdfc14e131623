package published_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs in the merge of sources, and in what is kept of labels.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Run: "TestMergeIsByTimeAndSource|TestHoursOfAChunkAreJoined|TestRowsOfHours|TestCountedSeries|TestTexts|TestRolledRowsAreKept|TestFoundRows|TestChosenSeries|TestMetasAreShared|TestLargeSelectionsKeepNothing",
		Mutants: []mutants.Mutant{
			{Name: "of rows of one time the first source counts", File: "merge.go", Old: "a == b && x.source < y.source", New: "a == b && x.source > y.source", By: "TestMergeIsByTimeAndSource"},
			{Name: "rows are compared by milliseconds", File: "merge.go", Old: "	if r.ns != nil {\n		return r.ns[row]\n	}\n", New: "", By: "TestMergeIsByTimeAndSource"},
			{Name: "the third source is not asked", File: "merge.go", Old: "second = m.heap[2]", New: "second = m.heap[1]", By: "TestMergeIsByTimeAndSource"},
			{Name: "two rows of one millisecond stay", File: "merge.go", Old: "last >= 0 && m.t[last] == a.t[from]", New: "last >= 0 && m.t[last] > a.t[from]", By: "TestMergeIsByTimeAndSource"},
			{Name: "doubles of one source stay", File: "merge.go", Old: "		if a.doubles {", New: "		if false {", By: "TestMergeIsByTimeAndSource"},
			{Name: "a column that a source lacks has old values", File: "merge.go", Old: "	clear(dst[at:])\n", New: "", By: "TestMergeIsByTimeAndSource"},
			{Name: "hours are joined over another piece", File: "runs.go", Old: " || r.inHour() > 1", New: "", By: "TestHoursOfAChunkAreJoined"},
			{Name: "hours are joined over one that is missing", File: "runs.go", Old: "next.ob.hour != to+1 || ", New: "", By: "TestHoursOfAChunkAreJoined"},
			{Name: "hours of another series are joined", File: "runs.go", Old: "next.i != p.i || ", New: "", By: "TestHoursOfAChunkAreJoined"},
			{Name: "joined hours end with the first", File: "columns.go", Old: "from.StartMS()+1, to.EndMS())", New: "from.StartMS()+1, from.EndMS())", By: "TestRowsOfHours"},
			{Name: "all series of a compaction count", File: "agents.go", Old: "return !slices.Contains(p.Shards, id) }) {", New: "return false && !slices.Contains(p.Shards, id) }) {", By: "TestCountedSeries"},
			{Name: "shards are those of another number of them", File: "agents.go", Old: "s != nil && s.count == count", New: "s != nil", By: "TestCountedSeries"},
			{Name: "texts of other selectors are kept", File: "texts.go", Old: "what, selectionKey(ms))", New: "what, \"\")", By: "TestTextsOfSources"},
			{Name: "texts of other generations are kept", File: "texts.go", Old: "b = append(b[:0], ob.x.id[:]...)", New: "b = b[:0]", By: "TestTextsOfSources"},
			{Name: "texts of masked series are kept", File: "texts.go", Old: "			if !masked {\n				break\n			}\n", New: "			break\n", By: "TestTextsOfSources"},
			{Name: "kept texts are the caller's", File: "texts.go", Old: "return slices.Clone(out), nil", New: "return out, nil", By: "TestTextsAreKept"},
			{Name: "rows of other columns are kept", File: "rolled.go", Old: "return rolledKey{columnKey{h.x.id, h.x.number(i), first, last}, h.want}", New: "return rolledKey{columnKey{h.x.id, h.x.number(i), first, last}, 0}", By: "TestRolledRowsAreKept"},
			{Name: "rows of other series are kept", File: "rolled.go", Old: "return rolledKey{columnKey{h.x.id, h.x.number(i), first, last}, h.want}", New: "return rolledKey{columnKey{h.x.id, 0, first, last}, h.want}", By: "TestRolledRowsAreKept"},
			{Name: "what was chosen is not found again", File: "index.go", Old: "chosen.Get(chosenKey{o.IndexSHA256, key})", New: "chosen.Get(chosenKey{o.IndexSHA256, \"\"})", By: "TestChosenSeries"},
			{Name: "labels that are gone count", File: "metas.go", Old: "	s.bytes -= of.bytes\n", New: "", By: "TestMetasAreShared"},
			{Name: "labels of another type are shared", File: "metas.go", Old: "m.typ == typ && ", New: "", By: "TestMetasAreShared"},
			{Name: "rows of other matchers are found", File: "found.go", Old: "selectionKey(ms), r.Want", New: "selectionKey(nil), r.Want", By: "TestFoundRows"},
			{Name: "rows of other columns are found", File: "found.go", Old: "selectionKey(ms), r.Want, mint", New: "selectionKey(ms), 0, mint", By: "TestRolledRowsAreKept"},
			{Name: "the types of what was found are not asked for", File: "found.go", Old: "return !takes(p.typ) })", New: "return false })", By: "TestFoundRows"},
			{Name: "rows of the hour after are left out", File: "found.go", Old: "last.to, last.read = p.to, last.read+read", New: "last.read += read", By: "TestRolledRowsAreKept"},
			{Name: "rows of the hour after do not count", File: "found.go", Old: "last.to, last.read = p.to, last.read+read", New: "last.to = p.to", By: "TestRolledRowsAreKept"},
			{Name: "kept rows are in the reader's memory", File: "rolled.go", Old: "into.Clone()", New: "into", By: "TestRolledRowsAreKept"},
			{Name: "samples of large selections are kept", File: "columns.go", Old: "h.warm && !h.once && c.V", New: "h.warm && c.V", By: "TestLargeSelectionsKeepNothing"},
			{Name: "rows of large selections are kept", File: "rolled.go", Old: "h.warm && !h.once && !into", New: "h.warm && !into", By: "TestLargeSelectionsKeepNothing"},
			{Name: "kept rows do not count", File: "rolled.go", Old: "return c, c.Rows(), nil", New: "return c, 0, nil", By: "TestRolledRowsAreKept"},
		},
	})
}
