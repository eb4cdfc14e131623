package putback

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of putting frames back: which bytes count, and where they go.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{
		Mutants: []mutants.Mutant{
			{Name: "bytes of another frame are passed on", File: "putback.go", Old: "sum != ref.SHA256 {", New: "sum != ref.SHA256 && false {", By: "TestFramesArePutBack"},
			{Name: "the first answer ends the search", File: "putback.go", Old: "		if a.Said != SaidFrame {\n			continue", New: "		if a.Said != SaidFrame {\n			return out, nil", By: "TestFramesArePutBack"},
			{Name: "a place that can't be asked says that it has none", File: "putback.go", Old: "a.Said, a.Detail = SaidFailed, clip(err.Error())", New: "a.Said = SaidNone", By: "TestFramesArePutBack"},
			{Name: "a record that carries its frame gets a blob", File: "putback.go", Old: "	if ref.Inline {", New: "	if false {", By: "TestRecordsInDoubt"},
			{Name: "bytes are not hashed", File: "../../acceptance/accept/restore.go", Old: "identity.Sum(frame) != ref.SHA256 ||", New: "", By: "TestNothingIsPutBackWithoutTheBytes"},
			{Name: "the store's checksum is believed", File: "../../acceptance/accept/restore.go", Old: ", deep: true}", New: "}", By: "TestFramesArePutBack"},
			{Name: "a condemned generation is relied on", File: "../../acceptance/accept/restore.go", Old: "	if err := b.verifyNotCondemned(ctx); err != nil {", New: "	if err := error(nil); err != nil {", By: "TestPutBackUnderFaults"},
			{Name: "a manifest of another authority is believed", File: "../../acceptance/accept/restore.go", Old: "m.Identity != id || m.AuthorityID != authority", New: "m.Identity != id", By: "TestRecordsInDoubt"},
			{Name: "a manifest of another identity is believed", File: "../../acceptance/accept/restore.go", Old: "m.Identity != id || m.AuthorityID != authority", New: "m.AuthorityID != authority", By: "TestRecordsInDoubt"},
			{Name: "the hour of retention is not asked for", File: "../../acceptance/accept/restore.go", Old: "found: !ref.Quarantined, ", New: "", By: "TestPutBackAfterRetention"},
			{Name: "a damaged generation is overwritten", File: "../../acceptance/accept/blob.go", Old: "		return false, b.skip(why)\n", New: "		_, perr := any(b.p.store).(objstore.Putter).Put(ctx, key, b.frame, objstore.PutOptions{SHA256: b.sha})\n		return perr == nil, perr\n", By: "TestFramesArePutBack"},
		},
	})
}
