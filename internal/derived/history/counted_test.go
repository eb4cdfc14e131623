package history

import (
	"errors"
	"math"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestCounted: only the acceptance of the same frame counts, wherever in the journal it stands.
func TestCounted(t *testing.T) {
	store := mem.New(nil)
	append := func(es ...journal.Entry) {
		t.Helper()
		if err := journaltest.Append(t.Context(), store, authority, es...); err != nil {
			t.Fatal(err)
		}
	}
	as := func(n uint64, o journal.Outcome) journal.Entry {
		e := entry(n)
		if e.Outcome = o; o == journal.Elsewhere {
			e.HomeRegion = "west"
		}
		return e
	}
	batches := make([]accepted.Batch, 9)
	for i := range batches {
		e := entry(uint64(i))
		batches[i] = e.Batch()
	}
	reader := Reader{Store: store, Authority: authority}
	if _, err := reader.Counted(t.Context(), batches); !errors.Is(err, ErrIncomplete) {
		t.Errorf("a journal that nobody knows to be complete says which batches do not count: %v", err)
	}
	if err := journaltest.Complete(t.Context(), store, authority); err != nil {
		t.Fatal(err)
	}
	append(as(0, journal.Accepted), as(1, journal.Elsewhere))
	if _, err := journaltest.Fold(t.Context(), store, authority); err != nil {
		t.Fatal(err)
	}
	// Batch 4 was elsewhere, until its home was retired and it was accepted here.
	append(as(2, journal.AuditedAccepted), as(3, journal.AuditedConflict), as(4, journal.Elsewhere), as(5, journal.Duplicate))
	append(as(4, journal.Accepted))
	another := as(6, journal.Accepted)
	another.SHA256 = identity.Sum([]byte("another frame"))
	append(another)
	batches[7].AcceptedAt = math.MaxInt64 // a bound of the range that nothing lies behind
	got, err := reader.Counted(t.Context(), batches)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range batches {
		if want := i == 0 || i == 2 || i == 4 || i == 5; got[b.Identity] != want {
			t.Errorf("batch %d: %v", i, got[b.Identity])
		}
	}
	if got, err := reader.Counted(t.Context(), nil); err != nil || len(got) > 0 {
		t.Errorf("of none: %v, %v", got, err)
	}
}

// TestCountedEndsWithTheLast batch that is found, and reads only files of the time of the batches.
func TestCountedEndsWithTheLast(t *testing.T) {
	w := newWorld(t, 3)
	var files []uint64
	for range 6 {
		w.n++
		e := entry(w.n)
		w.must(journaltest.Append(t.Context(), w.store, authority, e))
		_, err := journaltest.Fold(t.Context(), w.store, authority)
		w.must(err)
		files = append(files, w.n)
	}
	counted := fault.New(w.store, 1)
	r := Reader{Store: counted, Authority: authority}
	first, never := entry(files[0]), entry(files[0])
	never.ID.SeqEnd++
	for range 2 {
		if got, err := r.Counted(t.Context(), []accepted.Batch{first.Batch()}); err != nil || !got[first.ID] {
			t.Fatalf("%v, %v", got, err)
		}
	}
	found := counted.Count("", "") / 2
	if got, err := r.Counted(t.Context(), []accepted.Batch{first.Batch(), never.Batch()}); err != nil || !got[first.ID] || got[never.ID] {
		t.Fatalf("%v, %v", got, err)
	}
	if all := counted.Count("", "") - 2*found; found >= all {
		t.Errorf("%d requests to find one batch, %d to find that there is no other", found, all)
	}
}
