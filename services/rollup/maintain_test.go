package rollup

import (
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/backlog"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/maintain"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// compactor is a worker that owns the first shard, and what it does beside its hours.
func (w *world) compactor(cfg Config) *worker { return w.compactorOver(cfg, w.store) }

func (w *world) compactorOver(cfg Config, s objstore.Store) *worker {
	w.t.Helper()
	svc := w.worker(cfg, s)
	o, err := w.owner(svc, ownership.Grant{Shard: 0, Fence: 9})
	must(w.t, err)
	svc.board.Enter(o.Status())
	wk, err := w.opened(svc)
	must(w.t, err)
	return wk
}

// checkCompacted compares the raw rows of an hour, which are in a compaction, with the
// recomputation.
func (w *world) checkCompacted(h timegrid.Hour, id shard.ID) {
	w.t.Helper()
	block := w.set(h, id, timegrid.Raw)
	if block == nil || block.Redirect == nil {
		w.t.Fatalf("%s of shard %s is not compacted", h, id)
	}
	got, err := compact.Series(w.t.Context(), w.store, testAuthority, block)
	must(w.t, err)
	sortSeries(got)
	want := w.raw(h, id)
	if len(got) != len(want) || len(want) == 0 {
		w.t.Fatalf("%d series, want %d", len(got), len(want))
	}
	for i := range got {
		if !sameSeries(&got[i], &want[i]) {
			w.t.Fatalf("%+v, want\n%+v", got[i], want[i])
		}
	}
}

func (w *world) collected(m *worker) {
	w.t.Helper()
	for range 3 {
		w.advance(time.Hour)
		if _, err := m.collection.Collector.Step(w.t.Context(), 1000); err != nil {
			w.t.Fatal(err)
		}
	}
}

// A worker merges what is due; a late batch is rolled up from the merged rows; raw sets
// expire, and a batch that comes later still rebuilds its hour at all resolutions.
func TestCompactionAndRetention(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Compact.Group, cfg.Compact.After, cfg.Compact.Back, cfg.Compact.Raw, cfg.Compact.Minute = testShards, time.Hour, 10, []string{"2h"}, []string{"4h"}
	cfg.Retention.Raw = 24 * time.Hour
	h := hour0 - hour0%4
	w.clock.Store((h + 6).End().UnixNano())
	seqs := map[string]uint64{}
	for id := range shard.ID(testShards) {
		a := agentOf(id, 0)
		for k := range timegrid.Hour(4) {
			seqs[a] = w.some(a, h+k, 0, 20, seqs[a])
		}
		w.drive(cfg, ownership.Grant{Shard: id, Fence: 5})
	}
	m := w.compactor(cfg)
	must(t, m.compaction.Compact(t.Context()))
	w.collected(m)
	for id := range shard.ID(testShards) {
		for k := range timegrid.Hour(4) {
			w.checkCompacted(h+k, id)
			if s := w.set(h+k, id, timegrid.OneMinute); s.Redirect == nil || s.Redirect.Name.Span != 4 {
				t.Errorf("1m of %s: %+v", h+k, s.Redirect)
			}
		}
	}
	// A second scan finds nothing to do.
	must(t, m.compaction.Compact(t.Context()))

	// A late batch: the next generation is made of the merged rows, without old frames.
	late := agentOf(1, 0)
	for id := range w.frames {
		must(t, w.store.Delete(t.Context(), layout.Blob(frameDigest(w, id.SeqStart, id.Agent), 0)))
	}
	e := w.accept(late, seqs[late], point{"load", series.Gauge, at(h+1, 59*time.Minute), 42})
	w.drive(cfg, ownership.Grant{Shard: 1, Fence: 6})
	w.check(h+1, 1, 2)
	w.checkCompacted(h, 1)
	for id, raw := range w.frames { // back
		_, err := w.store.Create(t.Context(), layout.Blob(frameDigest(w, id.SeqStart, id.Agent), 0), raw, objstore.PutOptions{})
		if err != nil && !errors.Is(err, objstore.ErrExists) {
			t.Fatal(err)
		}
	}

	// Raw is over for the first three hours.
	w.clock.Store((h + 3).Start().Add(24*time.Hour + time.Minute).UnixNano())
	must(t, m.retention.Retain(t.Context()))
	for k := range timegrid.Hour(4) {
		for id := range shard.ID(testShards) {
			if s := w.set(h+k, id, timegrid.Raw); (s == nil) != (k < 3) {
				t.Errorf("raw of hour %d, shard %s: %+v", k, id, s)
			}
			if w.set(h+k, id, timegrid.OneMinute) == nil {
				t.Errorf("no 1m of hour %d, shard %s", k, id)
			}
		}
	}
	w.collected(m)
	w.checkCompacted(h+3, 0)
	// Another late one: its frames are there, so that every resolution is rebuilt.
	w.accept(late, e.SeqEnd+1, point{"load", series.Gauge, at(h+1, 59*time.Minute+time.Second), 43})
	w.drive(cfg, ownership.Grant{Shard: 1, Fence: 7})
	w.check(h+1, 1, 3)
	w.advance(2 * maintain.FullEvery)
	must(t, m.retention.Retain(t.Context()))
	if s := w.set(h+1, 1, timegrid.Raw); s != nil {
		t.Errorf("the late raw set stays: %+v", s.Name)
	}
}

// The owner of the first shard copies the records of the last days, hourly; another worker copies none.
func TestRecordsAreCopied(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	w.some(agentOf(0, 0), hour0, 0, 5, 0)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 5})
	w.clock.Store((hour0 + 2).End().UnixNano())
	day := layout.DayOf(hour0)
	other, err := w.opened(w.worker(cfg, w.store))
	must(t, err)
	must(t, other.copies.Copy(t.Context()))
	if _, err := catalog.ReadCopies(t.Context(), w.store, testAuthority, day); !errors.Is(err, objstore.ErrNotFound) {
		t.Fatalf("a worker without the first shard: %v", err)
	}
	m := w.compactor(cfg)
	must(t, m.copies.Copy(t.Context()))
	copied := func(h timegrid.Hour) (n int) {
		t.Helper()
		c, err := catalog.ReadCopies(t.Context(), w.store, testAuthority, day)
		must(t, err)
		for _, x := range c.Records {
			if x.Name.Hour == h {
				n++
			}
		}
		return n
	}
	if n := copied(hour0); n != len(timegrid.Resolutions()) {
		t.Fatalf("%d records of the hour", n)
	}
	w.some(agentOf(0, 0), hour0+1, 0, 5, 5)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 6})
	must(t, m.copies.Copy(t.Context()))
	if n := copied(hour0 + 1); n != 0 {
		t.Errorf("%d records before an hour is over", n)
	}
	w.advance(maintain.CopyEvery)
	must(t, m.copies.Copy(t.Context()))
	if n := copied(hour0 + 1); n != len(timegrid.Resolutions()) {
		t.Errorf("%d records of the second hour", n)
	}
}

