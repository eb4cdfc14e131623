package compact_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Readers get the same before a compaction, after it, and after what it replaced is gone;
// through a level, and the next.
func TestAnswersStayTheSame(t *testing.T) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(3*time.Hour + 30*time.Minute) // two hours are due
	w.rollAll(hour0, 6, timegrid.Raw, timegrid.OneMinute)
	wins := []timegrid.Resolution{timegrid.Raw, timegrid.OneMinute}
	before := map[timegrid.Resolution]map[string]string{}
	for _, res := range wins {
		before[res] = w.answers(w.view(), res)
	}
	objects := len(w.keys(layout.RollupPrefix + "window="))
	st := settings()
	if n := w.compactAll(st); n != 2 { // of two groups
		t.Fatalf("%d compactions of 2 hours", n)
	}
	for _, res := range wins {
		same(t, "after 2 h", w.answers(w.view(), res), before[res])
	}
	w.collect()
	for _, res := range wins {
		same(t, "after 2 h and collection", w.answers(w.view(), res), before[res])
	}
	w.clock.now = hour0.Start().Add(7 * time.Hour)
	if n := w.compactAll(st); n != 4 { // of two groups and two resolutions
		t.Fatalf("%d compactions of 6 hours", n)
	}
	old := w.view()
	for _, res := range wins {
		same(t, "after 6 h", w.answers(old, res), before[res])
	}
	w.collect()
	for _, res := range wins {
		same(t, "after 6 h and collection", w.answers(w.view(), res), before[res])
	}
	if n := len(w.keys(layout.RollupPrefix + "window=")); n*2 > objects {
		t.Errorf("%d chunks, there were %d", n, objects)
	}
	v := w.view()
	for _, res := range wins {
		named := map[string]bool{}
		for _, h := range v.Hours() {
			for _, s := range v.Blocks(h, res) {
				if s.Redirect == nil || s.Redirect.Name.Span != 6 {
					t.Fatalf("%s is not compacted", s.Name.Key())
				}
				for _, k := range s.Redirect.Block.Keys() {
					named[k] = true
				}
			}
		}
		for _, k := range w.keys(layout.RollupPrefix + "window=" + res.String() + "/") {
			if !named[k] {
				t.Errorf("%s is left", k)
			}
		}
	}
	if n := w.compactAll(st); n != 0 {
		t.Errorf("%d more compactions", n)
	}
}

// The series of a block are the same from its own chunks and from a compaction.
func TestSeries(t *testing.T) {
	w, st := small(t)
	of := func(own bool) string {
		t.Helper()
		s := w.view().Block(hour0+1, 1, timegrid.Raw)
		if (s.Redirect == nil) != own {
			t.Fatalf("into %v", s.Redirect)
		}
		if !own {
			s.Redirect.Block = nil // as a reader of the record alone has it
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
		w.rollAll(hour0, 6, timegrid.Raw, timegrid.OneMinute)
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
		if n := len(w.keys(layout.BlockManifestsHour(hour0))); n != 2 {
			t.Errorf("%d records", n)
		}
	}
}

// A turn is made once.
func TestReplacementsAreFinal(t *testing.T) {
	w, st := small(t)
	w.compactAll(st)
	s := w.view().Block(hour0, 0, timegrid.Raw)
	for _, n := range []catalog.Name{s.Redirect.Name, {Hour: hour0, Resolution: timegrid.Raw, Generation: 9, Span: 2}} {
		k, err := w.publisher().Compact(t.Context(), n, s.Name)
		if err != nil || (k == 0) != (n == s.Redirect.Name) {
			t.Errorf("%s: %d, %v", n.Key(), k, err)
		}
	}
	if k, err := w.publisher().Compact(t.Context(), s.Redirect.Name, s.Name); err != nil || k != 0 {
		t.Errorf("back: %d, %v", k, err)
	}
	if _, err := w.publisher().Expire(t.Context(), s.Redirect.Name); !errors.Is(err, publish.ErrInvalid) {
		t.Errorf("a compaction expires: %v", err)
	}
	if err := w.publisher().Release(t.Context(), s.Name); !errors.Is(err, publish.ErrInvalid) {
		t.Errorf("an hour is released: %v", err)
	}
}
