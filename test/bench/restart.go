package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
)

const (
	restartGoal = 5 * time.Second
	// beforeWindow is the age of the newest planted batch: no query node keeps it in memory.
	beforeWindow = 6 * time.Hour
)

// benchRestart restarts a reconciler and a query node over a journal with a long history.
func benchRestart(ctx context.Context, e *env) ([]Result, error) {
	sizes := []planted{{boots: 100_000, batches: 100_000}, {boots: 100_000, batches: 1_000_000}}
	if e.quick {
		sizes = []planted{{boots: 1000, batches: 20_000}}
	}
	var all []Result
	for _, p := range sizes {
		name := fmt.Sprintf("restart/%d-batches/%d-boots", p.batches, p.boots)
		if !e.cases.MatchString(name) {
			continue
		}
		p.until, p.span = time.Now().Add(-beforeWindow), 30*24*time.Hour
		rs, err := benchRestartOf(ctx, e, name, p)
		all = append(all, rs...)
		if err != nil {
			return all, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}

func benchRestartOf(ctx context.Context, e *env, name string, p planted) ([]Result, error) {
	r, err := plantedRig(ctx, e, p)
	if err != nil {
		return nil, err
	}
	defer r.close()
	slow, stop, err := startDelaying(r.storeAddr, func() time.Duration { return slowRequest })
	if err != nil {
		return nil, err
	}
	defer stop()
	var rs []Result
	for _, c := range []struct {
		command, store, endpoint, note string
		goal                           bool
	}{
		// The first one has no checkpoint of the ledgers, and leaves one when it is stopped.
		{"reconciler", "first-start", "", "no checkpoint yet: the whole journal is read", false},
		{"reconciler", "restart", "", "", true},
		{"reconciler", "restart-30ms", slow, "each request takes 30 ms longer", true},
		{"query", "restart", "", "", true},
		{"query", "restart-30ms", slow, "each request takes 30 ms longer", true},
	} {
		f, err := r.follower(c.command, c.endpoint, "")
		if err != nil {
			return rs, err
		}
		proc, took, err := f.start(ctx, r)
		if err != nil {
			return rs, err
		}
		got, err := f.asks(ctx)
		if err != nil {
			proc.Kill()
			return rs, err
		}
		rss, err := residentPeak(proc.Pid())
		if err != nil {
			proc.Kill()
			return rs, err
		}
		if err := proc.Stop(readyTimeout); err != nil {
			return rs, err
		}
		note := fmt.Sprintf("until ready; %.0f requests: %s; peak resident %.0f MiB", got.paid(), got.per(1), rss/mib)
		if c.note != "" {
			note = c.note + "; " + note
		}
		res := Result{Name: name + "/" + c.command + "/" + c.store, Value: took.Seconds(), Unit: "s", Durability: "object store, fsync", Note: note}
		if c.goal {
			res.Goal, res.Pass = fmt.Sprintf("<= %g", restartGoal.Seconds()), took <= restartGoal
		}
		rs = append(rs, res)
	}
	return rs, nil
}

// plantedRig is a store with planted batches.
func plantedRig(ctx context.Context, e *env, p planted) (*rig, error) {
	r, err := founded(ctx, e)
	if err != nil {
		return nil, err
	}
	var store *s3.Store
	if store, err = r.client(ctx, "", oursPrefix); err == nil {
		err = errors.Join(p.plant(ctx, store), p.rolledUp(ctx, store))
		store.Close()
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}
