package live_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// fleet inserts a batch of each of n small agents.
func fleet(t *testing.T, s *live.Store, n int, at time.Time) {
	t.Helper()
	for i := range n {
		b := identity.Boot{Agent: fmt.Sprint("good", i), Boot: "b"}
		insert(t, s, build(t, b, uint64(at.Unix()), 1, b.Agent, 2, []int64{at.UnixNano()}, func(int) float64 { return 1 }), start, live.Inserted)
	}
}

func samplesOf(t *testing.T, s *live.Store, now time.Time) map[string]int {
	t.Helper()
	snap := s.Snapshot(now)
	defer snap.Close()
	out := map[string]int{}
	for name, by := range read(t, snap, before, after) {
		out[name] = len(by)
	}
	return out
}

// TestFarFutureGoesFirst: samples years ahead give way before anybody's present does, the
// farthest first, and answers about their times say so.
func TestFarFutureGoesFirst(t *testing.T) {
	s := newStore(t, live.Config{MaxBytes: 64 << 10, Future: time.Hour})
	fleet(t, s, 10, start)
	ahead := start.Add(3 * 365 * 24 * time.Hour)
	bad := identity.Boot{Agent: "bad", Boot: "b"}
	for i := range 500 {
		at := ahead.Add(time.Duration(i) * time.Second).UnixNano()
		insert(t, s, build(t, bad, uint64(1+i), 1, "bad", 1, []int64{at}, func(int) float64 { return 1 }), start, live.Inserted)
	}
	st := s.Stats()
	if st.Evicted.Future == 0 || st.Evicted.Oldest+st.Evicted.Agent != 0 || st.Bytes > 64<<10 {
		t.Errorf("%+v", st)
	}
	got := samplesOf(t, s, start)
	for i := range 10 {
		for m := range 2 {
			if name := fmt.Sprintf(`{__name__="m%d", set="good%d"}`, m, i); got[name] != 1 {
				t.Errorf("%s has %d samples", name, got[name])
			}
		}
	}
	if _, ok := lost(s, start, before, start.Add(time.Hour).UnixMilli()); ok {
		t.Error("the present is marked")
	}
	if _, ok := lost(s, start, ahead.UnixMilli(), after); !ok {
		t.Error("the future is not marked")
	}
}

// TestAgentBeyondItsShareGoesFirst: an agent that takes more than its share of the series
// or the bytes loses its own oldest samples; those of the others stay, though older.
func TestAgentBeyondItsShareGoesFirst(t *testing.T) {
	for name, c := range map[string]struct {
		cfg    live.Config
		series int // of each batch, all new or all the same
		fresh  bool
	}{
		"series":  {live.Config{MaxSeries: 200, AgentShare: 25}, 10, true},
		"bytes":   {live.Config{MaxBytes: 256 << 10, AgentShare: 25}, 10, true},
		"samples": {live.Config{MaxBytes: 256 << 10, AgentShare: 25}, 10, false},
	} {
		s := newStore(t, c.cfg)
		fleet(t, s, 10, start)
		bad := identity.Boot{Agent: "bad", Boot: "b"}
		for i := range 1000 {
			set := "bad"
			if c.fresh {
				set += fmt.Sprint(i)
			}
			at := start.Add(time.Duration(1+i) * time.Second).UnixNano()
			insert(t, s, build(t, bad, uint64(1+i*c.series), 1, set, c.series, []int64{at}, func(int) float64 { return 1 }), start, live.Inserted)
		}
		st := s.Stats()
		if st.Evicted.Agent == 0 || st.Evicted.Oldest+st.Evicted.Future != 0 {
			t.Errorf("%s: %+v", name, st)
		}
		if got := samplesOf(t, s, start); got[`{__name__="m1", set="good7"}`] != 1 || len(got) < 21 {
			t.Errorf("%s: of the others %v is left", name, got)
		}
	}
}

