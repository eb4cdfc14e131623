package rollup

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
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