// The records of a day that a merge has changed are copied a minute later, also where the day is not looked at for a day
// otherwise.
func TestMergedRecordsAreCopiedSoon(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Compact.Group, cfg.Compact.After, cfg.Compact.Back, cfg.Compact.Raw, cfg.Compact.Minute = testShards, time.Hour, 100, []string{"2h"}, []string{"4h"}
	h := hour0 - hour0%4
	w.clock.Store((h + 6).End().UnixNano())
	for id := range shard.ID(testShards) {
		seq := uint64(0)
		for k := range timegrid.Hour(4) {
			seq = w.some(agentOf(id, 0), h+k, 0, 20, seq)
		}
		w.drive(cfg, ownership.Grant{Shard: id, Fence: 5})
	}
	w.clock.Store((h + 5*24).End().UnixNano())
	m := w.compactor(cfg)
	must(t, m.copies.Copy(t.Context()))
	redirected := func() (n int) {
		t.Helper()
		c, err := catalog.ReadCopies(t.Context(), w.store, testAuthority, layout.DayOf(h))
		must(t, err)
		for _, x := range c.Records {
			if x.Record.Block != nil && x.Record.Block.Redirect != nil {
				n++
			}
		}
		return n
	}
	if n := redirected(); n != 0 {
		t.Fatalf("%d records redirect before the merge", n)
	}
	must(t, m.compaction.Compact(t.Context()))
	must(t, m.copies.Copy(t.Context()))
	if n := redirected(); n != 0 {
		t.Errorf("%d records redirect at once, while further merges may follow", n)
	}
	w.advance(maintain.CopySoon)
	must(t, m.copies.Copy(t.Context()))
	want := 0
	for id := range shard.ID(testShards) {
		for k := range timegrid.Hour(4) {
			for _, res := range timegrid.Resolutions() {
				if w.set(h+k, id, res).Redirect != nil {
					want++
				}
			}
		}
	}
	if n := redirected(); n != want || want == 0 {
		t.Errorf("%d records redirect, want %d", n, want)
	}
}

