package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

const (
	// An idle cluster is counted for idleFor, once its services had idleAfter to find that nothing comes any more.
	idleAfter, idleFor = 6 * time.Minute, 3 * time.Minute
	goalIdle           = 0.3 // dollars a day
)

// idleBoots are the numbers of boots that have sent something before everything stands still.
var idleBoots = []int{100, 10_000}

// benchIdle starts all services with default settings, has each boot send a batch, and counts what the services ask
// the store when nothing comes any more.
func benchIdle(ctx context.Context, e *env) ([]Result, error) {
	price, err := readPrices()
	if err != nil {
		return nil, err
	}
	var all []Result
	var days []asked
	boots := idleBoots
	if e.quick {
		boots = []int{100, 1000}
	}
	for _, n := range boots {
		name := fmt.Sprintf("idle/%d-boots", n)
		if !e.cases.MatchString(name) {
			continue
		}
		day, err := idleDay(ctx, e, n)
		if err != nil {
			return all, fmt.Errorf("%s: %w", name, err)
		}
		days = append(days, day)
		cost := day.dollars(price)
		all = append(all, Result{Name: name, Value: cost, Unit: "$/day", Goal: goalOf(!e.quick, goalIdle), Pass: cost <= goalIdle || e.quick,
			Note: fmt.Sprintf("one of each service, %d shards, counted for %v; requests a day: %s", requestShards, idleFor, day.per(1))})
	}
	if len(days) == len(boots) {
		few, many := days[0].paid(), days[1].paid()
		each := max(0, many-few) / float64(boots[1]-boots[0])
		all = append(all, Result{Name: "idle/each-boot", Value: each, Unit: "requests/day", Goal: "< 1", Pass: each < 1,
			Note: fmt.Sprintf("%d boots: %.0f requests a day, %d boots: %.0f", boots[0], few, boots[1], many)})
	}
	return all, nil
}

// idleDay is what the services ask in a day without work.
func idleDay(ctx context.Context, e *env, boots int) (asked, error) {
	dir, err := os.MkdirTemp(e.dir, "idle-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	hour := time.Now().Truncate(time.Hour).Add(-time.Hour)
	rc := requestCase{collectors: 1, boots: boots, samples: 500}
	c, err := cluster.New(cluster.Options{Bin: e.bin, Dir: dir, Collectors: 1, Rollups: 1, Shards: requestShards,
		Adjust: defaultSettings(time.Since(hour.Add(time.Hour)) + rc.rollupAfter(e.quick))})
	if err != nil {
		return nil, err
	}
	defer c.StopAll()
	if err := startAll(ctx, c); err != nil {
		return nil, err
	}
	fs, err := feedsOfHour(rc, hour)
	if err != nil {
		return nil, err
	}
	l, err := newLoad(c, requestRate)
	if err != nil {
		return nil, err
	}
	_, err = l.send(ctx, fs)
	l.close()
	if err != nil {
		return nil, err
	}
	if err := answered(ctx, c, fs); err != nil {
		return nil, err
	}
	if _, err := rolledUp(ctx, c, hour, count(fs)); err != nil {
		return nil, err
	}
	wait, span := idleAfter, idleFor
	if e.quick {
		wait, span = 10*time.Second, 20*time.Second
	}
	var counts []asked
	for _, d := range []time.Duration{wait, span} {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(d):
		}
		a, err := countAsked(ctx, c)
		if err != nil {
			return nil, err
		}
		counts = append(counts, a)
	}
	day := counts[1].minus(counts[0])
	for k := range day {
		day[k] *= float64(24*time.Hour) / float64(span)
	}
	return day, nil
}
