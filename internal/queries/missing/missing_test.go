package missing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// A tally says what a count of all batches one by one says.
func TestTallyIsACount(t *testing.T) {
	type batch struct {
		shard uint32
		h     Hours
	}
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var tally Tally
		var all []batch
		for range 60 {
			if len(all) > 0 && rnd.IntN(3) == 0 {
				i := rnd.IntN(len(all))
				tally.Add(all[i].shard, all[i].h, -1)
				all = slices.Delete(all, i, i+1)
			} else {
				from := timegrid.Hour(rnd.IntN(30))
				b := batch{uint32(rnd.IntN(3)), Hours{from, from + timegrid.Hour(rnd.IntN(3))}}
				if rnd.IntN(10) == 0 {
					b.shard = NoShard
				}
				tally.Add(b.shard, b.h, 1)
				all = append(all, b)
			}
			from := timegrid.Hour(rnd.IntN(30))
			q := Hours{from, from + timegrid.Hour(rnd.IntN(10))}
			n, shards, hours := 0, map[uint32]bool{}, map[timegrid.Hour]bool{}
			for _, b := range all {
				if b.h.From > q.To || b.h.To < q.From {
					continue
				}
				n++
				if b.shard != NoShard {
					shards[b.shard] = true
				}
				for h := max(b.h.From, q.From); h <= min(b.h.To, q.To); h++ {
					hours[h] = true
				}
			}
			got := tally.In(q)
			covered := map[timegrid.Hour]bool{}
			for i, x := range got.Hours {
				if i > 0 && x.From <= got.Hours[i-1].To+1 {
					t.Fatalf("seed %d: intervals meet: %v", seed, got.Hours)
				}
				for h := x.From; h <= x.To; h++ {
					covered[h] = true
				}
			}
			if got.Batches != n || len(got.Shards) != len(shards) || fmt.Sprint(covered) != fmt.Sprint(hours) || tally.Total() != len(all) {
				t.Fatalf("seed %d: %+v in %v: got %+v, want %d batches, shards %v, hours %v", seed, all, q, got, n, shards, hours)
			}
		}
		for _, b := range all {
			tally.Add(b.shard, b.h, -1)
		}
		if tally.Total() != 0 || len(tally.shards) != 0 {
			t.Fatalf("seed %d: %+v is left", seed, tally)
		}
	}
}

// 100,000 batches of 24 hours cost what 1,000 of them do.
func TestTallyCostsHours(t *testing.T) {
	cost := func(batches int) (float64, Summary) {
		var tally Tally
		for i := range batches {
			h := timegrid.Hour(i % 24)
			tally.Add(uint32(i%4), Hours{h, h}, 1)
		}
		q := Hours{3, 17}
		return testing.AllocsPerRun(20, func() { tally.In(q) }), tally.In(q)
	}
	few, _ := cost(1000)
	many, s := cost(100_000)
	if few != many || s.Batches != 62_503 || s.String() != "62503 batches, hours 1970-01-01T03:00:00Z to 1970-01-01T18:00:00Z, shards 0, 1, 2 and 3" {
		t.Errorf("%v allocations for 100,000 batches, %v for 1,000; %s", many, few, s)
	}
}

func TestSummariesAreBounded(t *testing.T) {
	var hours []Hours
	for i := range 50 {
		hours = append(hours, Hours{timegrid.Hour(100 - 2*i), timegrid.Hour(100 - 2*i)})
	}
	if s := Of(hours...); len(s.Hours) != MaxHours || s.MoreHours != 30 || s.Hours[0].From != 2 {
		t.Errorf("%+v", s)
	}
	if s := Of(Hours{5, 6}, Hours{1, 4}, Hours{9, 9}); !slices.Equal(s.Hours, []Hours{{1, 6}, {9, 9}}) {
		t.Errorf("%+v", s)
	}
	var tally Tally
	for i := range uint32(30) {
		tally.Add(i, Hours{1, 1}, 1)
	}
	if all, s := tally.In(Hours{math.MinInt64, math.MaxInt64}), tally.In(Hours{0, 5}); all.String() != s.String() {
		t.Errorf("of all hours %s, of those that have some %s", all, s)
	}
	if s := tally.In(Hours{0, 5}); len(s.Shards) != MaxShards || s.MoreShards != 10 || s.Batches != 30 {
		t.Errorf("%+v", s)
	}
}
