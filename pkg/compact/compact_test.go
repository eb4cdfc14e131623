package compact_test

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/layout"
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
