package compact_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

func (w *world) expirerOver(s publish.Store, r publish.Refs) *compact.Expirer {
	x, err := compact.NewExpirer(compact.ExpirerConfig{Store: s, Publisher: w.publisherOver(s, r), AuthorityID: authority, WorkerID: "w", Now: w.clock.Now})
	w.must(err)
	return x
}

func (w *world) expirer() *compact.Expirer { return w.expirerOver(w.store, w.refs) }

// Raw blocks go hour by hour, their compaction when its last hour has; other resolutions stay.
func TestRetention(t *testing.T) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(8 * time.Hour)
	w.rollAll(hour0, 7, timegrid.Raw, timegrid.OneMinute)
	st := settings()
	w.compactAll(st)
	w.roll(hour0+1, 1, timegrid.Raw, timegrid.OneMinute) // masked
	w.collect()
	minutes := w.answers(w.view(), timegrid.OneMinute)
	compacted := w.keys(layout.RollupChunksHour(timegrid.Raw, hour0))

	rep, err := w.expirer().Expire(t.Context(), timegrid.Raw, hour0-10, hour0+4)
	if err != nil || rep.Hours != 5 || rep.Blocks != 21 { // one twice, that was superseded: its record stays
		t.Fatalf("%+v, %v", rep, err)
	}
	w.collect()
	v := w.view()
	for h := hour0; h < hour0+7; h++ {
		if n := len(v.Blocks(h, timegrid.Raw)); (n == 0) != (h <= hour0+4) {
			t.Errorf("hour %d has %d raw blocks", h-hour0, n)
		}
	}
	same(t, "1m", w.answers(v, timegrid.OneMinute), minutes)
	if len(w.answers(v, timegrid.Raw)) == 0 {
		t.Error("the sixth hour stands in the compaction no more")
	}
	if left := w.keys(layout.RollupChunksHour(timegrid.Raw, hour0)); len(left) != len(compacted) {
		t.Errorf("%d chunks of the first hour, the compaction has %d", len(left), len(compacted))
	}
	if rep, err = w.expirer().Expire(t.Context(), timegrid.Raw, hour0-10, hour0+4); err != nil || rep.Hours != 0 {
		t.Errorf("again: %+v, %v", rep, err)
	}
	if rep, err = w.expirer().Expire(t.Context(), timegrid.Raw, hour0-10, hour0+6); err != nil || rep.Hours != 2 {
		t.Errorf("the rest: %+v, %v", rep, err)
	}
	w.collect()
	if left := w.keys(layout.RollupPrefix + "window=raw/"); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
	same(t, "1m", w.answers(w.view(), timegrid.OneMinute), minutes)
	// A late batch makes a block again, which no reader takes for the hour, and which goes, too.
	w.roll(hour0, 0, timegrid.Raw, timegrid.OneMinute)
	if n := len(w.view().Blocks(hour0, timegrid.Raw)); n != 0 {
		t.Fatalf("%d blocks of an hour that has expired", n)
	}
	if len(w.keys(layout.RollupPrefix+"window=raw/")) == 0 {
		t.Fatal("nothing was made of the late batch")
	}
	if rep, err = w.expirer().Expire(t.Context(), timegrid.Raw, hour0-10, hour0+6); err != nil || rep.Hours != 1 {
		t.Errorf("the late one: %+v, %v", rep, err)
	}
	logs := w.keys(layout.LogPrefix)
	if len(logs) != 8 {
		t.Errorf("%d logs", len(logs))
	}
	named := 0
	for _, k := range logs {
		b, _, err := w.store.Get(t.Context(), k, objstore.GetOptions{})
		w.must(err)
		var log struct {
			Schema string
			Blocks []struct{ Key string }
		}
		w.must(json.Unmarshal(b, &log))
		if log.Schema != compact.RetentionKind.Schema || !strings.HasPrefix(k, layout.LogPrefix+"retention/date=") {
			t.Errorf("log %s: %s", k, b)
		}
		named += len(log.Blocks)
	}
	if named < 29 {
		t.Errorf("%d blocks are written down", named)
	}
}

// A retention that dies at any request is finished by the next.
func TestRetentionCrashes(t *testing.T) {
	base, st := small(t)
	base.compactAll(st)
	base.roll(hour0, 0, timegrid.Raw)
	for _, mode := range []string{"before", "after", "lost"} {
		for at := 1; ; at++ {
			w := base.clone()
			p := w.tap()
			dead := false
			p.before = func(n int, write bool) error {
				if dead || mode == "before" && n == at {
					dead = true
					return fmt.Errorf("%w: %w", objstore.ErrInvalid, errCrash)
				}
				return nil
			}
			p.after = func(n int, write bool) error {
				switch {
				case mode == "after" && n == at:
					dead = true
					return fmt.Errorf("%w: %w", objstore.ErrInvalid, errCrash)
				case mode == "lost" && n == at && write:
					return fmt.Errorf("%w (test)", objstore.ErrUnknown)
				}
				return nil
			}
			_, err := w.expirerOver(p, tapRefs{p}).Expire(t.Context(), timegrid.Raw, hour0, hour0+1)
			if dead && !errors.Is(err, errCrash) {
				t.Fatalf("%s request %d: %v", mode, at, err)
			}
			w.must1(w.expirer().Expire(t.Context(), timegrid.Raw, hour0, hour0+1))
			w.collect()
			for h := hour0; h < hour0+2; h++ {
				w.must1(w.collector().Sweep(t.Context(), h))
			}
			w.collect()
			if left := append(w.keys(layout.RollupPrefix+"window="), w.keys(layout.IndexPrefix)...); len(left) > 0 {
				t.Fatalf("%s request %d: %q is left", mode, at, left)
			}
			if n := len(w.keys(layout.LogPrefix)); n != 2 {
				t.Fatalf("%s request %d: %d logs", mode, at, n)
			}
			if at > p.n {
				break
			}
		}
	}
}

