package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
)

func names(body string, places []Candidate, n int) (out []string) {
	for _, i := range Order(body, places)[:n] {
		out = append(out, places[i].Name)
	}
	return out
}

// TestShares: places come first for a share of the bodies that is their share of the weights; those of unknown size count as the
// largest.
func TestShares(t *testing.T) {
	places := []Candidate{{"a", 1 << 40}, {"b", 2 << 40}, {"c", 5 << 40}, {"bucket", 0}}
	const n = 40_000
	first := map[string]float64{}
	for i := range n {
		first[names(fmt.Sprint("body", i), places, 1)[0]]++
	}
	for name, share := range map[string]float64{"a": 1. / 13, "b": 2. / 13, "c": 5. / 13, "bucket": 5. / 13} {
		// Five standard deviations; the hashes are the same in each run.
		if got, off := first[name]/n, 5*math.Sqrt(share*(1-share)/n); math.Abs(got-share) > off {
			t.Errorf("%s comes first for %.4f of the bodies, want %.4f", name, got, share)
		}
	}
}

// TestChangesMoveLittle: another weight of a place, and a place that comes, move only files of that place.
func TestChangesMoveLittle(t *testing.T) {
	before := []Candidate{{"a", 4}, {"b", 4}, {"c", 8}, {"d", 8}}
	for name, after := range map[string][]Candidate{
		"c": {{"a", 4}, {"b", 4}, {"c", 16}, {"d", 8}},
		"d": {{"a", 4}, {"b", 4}, {"c", 8}, {"d", 2}},
		"e": {{"a", 4}, {"b", 4}, {"c", 8}, {"d", 8}, {"e", 8}},
		"b": {{"a", 4}, {"c", 8}, {"d", 8}},
	} {
		moved := 0
		for i := range 5000 {
			body := fmt.Sprint("body", i)
			was, is := names(body, before, 2), names(body, after, 2)
			for _, n := range is {
				if slices.Contains(was, n) {
					continue
				}
				moved++
				if n != name && !slices.Contains(was, name) {
					t.Fatalf("%s: %s gets a file of %v, which is %v now", name, n, was, is)
				}
			}
		}
		if moved == 0 || moved > 3000 {
			t.Errorf("%s: %d of 10000 files move", name, moved)
		}
	}
}

// TestEqualWeights: with equal weights the order is that of the hashes, as files were placed before weights were known.
func TestEqualWeights(t *testing.T) {
	for i := range 2000 {
		body := fmt.Sprint("body", i)
		plain := Order(body, []Candidate{{"a", 0}, {"b", 0}, {"c", 0}, {"d", 0}})
		same := Order(body, []Candidate{{"a", 7 << 40}, {"b", 7 << 40}, {"c", 7 << 40}, {"d", 0}})
		byHash := []int{0, 1, 2, 3}
		slices.SortFunc(byHash, func(a, b int) int {
			return cmp.Compare(xxh3.HashString(body+"abcd"[a:a+1]), xxh3.HashString(body+"abcd"[b:b+1]))
		})
		if !slices.Equal(plain, same) || !slices.Equal(plain, byHash) {
			t.Fatalf("%s: %v, %v, and by hash %v: a store would move files that it has", body, plain, same, byHash)
		}
	}
}

// TestAdoptIsSluggish: a room that changes little changes no weight, whichever way it goes, and a weight is never far from the room.
func TestAdoptIsSluggish(t *testing.T) {
	if Adopt(0, 1000<<30) != Adopt(0, 1020<<30) {
		t.Error("drives of nearly the same size have other weights")
	}
	if Adopt(5, 0) != 5 || Adopt(0, 0) != 0 || Adopt(0, 1) != 1 || Adopt(0, math.MaxInt64) <= 0 || Adopt(math.MaxInt64/2, math.MaxInt64) <= 0 {
		t.Error("edges")
	}
	w, changes := int64(0), 0
	for i := range 1000 {
		room := int64(1<<40 + (i%2)<<37) // an eighth up and down
		if next := Adopt(w, room); next != w {
			w = next
			changes++
		}
	}
	if changes != 1 {
		t.Errorf("the weight changed %d times", changes)
	}
	for room := int64(1); room < 1<<56; room += room/8 + 1 {
		w = Adopt(w, room)
		if w > room+room/2 || w < room-room/2 {
			t.Errorf("weight %d of room for %d", w, room)
		}
	}
}

// TestFullIsSluggish: a place that was full needs more room than one that was not, and an unknown room is never full.
func TestFullIsSluggish(t *testing.T) {
	for _, c := range []struct {
		before           bool
		free, room, keep int64
		want             bool
	}{
		{false, -1, 0, 100, false}, {true, -1, 0, 100, false},
		{false, 100, 100, 100, false}, {false, 99, 100, 100, true}, {true, 199, 100, 100, true}, {true, 200, 100, 100, false},
		{false, 99, 12800, 0, true}, {false, 100, 12800, 0, false},
		{false, 8 << 30, 1 << 50, 0, false}, {false, 8<<30 - 1, 1 << 50, 0, true},
		{false, 0, 0, 0, false},
	} {
		if got := Full(c.before, c.free, c.room, c.keep); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}
