package catalog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func put(t *testing.T, s objstore.Store, r Record) {
	t.Helper()
	if _, err := s.Put(t.Context(), r.key(), r.Marshal(), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

func newCatalog(t *testing.T, r objstore.Reader, requests int) *Catalog {
	t.Helper()
	c, err := New(Config{Reader: r, AuthorityID: "authority-1", MaxRequests: requests})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refresh(t *testing.T, c *Catalog) *View {
	t.Helper()
	v, err := c.Refresh(t.Context(), testHour-100, testHour+100)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestHighestCommittedGenerationCounts(t *testing.T) {
	s := fault.New(mem.New(nil), 1)
	c := newCatalog(t, s, 0)
	agent := "host"
	at := shard.Of(agent, 4)
	one, two := batch(agent, 0, 9), batch(agent, 10, 19)
	put(t, s, Record{Block: testSet(at, timegrid.Raw, 1, 0, one)})
	first := refresh(t, c)
	if !first.Covers(one, testHour, timegrid.Raw) || first.Covers(two, testHour, timegrid.Raw) || first.Covers(one, testHour, timegrid.OneMinute) || first.Covers(one, testHour+1, timegrid.Raw) {
		t.Error("coverage of generation 1")
	}
	put(t, s, Record{Block: testSet(at, timegrid.Raw, 2, 1, one, two)})
	put(t, s, Record{Aborted: &Aborted{AuthorityID: "authority-1", Name: Name{Hour: testHour, Shard: at, Resolution: timegrid.Raw, Generation: 3}, Reason: "r", WorkerID: "w"}})
	v := refresh(t, c)
	if block := v.Block(testHour, at, timegrid.Raw); block == nil || block.Name.Generation != 2 || v.Top(testHour, at, timegrid.Raw) != 3 || !v.Covers(two, testHour, timegrid.Raw) {
		t.Errorf("%+v", block)
	}
	if first.Covers(two, testHour, timegrid.Raw) {
		t.Error("a view changed")
	}
	// Nothing new: one listing, and what has expired; no record is read again.
	before := s.Count("get", "") + s.Count("list", "")
	refresh(t, c)
	if n := s.Count("get", "") + s.Count("list", "") - before; n != 2 {
		t.Errorf("%d requests", n)
	}
	// A superseded block that is removed changes nothing; one that expired hides those before.
	put(t, s, Record{Removed: testSet(at, timegrid.Raw, 1, 0, one).Remove(2, 0, "w")})
	if v = refresh(t, c); v.Block(testHour, at, timegrid.Raw) == nil {
		t.Error("a removed generation hides its successor")
	}
	put(t, s, Record{Removed: testSet(at, timegrid.Raw, 2, 1, one, two).Remove(0, 0, "w")})
	put(t, s, Record{Block: testSet(at, timegrid.Raw, 1, 0, one)})
	if v = refresh(t, c); v.Block(testHour, at, timegrid.Raw) != nil {
		t.Error("a superseded generation counts again")
	}
	if err := s.Delete(t.Context(), layout.BlockManifest(testHour, at, timegrid.Raw, 1)); err != nil {
		t.Fatal(err)
	}
	c.Forget(testHour+1, testHour+2)
	if len(c.View().Hours()) != 0 {
		t.Error("hours are not forgotten")
	}
}

// A record that can't be read is a problem to be told, not a reason to look further down in silence.
func TestUnreadableRecordIsAProblem(t *testing.T) {
	s := mem.New(nil)
	c := newCatalog(t, s, 0)
	put(t, s, Record{Block: testSet(1, timegrid.Raw, 1, 0)})
	if _, err := s.Put(t.Context(), layout.BlockManifest(testHour, 1, timegrid.Raw, 2), []byte("{}"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	foreign := testSet(1, timegrid.Raw, 3, 1)
	foreign.AuthorityID = "another"
	put(t, s, Record{Block: foreign})
	v := refresh(t, c)
	if p := v.Problems(testHour); len(p) != 2 || !errors.Is(p[0].Err, record.ErrCorrupt) || !errors.Is(p[1].Err, record.ErrCorrupt) {
		t.Errorf("%v", p)
	}
	put(t, s, Record{Block: testSet(1, timegrid.Raw, 2, 1)})
	if v = refresh(t, c); len(v.Problems(testHour)) != 1 || v.Block(testHour, 1, timegrid.Raw).Name.Generation != 2 {
		t.Error("it is not read again")
	}
}

// A refresh with few requests continues where the one before stopped, in the middle of an
// hour too, and ends with what one long refresh sees.
func TestRefreshInSmallSteps(t *testing.T) {
	s := mem.New(nil)
	for h := range timegrid.Hour(3) {
		for sh := range shard.ID(4) {
			for _, res := range timegrid.Resolutions() {
				for gen := uint64(1); gen <= 2; gen++ {
					block := testSet(sh, res, gen, gen-1, batch("a", 0, 9))
					block.Name.Hour += h
					block.PlanKey = layout.RollupPlan(block.Name.Hour, sh, gen)
					o := &block.Objects[0]
					o.ChunkKey = layout.RollupChunk(res, block.Name.Hour, o.Metric, o.ChunkSHA256, 0)
					o.IndexKey = layout.RollupIndex(block.Name.Hour, o.IndexSHA256, 0)
					put(t, s, Record{Block: block})
				}
			}
		}
	}
	whole := refresh(t, newCatalog(t, s, 0))
	c := newCatalog(t, s, 7)
	steps := 0
	for ; steps < 100; steps++ {
		_, err := c.Refresh(t.Context(), testHour-100, testHour+100)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrBudget) {
			t.Fatal(err)
		}
	}
	if steps < 5 || steps == 100 {
		t.Errorf("%d steps", steps)
	}
	describe := func(v *View) (s string) {
		for _, h := range v.Hours() {
			for _, res := range timegrid.Resolutions() {
				for _, block := range v.Blocks(h, res) {
					s += fmt.Sprintln(block.Name, v.Top(h, block.Name.Shard, res), len(block.Objects))
				}
			}
		}
		return s
	}
	if got, want := describe(c.View()), describe(whole); got != want || len(whole.Hours()) != 3 {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if v, err := c.Refresh(t.Context(), testHour+1, testHour+1); err == nil && len(v.Hours()) != 3 {
		t.Errorf("a refresh of one hour drops others: %v", v.Hours())
	}
}

func TestViewOfNothing(t *testing.T) {
	var v *View
	if v.Covers(identity.Batch{}, 0, timegrid.Raw) || v.Block(0, 0, timegrid.Raw) != nil || v.Hours() != nil || len(v.Problems(0)) != 0 || v.Top(0, 0, timegrid.Raw) != 0 {
		t.Error("something is there")
	}
}

func BenchmarkCovers(b *testing.B) {
	var ids []identity.Batch
	for a := range 100 {
		for i := range uint64(360) {
			ids = append(ids, batch(fmt.Sprintf("host-%d", a), i*(100+i%3), i*(100+i%3)+99))
		}
	}
	in := inputs(b, ids...)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		in.Covers(ids[i%len(ids)])
		i++
	}
}

// TestHoursOfViews: the hours of a view are those that were refreshed and not forgotten, whatever was asked before, and
// also behind new deltas.
func TestHoursOfViews(t *testing.T) {
	s := mem.New(nil)
	rng := rand.New(rand.NewPCG(3, 0))
	c, err := New(Config{Reader: s, AuthorityID: "authority-1"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[timegrid.Hour]bool{}
	for range 40 {
		h := day0 + timegrid.Hour(rng.IntN(30))
		b := testSet(1, timegrid.Raw, 1, 0, batch("a", 0, 9))
		b.Name.Hour, b.PlanKey = h, layout.RollupPlan(h, 1, 1)
		o := &b.Objects[0]
		o.ChunkKey, o.IndexKey = layout.RollupChunk(timegrid.Raw, h, o.Metric, o.ChunkSHA256, 0), layout.RollupIndex(h, o.IndexSHA256, 0)
		put(t, s, Record{Block: b})
		want[h] = true
		from, to := day0, day0+29
		if _, err := c.Refresh(t.Context(), from, to); err != nil {
			t.Fatal(err)
		}
		switch rng.IntN(3) {
		case 0:
			from, to = from+timegrid.Hour(rng.IntN(10)), to-timegrid.Hour(rng.IntN(10))
			c.Forget(from, to)
		case 1:
			if _, err := c.RefreshDeltas(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var hours []timegrid.Hour
		for h := from; h <= to; h++ {
			if want[h] {
				hours = append(hours, h)
			}
		}
		v := c.View()
		last, any := v.Last()
		if got := v.Hours(); !slices.Equal(got, hours) || any != (len(hours) > 0) || any && last != hours[len(hours)-1] {
			t.Fatalf("hours %v, last %v, want %v", got, last, hours)
		}
		for a := day0 - 1; a <= day0+30; a++ {
			b := a + timegrid.Hour(rng.IntN(3))
			if got, want := v.Any(a, b), slices.ContainsFunc(hours, func(h timegrid.Hour) bool { return h >= a && h <= b }); got != want {
				t.Fatalf("any of %v to %v of %v: %t", a, b, hours, got)
			}
		}
	}
}
