package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/proc"
)

// benchStart kills the collector and starts it again, several times, over a store that
// is up: from the start of the process to the first acknowledgement that a waiting
// agent gets, the probe of the store included.
func benchStart(ctx context.Context, e *env) ([]Result, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.startBoth(ctx); err != nil {
		return nil, err
	}
	var took []time.Duration
	for range e.pairs {
		d, err := firstAck(ctx, r)
		if err != nil {
			return nil, err
		}
		took = append(took, d)
	}
	slices.Sort(took)
	worst := took[len(took)-1]
	return []Result{{Name: "start/first-ack", Value: ms(quantile(took, 0.5)), Unit: "ms", Goal: "< 1000", Pass: worst < time.Second, Durability: "object store, fsync",
		Note: fmt.Sprintf("after kill -9; median of %d, worst %.0f ms, which is what the goal is held against", len(took), ms(worst))}}, nil
}

func firstAck(ctx context.Context, r *rig) (time.Duration, error) {
	r.collector.Kill()
	fs, err := feeds("agent", 1, 1, 500)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if r.collector, err = proc.Start(r.collector.Spec); err != nil {
		return 0, err
	}
	for {
		err := sendOnce(ctx, r.grpcAddr, fs)
		if err == nil {
			return time.Since(start), nil
		}
		if time.Since(start) > readyTimeout || ctx.Err() != nil {
			return 0, fmt.Errorf("no acknowledgement in %v: %w", readyTimeout, err)
		}
		time.Sleep(tryEvery)
	}
}

func sendOnce(ctx context.Context, addr string, fs []feed) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	fl, err := newFleet(addr, len(fs))
	if err != nil {
		return err
	}
	defer fl.close()
	_, err = fl.send(ctx, fs, 1)
	return err
}
