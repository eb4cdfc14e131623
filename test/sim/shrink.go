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
	runs := 0
	fails := func(try []uint32) bool {
		runs++
		return still(try)
	}
	for again := true; again && runs < shrinkRuns; {
		again = false
		for size := max(len(list)/2, 1); size > 0 && runs < shrinkRuns; size /= 2 {
			for at := 0; at < len(list) && runs < shrinkRuns; {
				end := min(at+size, len(list))
				if cut := slices.Concat(list[:at], list[end:]); fails(cut) {
					list, again = cut, true
					continue
				}
				if slices.ContainsFunc(list[at:end], func(v uint32) bool { return v != 0 }) {
					zero := slices.Clone(list)
					clear(zero[at:end])
					if fails(zero) {
						list, again = zero, true
					}
				}
				at = end
			}
		}
		// An actor or a fault is a choice and those that belong to it.
		for at := 0; at < len(list) && runs < shrinkRuns; at++ {
			for cut := range min(maxBelongs, len(list)-at) {
				if list[at] == 0 {
					break
				}
				try := slices.Concat(list[:at+1], list[at+1+cut:])
				try[at] = 0
				if fails(try) {
					list, again = try, true
				}
			}
			for list[at] > 1 && runs < shrinkRuns {
				try := slices.Clone(list)
				try[at] /= 2
				if !fails(try) {
					break
				}
				list, again = try, true
			}
		}
	}
	for len(list) > 0 && list[len(list)-1] == 0 {
		list = list[:len(list)-1]
	}
	return list
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