// A Scanner sees what a view sees, and reads a record once.
func TestScanner(t *testing.T) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(8 * time.Hour)
	w.rollAll(hour0, 7, timegrid.Raw, timegrid.OneMinute)
	st := settings()
	p := w.tap()
	l := compact.NewScanner(p, authority)
	mine := func(id shard.ID) bool { return st.Owner(id) == 2 }
	look := func() {
		t.Helper()
		seen, err := l.Scan(t.Context(), timegrid.Raw, hour0, hour0+6, mine)
		if err != nil || seen.Skipped > 0 {
			t.Fatal(seen.Skipped, err)
		}
		got := seen.Blocks
		var want []string
		for _, s := range setsOf(w.view(), timegrid.Raw) {
			if mine(s.Name.Shard) {
				want = append(want, fmt.Sprint(s.Name.Key(), s.Redirect != nil, len(s.Objects), s.Counts.Samples))
			}
		}
		var have []string
		for _, s := range got {
			have = append(have, fmt.Sprint(s.Name.Key(), s.Redirect != nil, len(s.Objects), s.Counts.Samples))
		}
		if fmt.Sprint(have) != fmt.Sprint(want) || len(want) == 0 {
			t.Fatalf("%v\nwant %v", have, want)
		}
	}
	look()
	n := p.n
	look()
	if p.n != n+1 {
		t.Errorf("%d requests for what is known", p.n-n)
	}
	w.compactAll(st)
	look()
	w.roll(hour0+2, 3, timegrid.Raw)
	look()
	w.must1(w.expirer().Expire(t.Context(), timegrid.Raw, hour0, hour0+1))
	look()
	w.collect()
	look()
}

// A compaction that nobody ever pointed at is found, and collected.
func TestOrphanedCompaction(t *testing.T) {
	w, st := small(t)
	want := w.answers(w.view(), timegrid.Raw)
	c := w.candidate(st)
	p := w.tap()
	p.before = func(n int, write bool) error {
		if len(w.keys(layout.BlockManifestsHour(hour0))) > 2 { // the compaction is committed
			return fmt.Errorf("%w: %w", objstore.ErrInvalid, errCrash)
		}
		return nil
	}
	if _, err := w.compactorOver(p, tapRefs{p}, st).Compact(t.Context(), c, 7); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	l := compact.NewScanner(w.store, authority)
	orphaned := func() []string {
		t.Helper()
		seen, err := l.Scan(t.Context(), timegrid.Raw, hour0-10, hour0+10, func(shard.ID) bool { return true })
		w.must(err)
		var out []string
		for _, n := range seen.Orphaned() {
			out = append(out, n.Key())
			w.must(w.publisher().Release(t.Context(), n))
		}
		return out
	}
	if got := orphaned(); len(got) > 0 {
		t.Errorf("%q, and its sources may still point at it", got)
	}
	w.clock.now = hour0.Start().Add(8 * time.Hour) // the longer span is due
	w.compactAll(st)
	if got := orphaned(); len(got) != 1 || !strings.Contains(got[0], "raw.2h") {
		t.Errorf("orphaned: %q", got)
	}
	w.settled(st, "collected", want)
}

// The collector decides by the sources' records whether a compaction is needed.
func TestWhoNeedsACompaction(t *testing.T) {
	w, st := small(t)
	want := w.answers(w.view(), timegrid.Raw)
	p := w.tap()
	p.before = func(n int, write bool) error {
		if len(w.keys(layout.BlockManifestsHour(hour0))) > 2 {
			return fmt.Errorf("%w: %w", objstore.ErrInvalid, errCrash)
		}
		return nil
	}
	cand := w.candidate(st)
	if _, err := w.compactorOver(p, tapRefs{p}, st).Compact(t.Context(), cand, 7); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	c := cand.Name
	c.Generation = 1
	committed := func(when string, want bool) {
		t.Helper()
		w.must(w.publisher().Release(t.Context(), c))
		w.collect()
		r, _, err := catalog.Read(t.Context(), w.store, authority, c.Key())
		w.must(err)
		if (r.Block != nil) != want {
			t.Fatalf("%s: removed %t", when, r.Removed != nil)
		}
		if r.Removed != nil {
			for _, k := range r.Removed.Keys {
				if _, err := w.store.Head(t.Context(), k); !errors.Is(err, objstore.ErrNotFound) {
					t.Errorf("%s is left: %v", k, err)
				}
			}
		}
	}
	committed("its sources may still point at it", true)
	if r, err := w.compactor(st).Compact(t.Context(), cand, 7); err != nil || r.Created || r.Redirected != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	committed("they do", true)
	same(t, "finished", w.answers(w.view(), timegrid.Raw), want)
	for i, at := range []struct {
		h  timegrid.Hour
		id shard.ID
	}{{0, 0}, {0, 1}, {1, 1}, {1, 0}} {
		w.roll(hour0+at.h, at.id, timegrid.Raw)
		committed("the others are superseded", i < 3)
	}
	if len(w.answers(w.view(), timegrid.Raw)) == 0 {
		t.Error("no answers")
	}
}
