package load

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestCountedManifestsOfARegion are those that its journal has.
func TestCountedManifestsOfARegion(t *testing.T) {
	s := mem.New(time.Now)
	put := func(key string, body []byte) {
		t.Helper()
		if _, err := s.Put(t.Context(), key, body, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	plant := func(start uint64) accept.Manifest {
		d := identity.Sum([]byte{byte(start)})
		m := accept.Manifest{AuthorityID: "authority", Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: start, SeqEnd: start + 9}, FrameSHA256: d, FrameBytes: 1,
			RawBlobKey: layout.Blob(d, 0), AcceptedAt: int64(start), CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef", RecordCount: 10}
		put(layout.Accepted(m.Identity), m.Marshal())
		return m
	}
	counts, copied := plant(1), plant(5)
	elsewhere := copied.Entry(journal.Elsewhere)
	elsewhere.HomeRegion, elsewhere.Generation = "west", 0
	if err := journaltest.Append(t.Context(), s, "authority", counts.Entry(journal.Accepted), elsewhere); err != nil {
		t.Fatal(err)
	}
	if err := journaltest.Complete(t.Context(), s, "authority"); err != nil {
		t.Fatal(err)
	}
	if all, err := CountedManifests(t.Context(), s, "authority"); err != nil || len(all) != 2 {
		t.Errorf("without regions: %v, %v", all, err)
	}
	put(layout.RegionsKey, []byte("{}"))
	if all, err := CountedManifests(t.Context(), s, "authority"); err != nil || len(all) != 1 || all[counts.Identity] != counts {
		t.Errorf("of a region: %v, %v", all, err)
	}
}
