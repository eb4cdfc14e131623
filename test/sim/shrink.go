package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// shrinkRuns bounds the replays of one shrinking.
const shrinkRuns = 20_000

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
	}
	for len(list) > 0 && list[len(list)-1] == 0 {
		list = list[:len(list)-1]
	}
	return list
}

// explain prints a failing schedule: its seed, and the trace of its smallest form.
func explain(out io.Writer, seed uint64) {
	ch := seeded(seed, nil)
	full := run(ch, false)
	if full.violation == nil {
		fmt.Fprintf(out, "seed %d breaks nothing\n", seed)
		return
	}
	list := shrink(slices.Clone(ch.made), func(try []uint32) bool {
		w := run(recorded(try), false)
		return w.violation != nil && w.violation.Invariant == full.violation.Invariant
	})
	small := run(recorded(list), true)
	fmt.Fprintf(out, "seed %d: %s\nreplay: make sim SCHEDULES=1 SEED=%d\nshrunk from %d choices to %d, %d requests:\n%s\n",
		seed, small.violation, seed, len(ch.made), len(list), small.operations, strings.Join(small.trace, "\n"))
}