// TestSnapshotsDoNotEvict: what an open snapshot still sees of evicted series is no reason
// to evict more.
func TestSnapshotsDoNotEvict(t *testing.T) {
	s := newStore(t, live.Config{MaxSeries: 50})
	var open []*live.Snapshot
	for i := range 100 {
		insert(t, s, one(t, uint64(1+2*i), fmt.Sprint(i), start.Add(time.Duration(i)*time.Second)), start, live.Inserted)
		open = append(open, s.Snapshot(start))
	}
	if st := s.Stats(); st.Batches != 25 || st.Series != 200 {
		t.Errorf("%+v, want 25 batches, and all series while snapshots see them", st)
	}
	for _, snap := range open {
		snap.Close()
	}
	if st := s.Stats(); st.Batches != 25 || st.Series != 50 {
		t.Errorf("%+v, want 25 batches of 50 series", st)
	}
	s.Expire(start.Add(10_000 * time.Hour))
	if st := s.Stats(); st.Bytes != 0 || st.Series != 0 || st.Shapes != 0 || st.Placeholders != 0 {
		t.Errorf("an empty store has %+v", st)
	}
}

// TestOverlapsAreBounded: identities over one range cost memory by their number, not by its square.
func TestOverlapsAreBounded(t *testing.T) {
	s := newStore(t, live.Config{})
	const n = 400
	for i := range n { // each overlaps all before it
		a := build(t, boot, 1, int64(n-i), "x", 1, rows(i+1), func(int) float64 { return 1 })
		insert(t, s, a, start, live.Inserted)
	}
	if st := s.Stats(); st.Bytes > n*(n*20+2000) {
		t.Errorf("%+v", st)
	}
	before := s.Stats().Bytes
	for i := range n {
		a := build(t, boot, uint64(1+i), int64(1000+i), "x", 1, rows(1), func(int) float64 { return 1 })
		if a.Identity.SeqEnd > 1 {
			insert(t, s, a, start, live.Inserted)
		}
	}
	if more := s.Stats().Bytes - before; more > n*2000 {
		t.Errorf("%d batches of one masked record take %d bytes", n, more)
	}
	s.Expire(start.Add(10_000 * time.Hour))
	if st := s.Stats(); st.Bytes != 0 {
		t.Errorf("an empty store has %+v", st)
	}
}

func rows(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = start.UnixNano() + int64(i)*1e9
	}
	return out
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemoryBoundHolds: 300,000 series of one agent, each of one sample, stay within the
// bound by the heap that they take, not by an estimate alone, and push nobody out.
func TestMemoryBoundHolds(t *testing.T) {
	const bound = 48 << 20
	empty := heapBytes()
	s := newStore(t, live.Config{MaxBytes: bound, AgentShare: 25, MaxSeries: 10_000_000})
	fleet(t, s, 20, start)
	builder, batch := frame.NewBuilder(), &frame.Batch{}
	bad := identity.Boot{Agent: "bad", Boot: "b"}
	const size = 2000
	for i := range 150 {
		at := start.Add(time.Duration(i) * time.Second)
		builder.Reset()
		for k := range size {
			id, err := builder.AddSeries([]series.Label{
				{Name: "__name__", Value: fmt.Sprintf("metric_%d_total", k%50)}, {Name: "id", Value: fmt.Sprintf("%08d-%08d", i, k)},
				{Name: "instance", Value: "host:9100"}, {Name: "job", Value: "node"}, {Name: "trace", Value: fmt.Sprintf("%016x", i*size+k)},
			}, series.Counter, "", 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := builder.Append(id, at.UnixNano(), 1); err != nil {
				t.Fatal(err)
			}
		}
		built, err := builder.Build(bad, uint64(1+i*size))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := frame.Encode(nil, built)
		if err != nil {
			t.Fatal(err)
		}
		if err := frame.Decode(raw, batch, frame.Limits{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Insert(accepted.Batch{Identity: batch.Identity, AcceptedAt: 1}, batch, start); err != nil {
			t.Fatal(err)
		}
		if i%50 == 49 {
			builder, batch = frame.NewBuilder(), &frame.Batch{}
			used, st := heapBytes()-empty, s.Stats()
			t.Logf("%d series offered, %d kept: heap %d, estimate %d", (i+1)*size, st.Series, used, st.Bytes)
			if used > bound+bound/10 {
				t.Errorf("%d bytes of heap, the bound is %d", used, bound)
			}
		}
	}
	if st := s.Stats(); st.Evicted.Agent == 0 || st.Evicted.Oldest != 0 || st.Bytes > bound || st.Series < 20_000 {
		t.Errorf("%+v", st)
	}
	if got := samplesOf(t, s, start); got[`{__name__="m0", set="good19"}`] != 1 || got[`{__name__="m1", set="good0"}`] != 1 {
		t.Error("others were pushed out")
	}
	runtime.KeepAlive(s)
}
