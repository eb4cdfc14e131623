// Command sim is the deterministic simulation of acceptance and garbage collection:
// agents, collectors and garbage collections as coroutines over a simulated store
// and clock, with requests lost, applied late or never, processes stopped and killed.
//
//	go run ./test/sim -schedules 100000 -seed 1
//
// One seed is one schedule, byte for byte. docs/protocol/gc.md says what is checked.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"time"
)

func main() {
	schedules := flag.Uint64("schedules", 5000, "how many schedules to play")
	seed := flag.Uint64("seed", 1, "the seed of the first; the others follow")
	workers := flag.Int("workers", runtime.NumCPU(), "how many at a time")
	terse := flag.Bool("terse", false, "on a violation print seed and invariant only")
	flag.Parse()
	debug.SetGCPercent(800) // schedules are short-lived garbage

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := probeStores(ctx); err != nil {
		fmt.Printf("VIOLATION seed=0 schedule=0 probe: %v\n", err)
		os.Exit(1)
	}
	start := time.Now()
	s := sweep(ctx, *seed, *schedules, *workers)
	took := time.Since(start)
	rate := float64(s.schedules) / took.Seconds()
	fmt.Printf("schedules=%d operations=%d answers=%d violations=%d seconds=%.1f schedules_per_second=%.0f\n",
		s.schedules, s.operations, s.answers, s.violations, took.Seconds(), rate)
	if s.violations == 0 {
		if ctx.Err() != nil {
			os.Exit(2) // interrupted: what was asked for was not done
		}
		return
	}
	fmt.Printf("VIOLATION seed=%d schedule=%d %s\n", s.first, s.first-*seed+1, run(seeded(s.first, nil), false).violation)
	if !*terse {
		explain(os.Stdout, s.first)
	}
	os.Exit(1)
}
