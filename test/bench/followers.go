package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"
)

// growth is the sizes at which followers are measured: N, 4N, 16N.
var growth = []float64{1, 4, 16}

// benchFollowers restarts the followers over journals of several lengths, and of several numbers of boots, and fits
// how their requests and their memory grow.
func benchFollowers(ctx context.Context, e *env) ([]Result, error) {
	n, boots := 20_000, 1000
	if e.quick {
		n, boots = 4000, 200
	}
	var all []Result
	for _, c := range []struct {
		against string
		of      func(k float64) planted
	}{
		{"batches", func(k float64) planted { return planted{boots: boots, batches: int(k) * n} }},
		{"boots", func(k float64) planted { return planted{boots: int(k) * boots, batches: 16 * n} }},
	} {
		if !e.cases.MatchString(c.against) {
			continue
		}
		var measured []map[string]grown
		var x []float64
		for _, k := range growth {
			p := c.of(k)
			p.until, p.span = time.Now().Add(-beforeWindow), 30*24*time.Hour
			got, err := followersOver(ctx, e, p)
			if err != nil {
				return all, fmt.Errorf("%+v: %w", p, err)
			}
			measured = append(measured, got)
			x = append(x, float64(p.batches))
			if c.against == "boots" {
				x[len(x)-1] = float64(p.boots)
			}
		}
		for _, command := range followerCommands {
			all = append(all, growthOf(command, c.against, x, measured)...)
		}
	}
	return all, nil
}

var followerCommands = []string{"reconciler", "query", "rollup"}

// grown is what a follower needed: requests until it was ready, and bytes of its heap afterwards.
type grown struct {
	requests, heap float64
	what           string
}

func growthOf(command, against string, x []float64, measured []map[string]grown) []Result {
	var requests, heap []float64
	note := ""
	for i, m := range measured {
		g := m[command]
		requests, heap = append(requests, g.requests), append(heap, g.heap)
		note += fmt.Sprintf("%.0f %s: %.0f requests, %.2f MiB; ", x[i], against, g.requests, g.heap/mib)
	}
	last := len(x) - 1
	slope, memory := slopeOf(x, requests), slopeOf(x, heap)
	name := "followers/" + command + "/" + against
	each := func(y []float64) float64 { return (y[last] - y[0]) / (x[last] - x[0]) }
	if against == "boots" {
		return []Result{
			{Name: name + "/requests", Value: each(requests) * 1000, Unit: "requests/1,000 boots", Note: note + "the largest: " + measured[last][command].what},
			{Name: name + "/memory", Value: each(heap), Unit: "B/boot", Note: "heap after garbage collection"},
		}
	}
	return []Result{
		{Name: name + "/requests", Value: slope, Unit: "slope", Goal: "<= 0.1", Pass: slope <= 0.1, Note: "log-log fit of the requests of a restart; " + note + "the largest: " + measured[last][command].what},
		{Name: name + "/memory", Value: memory, Unit: "slope", Goal: "<= 0.1", Pass: memory <= 0.1, Note: "log-log fit of the heap after garbage collection"},
	}
}

// slopeOf fits log y over log x.
func slopeOf(x, y []float64) float64 {
	var sx, sy, sxx, sxy float64
	n := float64(len(x))
	for i := range x {
		lx, ly := math.Log(x[i]), math.Log(max(y[i], 1))
		sx, sy, sxx, sxy = sx+lx, sy+ly, sxx+lx*lx, sxy+lx*ly
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// followersOver measures each follower over planted batches, after a restart.
func followersOver(ctx context.Context, e *env, p planted) (map[string]grown, error) {
	r, err := plantedRig(ctx, e, p)
	if err != nil {
		return nil, err
	}
	defer r.close()
	coordinator, addr, err := r.startCoordinator(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer coordinator.Kill()
	out := map[string]grown{}
	// The first reconciler leaves a checkpoint.
	for i, command := range append([]string{"reconciler"}, followerCommands...) {
		f, err := r.follower(command, "", addr)
		if err != nil {
			return nil, err
		}
		proc, _, err := f.start(ctx, r)
		if err != nil {
			return nil, err
		}
		g, err := f.grown(ctx)
		if i == 0 {
			err = proc.Stop(readyTimeout)
		} else {
			proc.Kill()
			out[command] = g
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *follower) grown(ctx context.Context) (grown, error) {
	a, err := f.asks(ctx)
	if err != nil {
		return grown{}, err
	}
	// A heap profile with gc=1 collects garbage first; twice, as finalizers keep some until the second time.
	for range 2 {
		body, err := fetch(ctx, "http://"+f.http+"/debug/pprof/heap?gc=1")
		if err != nil {
			return grown{}, err
		}
		_, err = io.Copy(io.Discard, body)
		body.Close()
		if err != nil {
			return grown{}, err
		}
	}
	s, err := scrape(ctx, f.http)
	return grown{a.paid(), s.sum("go_memstats_heap_alloc_bytes"), a.per(1)}, err
}
