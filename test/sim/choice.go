package main

import "math/rand/v2"

// choices is the only source of decisions: a seeded generator, or a recorded list.
// Zero is always the benign choice (applied and answered, the first in line), so
// that a failing list can be shrunk by zeroing and cutting it.
type choices struct {
	rng    *rand.PCG
	replay []uint32
	made   []uint32
	small  bool // few actors, for an example that a person can read
}

func seeded(seed uint64, made []uint32) *choices {
	return &choices{rng: rand.NewPCG(seed, 0x11f3), made: made[:0]}
}

func recorded(list []uint32) *choices { return &choices{replay: list} }

// n draws from 0 to n-1.
func (c *choices) n(n int) int {
	var v uint32
	switch {
	case n < 2:
		return 0
	case c.rng != nil:
		v = uint32((c.rng.Uint64() >> 32) * uint64(n) >> 32)
	case len(c.made) < len(c.replay):
		v = c.replay[len(c.made)] % uint32(n)
	}
	c.made = append(c.made, v)
	return int(v)
}

// oneIn is true once in n draws.
func (c *choices) oneIn(n int) bool { return c.n(n) == n-1 }
