package rollup

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// counting counts the requests to a store, the bytes of its writes, and the generations that they publish.
type counting struct {
	objstore.Store
	requests, bytes, generations int
}

func (c *counting) wrote(key string, body []byte) {
	c.requests++
	c.bytes += len(body)
	if strings.HasPrefix(key, layout.ManifestsPrefix) {
		c.generations++
	}
}

func (c *counting) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	c.wrote(key, body)
	return c.Store.Put(ctx, key, body, o)
}

func (c *counting) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	c.wrote(key, body)
	return c.Store.Create(ctx, key, body, o)
}

func (c *counting) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	c.wrote(key, body)
	return c.Store.Replace(ctx, key, body, etag, o)
}

func (c *counting) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	c.requests++
	return c.Store.Get(ctx, key, o)
}

func (c *counting) Head(ctx context.Context, key string) (objstore.Info, error) {
	c.requests++
	return c.Store.Head(ctx, key)
}

func (c *counting) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	c.requests++
	return c.Store.List(ctx, o)
}

func (c *counting) Delete(ctx context.Context, key string) error {
	c.requests++
	return c.Store.Delete(ctx, key)
}

func (c *counting) reset() { c.requests, c.bytes, c.generations = 0, 0, 0 }

func (c *counting) String() string {
	return fmt.Sprintf("%d generations, %d bytes written, %d requests", c.generations, c.bytes, c.requests)
}

// dayOf fills a day of hours of one shard: rows of each of some series in every hour.
func (w *world) dayOf(agent string, hours, names, rows int) (seq uint64) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range hours {
		var ps []point
		for n := range names {
			for k := range rows {
				ps = append(ps, point{fmt.Sprint("m", n), series.Gauge, at(hour0-timegrid.Hour(i), time.Duration(k+1)*time.Second), rnd.NormFloat64()})
			}
		}
		seq = w.accept(agent, seq, ps...).SeqEnd + 1
	}
	return seq
}

// over is a late batch with the same number of samples in each of the hours.
func over(hours, each, n int) (ps []point) {
	for i := range hours {
		for k := range each {
			ps = append(ps, point{fmt.Sprint("m", k), series.Gauge, at(hour0-timegrid.Hour(hours-1-i), 50*time.Minute+time.Duration(n+1)*time.Second), float64(n)})
		}
	}
	return ps
}

// deltaConfig puts late batches into deltas.
func deltaConfig() Config {
	c := testConfig()
	c.Schedule.FoldAfter = 6 * time.Hour
	return c
}

// TestLateDataCostsItsWeight: ten late batches of 240 records, one after the other, over 24 hours that are
// published. What is written for them is at most ten times their bytes, and one fold.
func TestLateDataCostsItsWeight(t *testing.T) {
	w := newWorld(t, newMem())
	agent := agentOf(0, 0)
	seq := w.dayOf(agent, 24, 60, 120)
	store := &counting{Store: w.store}
	cfg := deltaConfig()
	o, err := w.owner(w.worker(cfg, store), ownership.Grant{Shard: 0, Fence: 1})
	must(t, err)
	must(t, rounds(t.Context(), o))
	t.Logf("the day: %s", store)
	whole := store.bytes
	store.reset()
	late := 0
	for n := range 10 {
		e := w.accept(agent, seq, over(24, 10, n)...)
		seq = e.SeqEnd + 1
		late += int(e.FrameBytes)
		must(t, rounds(t.Context(), o))
		w.advance(cfg.Schedule.LateAfter)
		must(t, rounds(t.Context(), o))
	}
	t.Logf("%d bytes in ten late batches: %s", late, store)
	if store.bytes > 10*late || store.generations > 0 {
		t.Errorf("late batches of %d bytes cost %s", late, store)
	}
	if left := w.left(0); len(left) > 0 {
		t.Errorf("segments left: %v", left)
	}
	store.reset()
	w.advance(cfg.Schedule.FoldAfter)
	must(t, rounds(t.Context(), o))
	t.Logf("the fold: %s", store)
	// One generation of each hour, as large as the first one and what was late.
	if store.generations != 24*4 || store.bytes > 5*whole/4 {
		t.Errorf("the fold cost %s", store)
	}
	for i := range timegrid.Hour(24) {
		w.check(hour0-i, 0, 2)
	}
	w.advance(testPolicy.Grace)
	must(t, rounds(t.Context(), o))
	if left := w.deltas(0); len(left) > 0 {
		t.Errorf("deltas left: %v", left)
	}
}

