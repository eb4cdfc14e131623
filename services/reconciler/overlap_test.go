package reconciler

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// TestOverlapsOfARegionAreWhatItCounts: copies of other regions' batches, and what lost, have manifests here that may be older than
// that of the batch that counts.
func TestOverlapsOfARegionAreWhatItCounts(t *testing.T) {
	s := newStore()
	b := identity.Boot{Agent: "a", Boot: "boot"}
	plant := func(start uint64, at int64, values ...float64) accept.Manifest {
		body := encoded(t, b, start, values...)
		id := batch("a", start, start+uint64(len(values))-1)
		m, _ := manifest(id)
		m.FrameSHA256, m.FrameBytes, m.RawBlobKey, m.AcceptedAt = identity.Sum(body), uint64(len(body)), layout.Blob(identity.Sum(body), 0), at
		m.HomeRegion, m.ClaimEpoch, m.ClaimFence = "east", 3, uint64(at)
		create(t, s, m.RawBlobKey, body)
		create(t, s, layout.Accepted(id), m.Marshal())
		return m
	}
	lost := plant(1, 10, 9, 9, 9)   // another region has the identity, with another frame
	moved := plant(2, 20, 8, 8)     // another region counts it
	counts := plant(3, 30, 1, 2, 3) // ours
	late := plant(2, 40, 7, 7, 7)   // from before there were regions: ours, and counts behind the one before
	plant(3, 5, 6, 6)               // nobody has decided it
	create(t, s, layout.Accepted(batch("a", 3, 9)), []byte("{"))
	elsewhere := moved.Entry(journal.Elsewhere)
	elsewhere.HomeRegion, elsewhere.Generation = "west", 0
	loser := lost.Entry(journal.AuditedConflict)
	must(t, journaltest.Append(bg, s, testAuthority, elsewhere, loser, late.Entry(journal.Accepted), counts.Entry(journal.Duplicate)))

	l := newLinear(t)
	l.away.Store(true) // so that no audit enters anything
	api := startWith(t, regional("east"), Deps{Store: s, Claims: l}).client()
	ask := &reconcilerv1.GetOverlapRequest{AgentId: "a", BootId: "boot", Seq: 3}
	if _, err := api.GetOverlap(bg, ask); status.Code(err) != codes.Unavailable {
		t.Errorf("a journal that is not known to be complete says what does not count: %v", err)
	}
	must(t, journaltest.Complete(bg, s, testAuthority))
	r, err := api.GetOverlap(bg, ask)
	must(t, err)
	var got []string
	for _, o := range r.GetBatches() {
		got = append(got, fmt.Sprintf("%d-%d", o.GetSeqStart(), o.GetSeqEnd()))
	}
	if want := []string{"3-5", "2-4", "3-9"}; !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	if d := r.GetDifferences(); len(d) == 0 || d[0].GetCounts().GetValue() != "1" || d[0].GetOther().GetValue() != "7" {
		t.Errorf("%v", d)
	}
	// Without regions every manifest is an acceptance.
	r, err = start(t, quiet(), s).client().GetOverlap(bg, ask)
	must(t, err)
	if n := len(r.GetBatches()); n != 6 || r.GetBatches()[0].GetFrame().GetAtUnixNs() != 5 {
		t.Errorf("%d batches, the first one %v", n, r.GetBatches()[0])
	}
}

// TestTheBatchThatCountsIsComparedWithFew: where more batches cover a number than are compared, the one that counts is among them,
// wherever its key stands, and what this region does not count takes no place.
func TestTheBatchThatCountsIsComparedWithFew(t *testing.T) {
	const seq, n = 100, maxOverlapBatches + 24
	b := identity.Boot{Agent: "a", Boot: "boot"}
	plant := func(s *mem.Store, i uint64, region string) accept.Manifest {
		start := seq - n + i + 1 // each covers seq, and the last one that begins has the last key
		values := make([]float64, seq-start+1)
		values[0] = float64(i)
		body := encoded(t, b, start, values...)
		id := batch("a", start, seq)
		m, _ := manifest(id)
		m.FrameSHA256, m.FrameBytes, m.RawBlobKey, m.AcceptedAt = identity.Sum(body), uint64(len(body)), layout.Blob(identity.Sum(body), 0), int64(1000-i)
		m.HomeRegion, m.ClaimEpoch, m.ClaimFence = region, 3, i+1
		create(t, s, m.RawBlobKey, body)
		create(t, s, layout.Accepted(id), m.Marshal())
		return m
	}
	ask := &reconcilerv1.GetOverlapRequest{AgentId: "a", BootId: "boot", Seq: seq}
	first := func(r *reconcilerv1.GetOverlapResponse) string {
		return fmt.Sprintf("%d-%d of %d, incomplete %v", r.GetBatches()[0].GetSeqStart(), r.GetBatches()[0].GetSeqEnd(), len(r.GetBatches()), r.GetIncomplete())
	}
	s := newStore()
	for i := range uint64(n) {
		plant(s, i, "")
	}
	r, err := start(t, quiet(), s).client().GetOverlap(bg, ask)
	must(t, err)
	if got, want := first(r), "100-100 of 16, incomplete true"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	s = newStore()
	var entries []journal.Entry
	for i := range uint64(n) {
		if m := plant(s, i, "east"); i >= n-2 {
			entries = append(entries, m.Entry(journal.Accepted))
		}
	}
	must(t, journaltest.Append(bg, s, testAuthority, entries...))
	must(t, journaltest.Complete(bg, s, testAuthority))
	l := newLinear(t)
	l.away.Store(true) // so that no audit enters anything
	r, err = startWith(t, regional("east"), Deps{Store: s, Claims: l}).client().GetOverlap(bg, ask)
	must(t, err)
	if got, want := first(r), "100-100 of 2, incomplete false"; got != want {
		t.Errorf("of a region: %s, want %s", got, want)
	}
}
