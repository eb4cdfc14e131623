package audit

import (
	"context"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var errAway = errors.New("the linearizer is away")

// TestManifestsOfSeveralRegions: an audit enters what this region counts, and nothing else; it settles what it has entered only
// once that is durable.
func TestManifestsOfSeveralRegions(t *testing.T) {
	ctx := t.Context()
	s := mem.New(time.Now)
	findings := map[string]Finding{"counted": Counted, "copy": Copy, "lost": Quarantined, "undecided": Undecided, "unsettled": Counted}
	for agent := range findings {
		plant(t, s, agent, 1)
		plant(t, s, agent, 2)
	}
	known := plant(t, s, "copy", 3)
	must(t, journaltest.Append(ctx, s, authority, known.Entry(journal.Duplicate)))
	put(t, s, layout.Accepted(manifest("damaged", 1, authority).Identity), []byte("{}"))
	foreign := manifest("foreign", 1, "another")
	put(t, s, layout.Accepted(foreign.Identity), foreign.Marshal())
	judge := func(settled map[identity.Batch]bool) func(context.Context, accept.Manifest) (Judgement, error) {
		return func(_ context.Context, m accept.Manifest) (Judgement, error) {
			f, ok := findings[m.Identity.Agent]
			if !ok || m.Identity == known.Identity {
				t.Errorf("%s is asked about", m.Identity)
			}
			j := Judgement{Finding: f}
			switch f {
			case Counted:
				j.Entry = m.Entry(journal.AuditedAccepted)
				j.Entry.HomeRegion = "here"
				j.Settle = func(ctx context.Context) error {
					if b, _ := journalled(t, s); b[m.Identity] != 1 {
						t.Errorf("%s is settled, and has %d entries", m.Identity, b[m.Identity])
					}
					settled[m.Identity] = true
					if m.Identity.Agent == "unsettled" {
						return errAway
					}
					return nil
				}
			case Quarantined:
				j.Entry = accept.ConflictRecord{Identity: m.Identity, SubmittedSHA256: m.FrameSHA256, SubmittedBlobKey: m.RawBlobKey, ObservedAt: 5}.Entry()
			}
			return j, nil
		}
	}
	// While nobody answers, nothing is entered, and the audit has not finished.
	a := auditor(t, s, 1)
	a.Judge = func(context.Context, accept.Manifest) (Judgement, error) { return Judgement{}, errAway }
	if r, err := resume(ctx, a); !errors.Is(err, errAway) || r.Finished() {
		t.Fatalf("%+v, %v", r, err)
	}
	check(t, s, 1, 0)
	settled := map[identity.Batch]bool{}
	for round, want := range []Record{
		{Manifests: 13, Journalled: 4, Copies: 2, CopyBytes: 18, Quarantined: 2, Undecided: 2, Unusable: 2, Unread: 1},
		{Manifests: 13, Journalled: 0, Copies: 2, CopyBytes: 18, Quarantined: 2, Undecided: 2, Unusable: 2, Unread: 1},
	} {
		a = auditor(t, s, byte(2+round))
		a.Judge = judge(settled)
		a.Shards = 1 + round
		r, err := resume(ctx, a)
		must(t, err)
		got := Record{Manifests: r.Manifests, Journalled: r.Journalled, Copies: r.Copies, CopyBytes: r.CopyBytes, Quarantined: r.Quarantined, Undecided: r.Undecided, Unusable: r.Unusable, Unread: r.Unread}
		if got.Manifests != want.Manifests || got.Journalled != want.Journalled || got.Copies != want.Copies || got.CopyBytes != want.CopyBytes || got.Quarantined != want.Quarantined || got.Undecided != want.Undecided ||
			got.Unusable != want.Unusable || got.Unread != want.Unread || !r.Finished() {
			t.Errorf("round %d: %+v, want %+v", round, got, want)
		}
		// Four that count, the one that was known, and two conflicts; no second entries.
		check(t, s, 5, 2)
		if b, c := journalled(t, s); b[manifest("counted", 1, authority).Identity] != 1 || c[manifest("lost", 1, authority).Identity] != 1 {
			t.Errorf("round %d: %v, %v", round, b, c)
		}
		if len(settled) != 4 {
			t.Errorf("round %d: %d were settled", round, len(settled))
		}
	}
}
