package mem

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

func TestKeysStaySorted(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, seed))
	var k keys
	model := map[string]bool{}
	for range 20000 {
		key := strconv.Itoa(rng.IntN(4000))
		if rng.IntN(3) == 0 {
			k.remove(key)
			delete(model, key)
		} else {
			k.insert(key)
			model[key] = true
		}
	}
	var want, got []string
	for key := range model {
		want = append(want, key)
	}
	slices.Sort(want)
	k.from("", true, func(s string) bool { got = append(got, s); return true })
	if !slices.Equal(got, want) {
		t.Fatalf("%d keys, want %d, or not in order", len(got), len(want))
	}
	for _, including := range []bool{true, false} {
		for i, key := range want {
			first := ""
			k.from(key, including, func(s string) bool { first = s; return false })
			next := append(want, "")[i+1]
			if including {
				next = key
			}
			if first != next {
				t.Fatalf("from %q (%v): %q, want %q", key, including, first, next)
			}
		}
	}
}
