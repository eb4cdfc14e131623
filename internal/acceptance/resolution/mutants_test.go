package resolution_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of the decisions.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Run: "TestTheFirst|TestALater|TestQuarantine|TestALost|TestMany|TestUnreadable|TestOvertaken|TestRefusals|TestCompare|TestRenumber|TestClashes|TestParked|TestNotes", Mutants: []mutants.Mutant{
		{Name: "the last decision about a frame stands", File: "log.go", Old: "		if l.frames[k] == nil {\n", New: "		if true {\n", By: "TestALater"},
		{Name: "a second decision is written over the first", File: "log.go", Old: "		case d.Action != r.Action:\n", New: "		case false:\n", By: "TestTheFirst"},
		{Name: "a decision about one decided frame refuses the others", File: "log.go", Old: "	if len(rest) > 0 {\n		stands = nil\n	}\n", New: "", By: "TestTheFirst"},
		{Name: "what exists is taken for the caller's own", File: "log.go", Old: "case err == nil && bytes.Equal(there, body):", New: "case err == nil || bytes.Equal(there, body):", By: "TestOvertaken"},
		{Name: "an unknown outcome is an error", File: "log.go", Old: "case errors.Is(err, objstore.ErrUnknown) && ctx.Err() == nil:", New: "case false:", By: "TestALost"},
		{Name: "a writer does not know its own record", File: "log.go", Old: "if own := l.written(); own != nil {", New: "if own := l.written(); false {", By: "TestALost"},
		{Name: "a quarantined agent may send under another boot", File: "log.go", Old: "[]identity.Boot{{Agent: b.Agent}, b}", New: "[]identity.Boot{b}", By: "TestQuarantine"},
		{Name: "the quarantine of a boot is ignored", File: "log.go", Old: "[]identity.Boot{{Agent: b.Agent}, b}", New: "[]identity.Boot{{Agent: b.Agent}}", By: "TestQuarantine"},
		{Name: "a release releases nothing", File: "log.go", Old: "r != nil && r.Action == Quarantine {\n			return r", New: "r != nil {\n			return r", By: "TestQuarantine"},
		{Name: "decisions of another authority count", File: "log.go", Old: "	if r.AuthorityID != authority {\n", New: "	if false {\n", By: "TestUnreadable"},
		{Name: "a record under another number counts", File: "record.go", Old: "	if layout.Resolution(r.Number) != key {\n", New: "	if false {\n", By: "TestUnreadable"},
		{Name: "new numbers are of a boot of chance", File: "record.go", Old: "d[:]...))", New: "d[:0]...))", By: "TestRenumber"},
		{Name: "new numbers go on with the old ones", File: "keep.go", Old: "SeqStart: 1, SeqEnd: b.Records()}", New: "SeqStart: b.Identity.SeqStart, SeqEnd: b.Identity.SeqEnd}", By: "TestRenumber"},
		{Name: "a quarantine that was released begins again", File: "log.go", Old: "	if l.attempt != \"\" && r.AttemptID == l.attempt {\n", New: "	if l.attempt != \"\" && r.AttemptID == l.attempt && r.Action.Settles() {\n", By: "TestALostAnswerBefore"},
		{Name: "an old record of the same id counts", File: "log.go", Old: "	l.attempt, l.own = attempt, nil\n", New: "	l.attempt = attempt\n", By: "TestQuarantine"},
		{Name: "clashes are unbounded", File: "clash.go", Old: "	if len(page.Objects) >= MaxClashes {\n", New: "	if false {\n", By: "TestClashes"},
		{Name: "a boot with enough clashes forgets those it has", File: "clash.go", Old: "		if o.Key == c.Key() {\n", New: "		if o.Key == \"\" {\n", By: "TestClashes"},
		{Name: "any frame's whereabouts are recorded", File: "clash.go", Old: "	case errors.Is(err, objstore.ErrNotFound):\n		return nil", New: "	case errors.Is(err, objstore.ErrNotFound) && p.Host == \"\":\n		return nil", By: "TestParked"},
		{Name: "a clash of another spool counts", File: "clash.go", Old: "	case c.Key() != key:\n", New: "	case false:\n", By: "TestNotes"},
		{Name: "numbers beside the shared ones are compared", File: "compare.go", Old: "		if first <= p.seq && p.seq <= last {\n", New: "		if first > 0 {\n", By: "TestCompareNumbers"},
		{Name: "records with another series are the same", File: "compare.go", Old: "n.recordKey == k && equal(counts", New: "equal(counts", By: "TestCompareNumbers"},
		{Name: "what only the parked frame has is not listed", File: "compare.go", Old: "			c.OnlySubmitted++\n", New: "", By: "TestCompare"},
	}})
}
