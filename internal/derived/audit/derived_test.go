package audit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// indexed is a bucket whose derived keys are objects.
func indexed(t *testing.T, batches int) *live {
	l := newLive(t)
	for i := range batches {
		l.record(fmt.Sprint("a", i%5))
	}
	for a := range 5 {
		l.accept(fmt.Sprint("a", a), 0, uint64(batches/5))
	}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: l.Store, Authority: authority,
		Segment: func(_ context.Context, s *journal.Segment) error {
			for i := range s.Entries {
				l.derive(&s.Entries[i])
			}
			return nil
		},
		Folded: func(context.Context, []journal.Entry) error { return nil },
	})
	must(t, err)
	_, err = f.Poll(t.Context())
	must(t, err)
	return l
}

func (l *live) derive(e *journal.Entry) {
	for _, x := range indexes {
		if e.Outcome.Conflict() == x.conflicts {
			put(l.t, l.Store, x.key(e), nil)
		}
	}
}

// derived runs an audit of derived keys, and gives what it reported.
func (l *live) derived(a *Auditor) (Stored, map[identity.Batch]int) {
	l.t.Helper()
	missing := map[identity.Batch]int{}
	a.Underived = func(_ context.Context, e *journal.Entry) error { missing[e.ID]++; return nil }
	r, err := a.BeginDerived(l.t.Context(), 0)
	must(l.t, err)
	if done, err := a.Work(l.t.Context(), &r); err != nil || !done {
		l.t.Fatal(done, err)
	}
	return r, missing
}

// Derived keys that are there cost a thousandth of a LIST and nothing else, and those that are lost are found: in each prefix, of
// batches and of conflicts, folded or not.
func TestDerivedKeysAreListed(t *testing.T) {
	l := indexed(t, 3000)
	store := &counting{Store: l.Store}
	r, missing := l.derived(auditor(t, store, 1))
	// 3 pages of each of three prefixes, one of conflicts, and what the records and the journal cost.
	if len(missing) != 0 || r.Manifests != 9000 || r.Journalled != 0 || store.calls > 100 {
		t.Errorf("%d missing, %+v, %d requests", len(missing), r.Record, store.calls)
	}
	t.Logf("%d requests for the derived keys of 3,000 batches", store.calls)
	l.fold()
	c := conflictEntry("a1", 3)
	must(t, appendEntry(t, l, c))
	e := func(n uint64) journal.Entry { m := manifest("a2", n, authority); return m.Entry(journal.Accepted) }
	for n, key := range map[uint64]func(*journal.Entry) string{7: indexes[0].key, 8: indexes[1].key, 9: indexes[2].key} {
		x := e(n)
		must(t, l.Delete(t.Context(), key(&x)))
	}
	put(t, l.Store, layout.AcceptedByBlobPrefix+"x", nil)
	for i, limit := range []int{0, 500} {
		a := auditor(t, l.Store, byte(2+i))
		a.MaxInMemory = limit
		r, missing := l.derived(a)
		if len(missing) != 4 || missing[e(7).ID] != 1 || missing[e(8).ID] != 1 || missing[e(9).ID] != 1 || missing[c.ID] != 1 || r.Journalled != 4 {
			t.Errorf("limit %d: %v, %+v", limit, missing, r.Record)
		}
	}
}

func appendEntry(t *testing.T, l *live, e journal.Entry) error {
	w := auditor(t, l.Store, 50).Writer
	if _, err := w.Add(e); err != nil {
		return err
	}
	return w.Close(t.Context())
}

// Killed anywhere, an audit of derived keys goes on, and counts each key once.
func TestKilledDerivedGoesOn(t *testing.T) {
	l := indexed(t, 100)
	lost := manifest("a2", 7, authority)
	e := lost.Entry(journal.Accepted)
	for _, x := range indexes[:3] {
		must(t, l.Delete(t.Context(), x.key(&e)))
	}
	l.clock = l.clock.Add(time.Hour)
	for n := 1; ; n += 3 {
		l.clock = l.clock.Add(time.Second)
		store := &counting{Store: l.Store, failFrom: n}
		a, b := auditor(t, store, 3), auditor(t, l.Store, 4)
		a.MaxInMemory, b.MaxInMemory = 30, 30
		found := 0
		a.Underived = func(context.Context, *journal.Entry) error { found++; return nil }
		b.Underived = a.Underived
		r, err := b.BeginDerived(t.Context(), 0)
		must(t, err)
		mine := r
		_, err = a.Work(t.Context(), &mine)
		done, werr := b.Work(t.Context(), &r)
		if werr != nil || !done || r.Manifests != 297 || r.Journalled != 3 || found < 3 {
			t.Fatalf("request %d: %v, %v, %+v, found %d", n, done, werr, r.Record, found)
		}
		if err == nil {
			return
		}
	}
}