// deltas lists those of a shard.
func (w *world) deltas(id shard.ID) (keys []string) {
	w.t.Helper()
	must(w.t, storetest.Each(w.t.Context(), w.store, layout.RollupDeltas(id), func(o objstore.Info) error {
		keys = append(keys, o.Key)
		return nil
	}))
	return keys
}

// deferred is a world with two published hours and a late batch of both that is in a delta.
func deferred(t *testing.T) (w *world, key string, late accepted.Batch) {
	w = newWorld(t, newMem())
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0-1, 0, 10, 0)
	seq = w.some(agent, hour0, 0, 10, seq)
	w.drive(deltaConfig(), ownership.Grant{Shard: 0, Fence: 1})
	late = w.accept(agent, seq, over(2, 2, 1)...)
	w.drive(deltaConfig(), ownership.Grant{Shard: 0, Fence: 1})
	keys := w.deltas(0)
	if len(keys) != 1 || len(w.left(0)) > 0 || w.generation(hour0, 0) != 1 {
		t.Fatalf("deltas %v, segments %v, generation %d", keys, w.left(0), w.generation(hour0, 0))
	}
	w.manifests()
	return w, keys[0], late
}

// TestADamagedDeltaIsRepaired: one whose header can't be read says nothing of its batches, so a request makes its hours
// of everything that was accepted. One whose frames are damaged is folded as ever.
func TestADamagedDeltaIsRepaired(t *testing.T) {
	for _, header := range []bool{false, true} {
		w, key, late := deferred(t)
		if rep := w.uncovered(); len(rep) > 0 {
			t.Fatalf("a batch in a delta is called missing: %+v", rep)
		}
		w.verify()
		body, _, err := w.store.Get(t.Context(), key, objstore.GetOptions{})
		must(t, err)
		bad := bytes.Clone(body)
		if bad[len(bad)-1] ^= 1; header {
			bad = bytes.Clone(body)
			bad[len(bad)/4] ^= 1
		}
		w.spoil(key, string(bad))
		found := w.verify(repair.DeltaUnreadable)
		if len(found) != 2 || found[0].Hour != hour0-1 || found[1].Hour != hour0 || found[0].Key != key {
			t.Fatalf("%+v", found)
		}
		o, err := w.owner(w.worker(deltaConfig(), w.store), ownership.Grant{Shard: 0, Fence: 2})
		must(t, err)
		if header {
			if rep := w.uncovered(); len(rep) != 2 || rep[0].Example != late.Identity {
				t.Fatalf("a batch that nothing has is not missing: %+v", rep)
			}
			for _, f := range found {
				got, err := w.repairer().Request(t.Context(), f.Hour, f.Shard, "damaged", false)
				if err != nil || got.Source != "scan" {
					t.Fatalf("%+v, %v", got, err)
				}
			}
		} else {
			w.advance(deltaConfig().Schedule.FoldAfter)
		}
		must(t, rounds(t.Context(), o))
		for h := hour0 - 1; h <= hour0; h++ {
			w.check(h, 0, 2)
		}
		w.advance(time.Hour)
		must(t, rounds(t.Context(), o))
		if left := w.deltas(0); header != (len(left) > 0) {
			t.Errorf("header damaged %v: deltas left %v", header, left)
		}
		if rep := w.uncovered(); len(rep) > 0 {
			t.Errorf("missing after the repair: %+v", rep)
		}
	}
}

