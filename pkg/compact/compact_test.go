package compact_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/chunk"
	"lightmetrics.dev/lightmetrics/pkg/compact"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/publish"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// Readers get the same before a compaction, after it, and after what it replaced is gone;
// through a level, and the next.
func TestAnswersStayTheSame(t *testing.T) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(3*time.Hour + 30*time.Minute) // two hours are due
	w.rollAll(hour0, 6, window.Raw, window.OneMinute)
	wins := []window.Window{window.Raw, window.OneMinute}
	before := map[window.Window]map[string]string{}
	for _, win := range wins {
		before[win] = w.answers(w.view(), win)
	}
	objects := len(w.keys(layout.RollupPrefix + "window="))
	st := settings()
	if n := w.compactAll(st); n != 2 { // of two groups
		t.Fatalf("%d compactions of 2 hours", n)
	}
	for _, win := range wins {
		same(t, "after 2 h", w.answers(w.view(), win), before[win])
	}
	w.collect()
	for _, win := range wins {
		same(t, "after 2 h and collection", w.answers(w.view(), win), before[win])
	}
	w.clock.now = hour0.Start().Add(7 * time.Hour)
	if n := w.compactAll(st); n != 4 { // of two groups and two windows
		t.Fatalf("%d compactions of 6 hours", n)
	}
	old := w.view()
	for _, win := range wins {
		same(t, "after 6 h", w.answers(old, win), before[win])
	}
	w.collect()
	for _, win := range wins {
		same(t, "after 6 h and collection", w.answers(w.view(), win), before[win])
	}
	if n := len(w.keys(layout.RollupPrefix + "window=")); n*2 > objects {
		t.Errorf("%d chunks, there were %d", n, objects)
	}
	v := w.view()
	for _, win := range wins {
		named := map[string]bool{}
		for _, h := range v.Hours() {
			for _, s := range v.Sets(h, win) {
				if s.Into == nil || s.Into.Name.Span != 6 {
					t.Fatalf("%s is not compacted", s.Name.Key())
				}
				for _, k := range s.Into.Set.Keys() {
					named[k] = true
				}
			}
		}
		for _, k := range w.keys(layout.RollupPrefix + "window=" + win.String() + "/") {
			if !named[k] {
				t.Errorf("%s is left", k)
			}
		}
	}
	if n := w.compactAll(st); n != 0 {
		t.Errorf("%d more compactions", n)
	}
}

// The series of a set are the same from its own chunks and from a compaction.
func TestSeries(t *testing.T) {
	w, st := small(t)
	of := func(own bool) string {
		t.Helper()
		s := w.view().Set(hour0+1, 1, window.Raw)
		if (s.Into == nil) != own {
			t.Fatalf("into %v", s.Into)
		}
		if !own {
			s.Into.Set = nil // as a reader of the record alone has it
		}
		got, err := compact.Series(t.Context(), w.store, authority, s)
		w.must(err)
		slices.SortFunc(got, func(a, b chunk.Series) int { return a.ID.Compare(&b.ID) })
		var b strings.Builder
		for i := range got {
			fmt.Fprintln(&b, got[i].Agent, got[i].Labels)
			for k := range got[i].T {
				fmt.Fprintln(&b, got[i].T[k], rowText(&got[i].Columns, k))
			}
		}
		return b.String()
	}
	want := of(true)
	w.compactAll(st)
	w.collect()
	if of(false) != want || len(want) < 1000 {
		t.Error("other series")
	}
}

// Two authorities with the same sources make the same objects and plans, byte for byte.
func TestEqualSourcesGiveEqualBytes(t *testing.T) {
	all := func() map[string]string {
		w := newWorld(t)
		w.clock.now = hour0.Start().Add(8 * time.Hour)
		w.rollAll(hour0, 6, window.Raw, window.OneMinute)
		w.compactAll(settings())
		out := map[string]string{}
		for _, prefix := range []string{layout.RollupPrefix, layout.IndexPrefix} {
			for _, k := range w.keys(prefix) {
				b, _, err := w.store.Get(t.Context(), k, objstore.GetOptions{})
				w.must(err)
				out[k] = string(b)
			}
		}
		return out
	}
	if a, b := all(), all(); !maps.Equal(a, b) || len(a) < 20 {
		t.Errorf("%d objects and %d differ", len(a), len(b))
	}
}

// Rows that are fewer or more than the sources count are not published.
func TestConservation(t *testing.T) {
	for _, off := range []uint64{1, ^uint64(0)} {
		w, st := small(t)
		c := w.candidate(st)
		one := *c.Sources[2]
		one.Counts.Samples += off
		c.Sources[2] = &one
		if _, err := w.compactor(st).Compact(t.Context(), c, 7); !errors.Is(err, compact.ErrNotConserved) {
			t.Errorf("%d rows off: %v", int64(off), err)
		}
		if n := len(w.keys(layout.RollupSetsHour(hour0))); n != 2 {
			t.Errorf("%d records", n)
		}
	}
}

// A turn is made once.
func TestTurnsAreFinal(t *testing.T) {
	w, st := small(t)
	w.compactAll(st)
	s := w.view().Set(hour0, 0, window.Raw)
	for _, n := range []catalog.Name{s.Into.Name, {Hour: hour0, Window: window.Raw, Generation: 9, Span: 2}} {
		ch, err := w.publisher().Compact(t.Context(), s.Name, n)
		if err != nil || (ch == publish.Already) != (n == s.Into.Name) {
			t.Errorf("%s: %v, %v", n.Key(), ch, err)
		}
	}
	if ch, err := w.publisher().Compact(t.Context(), s.Name, s.Into.Name); err != nil || ch != publish.Already {
		t.Errorf("back: %v, %v", ch, err)
	}
	if _, err := w.publisher().Expire(t.Context(), s.Into.Name); !errors.Is(err, publish.ErrInvalid) {
		t.Errorf("a compaction expires: %v", err)
	}
	if err := w.publisher().Release(t.Context(), s.Name); !errors.Is(err, publish.ErrInvalid) {
		t.Errorf("an hour is released: %v", err)
	}
}
