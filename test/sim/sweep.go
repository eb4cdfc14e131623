package main

import (
	"context"
	"sync"
)

// tally of many schedules.
type tally struct {
	schedules, operations, answers, violations uint64
	first                                      uint64 // the least seed that violates
}

// sweep plays the seeds from first on, each worker every so many of them, until all
// are played or one violates; then the seeds below that one are still played, so that
// the answer is the least.
func sweep(ctx context.Context, first, n uint64, workers int) tally {
	var mu sync.Mutex
	var sum tally
	stopAt := first + n
	var wg sync.WaitGroup
	for k := range uint64(workers) {
		wg.Go(func() {
			var made []uint32
			var own tally
			for seed := first + k; ctx.Err() == nil; seed += uint64(workers) {
				mu.Lock()
				end := seed >= stopAt
				mu.Unlock()
				if end {
					break
				}
				ch := seeded(seed, made)
				w := run(ch, false)
				made = ch.made
				own.schedules++
				own.operations += uint64(w.operations)
				own.answers += uint64(w.answers)
				if w.violation != nil {
					own.violations++
					mu.Lock()
					if seed < stopAt {
						stopAt, sum.first = seed, seed
					}
					mu.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			sum.schedules += own.schedules
			sum.operations += own.operations
			sum.answers += own.answers
			sum.violations += own.violations
		})
	}
	wg.Wait()
	return sum
}