// uncovered is what lmctl rollup coverage finds.
func (w *world) uncovered() []repair.Uncovered {
	w.t.Helper()
	c, err := w.repairer().Coverage(w.t.Context())
	must(w.t, err)
	for _, m := range w.manifests() {
		must(w.t, c.Check(w.t.Context(), m.Batch()))
	}
	return c.Uncovered()
}

// TestFramesOfDeltasStay: of batches in deltas, and of their hours, which their folds may read again.
func TestFramesOfDeltasStay(t *testing.T) {
	w, _, _ := deferred(t)
	frames := w.there("raw-blobs/")
	f, err := compact.NewFrameRemover(compact.FrameConfig{Store: w.store, AuthorityID: testAuthority, By: "test", Now: w.now})
	must(t, err)
	w.advance(48 * time.Hour)
	rep, err := f.Run(t.Context(), w.now().Add(-24*time.Hour), false)
	must(t, err)
	if rep.Batches > 0 || w.there("raw-blobs/") != frames || rep.Kept[compact.KeptPending] == 0 {
		t.Errorf("%+v", rep)
	}
}

// TestNothingIsDeferredThatExpiresSoon: rolled rows must have it when the samples go.
func TestNothingIsDeferredThatExpiresSoon(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := deltaConfig()
	cfg.Retention.Raw = 24 * time.Hour
	agent := agentOf(0, 0)
	seq := w.some(agent, hour0, 0, 10, 0)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	w.clock.Store(hour0.End().Add(cfg.Retention.Raw - 2*cfg.Schedule.FoldAfter + time.Minute).UnixNano())
	w.accept(agent, seq, over(1, 2, 1)...)
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	w.check(hour0, 0, 2)
	if left := w.deltas(0); len(left) > 0 {
		t.Errorf("deltas %v", left)
	}
}

// TestLateDataIsLinear: what a late batch costs does not grow with how many came before it, although they come all the time
// and for hours that are published: neither generations nor deltas are made again for each.
func TestLateDataIsLinear(t *testing.T) {
	type cost struct{ requests, bytes, generations float64 } // a batch
	measure := func(n int) cost {
		w := newWorld(t, newMem())
		agent := agentOf(0, 0)
		seq := w.dayOf(agent, 6, 30, 120)
		store := &counting{Store: w.store}
		cfg := deltaConfig()
		o, err := w.owner(w.worker(cfg, store), ownership.Grant{Shard: 0, Fence: 1})
		must(t, err)
		must(t, rounds(t.Context(), o))
		store.reset()
		for i := range n {
			e := w.accept(agent, seq, over(6, 2, i)...)
			seq = e.SeqEnd + 1
			must(t, rounds(t.Context(), o))
			w.advance(cfg.Schedule.LateAfter)
			must(t, rounds(t.Context(), o))
		}
		each := float64(n)
		t.Logf("%d late batches: %s; each %.1f requests, %.0f bytes, %.2f generations", n, store, float64(store.requests)/each, float64(store.bytes)/each, float64(store.generations)/each)
		return cost{float64(store.requests) / each, float64(store.bytes) / each, float64(store.generations) / each}
	}
	few, more, many := measure(64), measure(256), measure(1024)
	// The first few meet no fold, which is once in six hours for each hour that has late batches.
	if few.generations > 0 || more.generations > 0.2 || many.generations > 0.2 {
		t.Errorf("%.2f, %.2f and %.2f generations a batch", few.generations, more.generations, many.generations)
	}
	// A fold writes the inputs that the hour had before as well, 50 bytes each.
	if many.requests > 1.25*few.requests || many.bytes > 2*more.bytes {
		t.Errorf("a batch costs %+v after few, %+v after many, %+v after very many", few, more, many)
	}
}
