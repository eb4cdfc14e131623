package lru_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/lru"
)

// model is the cache as a slice, the entry used last first.
type model struct {
	limit   int64
	entries []modelEntry
}

type modelEntry struct {
	key, value int
	weight     int64
}

func (m *model) find(k int) int {
	return slices.IndexFunc(m.entries, func(e modelEntry) bool { return e.key == k })
}

func (m *model) get(k int) (int, bool) {
	i := m.find(k)
	if i < 0 {
		return 0, false
	}
	e := m.entries[i]
	m.entries = slices.Insert(slices.Delete(m.entries, i, i+1), 0, e)
	return e.value, true
}

func (m *model) remove(k int) {
	m.entries = slices.DeleteFunc(m.entries, func(e modelEntry) bool { return e.key == k })
}

func (m *model) put(k, v int, weight int64) {
	m.remove(k)
	if weight > m.limit {
		return
	}
	m.entries = slices.Insert(m.entries, 0, modelEntry{k, v, weight})
	for m.weight() > m.limit {
		m.entries = m.entries[:len(m.entries)-1]
	}
}

func (m *model) weight() (sum int64) {
	for _, e := range m.entries {
		sum += e.weight
	}
	return sum
}

func (m *model) values() []int {
	values := []int{}
	for _, e := range m.entries {
		values = append(values, e.value)
	}
	return values
}

// TestCacheIsItsModel compares the cache with a slice over random calls: the values, the
// order in which they go, and the bound on their weights.
func TestCacheIsItsModel(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		limit := int64(r.IntN(30))
		c, m := lru.New[int, int](limit), &model{limit: limit}
		for step := range 200 {
			k, weight := r.IntN(12), int64(1+r.IntN(8))
			if r.IntN(3) == 0 {
				weight = 1
			}
			switch r.IntN(5) {
			case 0:
				c.Remove(k)
				m.remove(k)
			case 1:
				c.Put(k, step, weight)
				m.put(k, step, weight)
			case 2:
				made := false
				got := c.GetOrPut(k, weight, func() int { made = true; return step })
				want, there := m.get(k)
				if !there {
					want = step
					m.put(k, step, weight)
				}
				if got != want || made == there {
					t.Fatalf("seed %d step %d: got %d (made %v), want %d (there %v)", seed, step, got, made, want, there)
				}
			default:
				got, ok := c.Get(k)
				if want, there := m.get(k); got != want || ok != there {
					t.Fatalf("seed %d step %d: got %d %v, want %d %v", seed, step, got, ok, want, there)
				}
			}
			if got, want := c.Values(), m.values(); !slices.Equal(got, want) {
				t.Fatalf("seed %d step %d: holds %v, want %v", seed, step, got, want)
			}
			if c.Weight() != m.weight() || c.Weight() > c.Limit() || c.Len() != len(m.entries) {
				t.Fatalf("seed %d step %d: weight %d of %d entries, want %d of %d, limit %d",
					seed, step, c.Weight(), c.Len(), m.weight(), len(m.entries), limit)
			}
		}
	}
}

// TestConcurrentUse is for the race detector, and for the bound.
func TestConcurrentUse(t *testing.T) {
	c := lru.New[string, int](50)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				k := fmt.Sprint(i * (g + 1) % 97)
				switch i % 4 {
				case 0:
					c.Put(k, i, int64(i%7))
				case 1:
					c.GetOrPut(k, 1, func() int { return i })
				case 2:
					c.Get(k)
				default:
					c.Remove(k)
				}
				if w := c.Weight(); w > 50 {
					t.Errorf("weight %d", w)
				}
			}
		})
	}
	wg.Wait()
}

// TestUseDoesNotAllocate: a hit costs no memory.
func TestUseDoesNotAllocate(t *testing.T) {
	c := lru.New[int, int](10)
	for i := range 10 {
		c.Put(i, i, 1)
	}
	i := 0
	if n := testing.AllocsPerRun(100, func() { c.Get(i % 10); i++ }); n != 0 {
		t.Errorf("%v allocations for a hit", n)
	}
}