func frameDigest(w *world, seq uint64, agent string) (d identity.Digest) {
	for _, e := range w.accepted {
		if e.SeqStart == seq && e.Agent == agent {
			return e.FrameSHA256
		}
	}
	w.t.Fatal("no such batch")
	return d
}

func TestCompactSettings(t *testing.T) {
	for _, bad := range []func(*Config){
		func(c *Config) { c.Compact.Raw = []string{"24h", "2h"} },
		func(c *Config) { c.Compact.Minute = []string{"90m"} },
		func(c *Config) { c.Compact.Hour = []string{"10000h"} },
		func(c *Config) { c.Compact.Group = 0 },
		func(c *Config) { c.Retention.Raw = time.Hour },
		func(c *Config) { c.Retention.Five = -time.Hour },
	} {
		c := DefaultConfig()
		if bad(&c); c.Validate() == nil {
			t.Errorf("%+v %+v is taken", c.Compact, c.Retention)
		}
	}
}

// A late batch of an hour whose raw sets expired and whose old frames are gone: the hour
// waits. Its buckets stay what they were, and no generation is aborted for nothing.
func TestLateBatchAfterRawAndFramesAreGone(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Retention.Raw = 24 * time.Hour
	a := agentOf(1, 0)
	seq := w.some(a, hour0, 0, 5, 0)
	w.drive(cfg, ownership.Grant{Shard: 1, Fence: 5})
	m := w.compactor(cfg)
	w.clock.Store(hour0.End().Add(25 * time.Hour).UnixNano())
	must(t, m.retention.Retain(t.Context()))
	if w.set(hour0, 1, timegrid.Raw) != nil {
		t.Fatal("raw has not expired")
	}
	before := w.set(hour0, 1, timegrid.OneMinute)
	for id, raw := range w.frames {
		must(t, w.store.Delete(t.Context(), layout.Blob(identity.Sum(raw), 0)))
		delete(w.frames, id)
	}
	w.some(a, hour0, 50, 1, seq)
	o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 1, Fence: 6})
	must(t, err)
	for range 5 {
		var bad *frames.UnreadableError
		if err := rounds(t.Context(), o); !errors.As(err, &bad) {
			t.Fatalf("got %v, want an unreadable frame", err)
		}
		w.advance(2 * backlog.UnreadableWait)
	}
	if after := w.set(hour0, 1, timegrid.OneMinute); after == nil || after.Name != before.Name {
		t.Errorf("1m is %+v, was %+v", after, before)
	}
	n := 0
	must(t, storetest.Each(t.Context(), w.store, layout.BlockManifestsHour(hour0), func(objstore.Info) error { n++; return nil }))
	if n != len(timegrid.Resolutions()) {
		t.Errorf("%d records, want those of the first generation", n)
	}
}
