package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// shrinkRuns bounds the replays of one shrinking.
const shrinkRuns = 30_000

// smallRuns bounds the search for a schedule with few actors that breaks the same invariant.
const smallRuns = 10_000

// maxBelongs bounds the choices that are cut together with one that is zeroed.
const maxBelongs = 12

// shrink cuts and zeroes recorded choices as long as still says that the list does
// the same. A zeroed choice is a fault, an actor or a switch that is not there.
func shrink(list []uint32, still func([]uint32) bool) []uint32 {
	s := &shrinker{list: list, still: still}
	for again := true; again && s.left(); {
		again = false
		for size := max(len(s.list)/2, 1); size > 0 && s.left(); size /= 2 {
			again = s.cutSpans(size) || again
		}
		for at := 0; at < len(s.list) && s.left(); at++ {
			again = s.cutActor(at) || again
			again = s.halve(at) || again
		}
	}
	for len(s.list) > 0 && s.list[len(s.list)-1] == 0 {
		s.list = s.list[:len(s.list)-1]
	}
	return s.list
}

// shrinker holds the smallest list so far that still does the same.
type shrinker struct {
	list  []uint32
	still func([]uint32) bool
	runs  int
}

func (s *shrinker) left() bool { return s.runs < shrinkRuns }

// keep makes try the list when it still does the same.
func (s *shrinker) keep(try []uint32) bool {
	s.runs++
	if !s.still(try) {
		return false
	}
	s.list = try
	return true
}

// cutSpans cuts spans of size choices, and zeroes those that can't be cut.
func (s *shrinker) cutSpans(size int) (smaller bool) {
	for at := 0; at < len(s.list) && s.left(); {
		end := min(at+size, len(s.list))
		if s.keep(slices.Concat(s.list[:at], s.list[end:])) {
			smaller = true
			continue
		}
		if slices.ContainsFunc(s.list[at:end], func(v uint32) bool { return v != 0 }) {
			zero := slices.Clone(s.list)
			clear(zero[at:end])
			smaller = s.keep(zero) || smaller
		}
		at = end
	}
	return smaller
}

// cutActor zeroes a choice together with those that follow it: an actor or a fault is a
// choice and those that belong to it.
func (s *shrinker) cutActor(at int) (smaller bool) {
	for cut := range min(maxBelongs, len(s.list)-at) {
		if s.list[at] == 0 {
			break
		}
		try := slices.Concat(s.list[:at+1], s.list[at+1+cut:])
		try[at] = 0
		smaller = s.keep(try) || smaller
	}
	return smaller
}

// halve makes a choice as small as it can be.
func (s *shrinker) halve(at int) (smaller bool) {
	for s.list[at] > 1 && s.left() {
		try := slices.Clone(s.list)
		try[at] /= 2
		if !s.keep(try) {
			break
		}
		smaller = true
	}
	return smaller
}

// explain prints a failing schedule: its seed, and a small trace, shrunk from it, or
// from a schedule of few actors that breaks the same invariant, where there is one.
func explain(out io.Writer, seed uint64) {
	ch := seeded(seed, nil)
	full := run(ch, false)
	if full.violation == nil {
		fmt.Fprintf(out, "seed %d breaks nothing\n", seed)
		return
	}
	best, from := ch, seed
	for other := seed; other < seed+smallRuns; other++ {
		c := seeded(other, nil)
		c.small = true
		w := run(c, false)
		if w.violation != nil && w.violation.Invariant == full.violation.Invariant && (!best.small || len(c.made) < len(best.made)) {
			best, from = c, other
		}
	}
	again := func(list []uint32, tracing bool) *world {
		c := recorded(list)
		c.small = best.small
		return run(c, tracing)
	}
	list := shrink(slices.Clone(best.made), func(try []uint32) bool {
		w := again(try, false)
		return w.violation != nil && w.violation.Invariant == full.violation.Invariant
	})
	small := again(list, true)
	if best.small {
		fmt.Fprintf(out, "below: few actors, seed %d, the same invariant\n", from)
	}
	fmt.Fprintf(out, "seed %d: %s\nreplay: make sim SCHEDULES=1 SEED=%d\nshrunk from %d choices to %d, %d requests:\n%s\n",
		seed, full.violation, seed, len(best.made), len(list), small.operations, strings.Join(small.trace, "\n"))
}
