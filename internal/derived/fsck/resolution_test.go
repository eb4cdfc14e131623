package fsck

import (
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The log of decisions and what agents did about them are checked against each other and against the
// quarantine records.
func TestResolutions(t *testing.T) {
	s := mem.New(time.Now)
	sum, other := identity.Sum([]byte("parked")), identity.Sum([]byte("other"))
	id := identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 5}
	write := func(n uint64, a resolution.Action, of identity.Digest) {
		r := resolution.Resolution{AuthorityID: "auth", Number: n, Action: a, AgentID: "a", Principal: "p", AttemptID: "x",
			Conflicts: []resolution.Conflict{{BootID: "b", SeqStart: 1, SeqEnd: 5, SubmittedSHA256: of}}}
		put(t, s, layout.Resolution(n), r.Marshal())
	}
	settle := func(n uint64, of identity.Digest) string {
		r := resolution.Settled{AuthorityID: "auth", AgentID: "a", BootID: "b", SeqStart: 1, SeqEnd: 5, SubmittedSHA256: of, Number: n, Action: resolution.AcceptExisting, CollectorID: "c"}
		put(t, s, r.Key(), r.Marshal())
		return r.Key()
	}
	found := func() (of []Problem) {
		for _, f := range check(t, s).Findings {
			if f.Problem != BadQuarantine { // the bytes of the records here
				of = append(of, f.Problem)
			}
		}
		return of
	}
	put(t, s, layout.Quarantine(id, sum), []byte("{}"))
	write(1, resolution.AcceptExisting, sum)
	settle(1, sum)
	clash := resolution.Clash{AuthorityID: "auth", AgentID: "a", BootID: "b", SpoolID: "s2", ObservedAt: 1, CollectorID: "c"}
	put(t, s, clash.Key(), clash.Marshal())
	parked := resolution.Parked{AuthorityID: "auth", AgentID: "a", BootID: "b", SeqStart: 1, SeqEnd: 5, SubmittedSHA256: sum, Host: "h", ObservedAt: 1, CollectorID: "c"}
	put(t, s, parked.Key(), parked.Marshal())
	if got := found(); len(got) != 0 {
		t.Fatalf("a whole log: %v", got)
	}
	write(2, resolution.KeepBoth, other) // about nothing
	settle(2, other)                     // not what was decided
	write(4, resolution.AcceptExisting, sum)
	put(t, s, layout.Resolution(5), []byte("{"))
	put(t, s, layout.ResolutionPrefix+"x", nil)
	put(t, s, layout.Parked(id, other), parked.Marshal()) // of another frame
	put(t, s, layout.ClashPrefix+"x", nil)
	put(t, s, layout.Clash(id.BootOf(), "s3"), clash.Marshal()) // of another spool
	if got, want := found(), []Problem{BadResolution, ResolutionGap, BadResolution, BadResolution, UnknownKey, BadResolution, UnknownKey, BadResolution}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
