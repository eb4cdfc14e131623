package rollup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/compact"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// there are the raw frames in the store.
func (w *world) there(prefix string) (n int) {
	w.t.Helper()
	must(w.t, objstore.ListAll(w.t.Context(), w.store, prefix, "", func(objstore.Info) error { n++; return nil }))
	return n
}

// Only frames whose every hour is covered go, when all their hours are before the time;
// what went is written down first.
func TestRawFramesAreRemovedWhenCovered(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	a := agentOf(0, 0)
	w.clock.Store((hour0 + 3).End().UnixNano())
	seq := w.some(a, hour0, 0, 10, 0)
	both := w.accept(a, seq, point{"load", frame.Gauge, at(hour0, 59*time.Minute), 1}, point{"load", frame.Gauge, at(hour0+1, time.Minute), 2})
	seq = w.some(a, hour0+1, 10, 5, both.SeqEnd+1)
	w.drive(cfg, Grant{Shard: 0, Fence: 1})
	late := w.accept(a, seq, point{"load", frame.Gauge, at(hour0, 58*time.Minute), 3})
	wide := w.accept(a, late.SeqEnd+1, point{"load", frame.Gauge, at(hour0-5, time.Minute), 1}, point{"load", frame.Gauge, at(hour0, 30*time.Minute), 2})
	remover := func() *compact.FrameRemover {
		f, err := compact.NewFrameRemover(compact.FrameConfig{Store: w.store, AuthorityID: testAuthority, By: "test", Now: w.now})
		must(t, err)
		return f
	}
	all := w.there(layout.RawBlobsPrefix)
	run := func(before time.Time, dry bool, batches int, kept string) {
		t.Helper()
		rep, err := remover().Run(t.Context(), before, dry)
		must(t, err)
		if rep.Batches != batches || rep.Frames != batches || fmt.Sprint(rep.Kept) != kept {
			t.Fatalf("%+v, want %d batches and %s", rep, batches, kept)
		}
		if !dry {
			all -= batches
		}
		if n := w.there(layout.RawBlobsPrefix); n != all {
			t.Fatalf("%d frames, want %d", n, all)
		}
	}
	run(hour0.End(), true, 10, "map[]")
	if n := w.there(layout.LogPrefix); n != 0 {
		t.Errorf("a dry run wrote %d logs", n)
	}
	run(hour0.End().Add(-time.Millisecond), false, 0, "map[]")
	run(hour0.End(), false, 10, "map[]") // both reaches into the next hour; late and wide are in no set
	run(hour0.End(), false, 0, "map[]")
	run((hour0 + 1).End(), false, 6, "map[]")
	if n := w.there(layout.LogPrefix); n != 2 {
		t.Errorf("%d logs", n)
	}
	// Rolled up by its rows, without the frames: the late ones are covered, and may go.
	w.drive(cfg, Grant{Shard: 0, Fence: 2})
	set := w.set(hour0, 0, window.Raw)
	if set.Name.Generation != 2 || !set.Inputs.Covers(late.Identity()) || !set.Inputs.Covers(wide.Identity()) {
		t.Fatalf("%+v", set)
	}
	run((hour0 + 1).End(), false, 1, fmt.Sprintf("map[%s:1]", compact.KeptWide))
	for _, key := range []string{layout.LogPrefix} {
		must(t, objstore.ListAll(t.Context(), w.store, key, "", func(i objstore.Info) error {
			b, _, err := w.store.Get(t.Context(), i.Key, objstore.GetOptions{})
			if err == nil && (!strings.HasPrefix(i.Key, layout.LogPrefix+"frames/") || !strings.Contains(string(b), compact.FrameLogSchema)) {
				t.Errorf("%s: %s", i.Key, b)
			}
			return err
		}))
	}
}
