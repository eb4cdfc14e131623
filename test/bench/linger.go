package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/commit"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

// lingers are values of ingest.journal.linger.
var lingers = []time.Duration{0, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond}

// benchLinger has one journal take entries that come at random times, over a store as slow as S3: how many segments they
// need, and how long they wait.
func benchLinger(ctx context.Context, e *env) ([]Result, error) {
	span := 20 * time.Second
	if e.quick {
		span = 2 * time.Second
	}
	var all []Result
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	// They wait most of the time, so they can do so at once.
	for _, perSecond := range []float64{2, 50, 500} {
		for _, linger := range lingers {
			wg.Go(func() {
				segments, waits, err := lingering(ctx, perSecond, linger, span)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failed = errors.Join(failed, err)
					return
				}
				p50, p90 := quantile(waits, 0.5), quantile(waits, 0.9)
				all = append(all, Result{Name: fmt.Sprintf("linger/%03.0f-a-second/%v", perSecond, linger), Value: segments / float64(len(waits)) * 1000, Unit: "segments per 1,000 batches",
					Durability: "memory", Note: fmt.Sprintf("%d batches at random times, creates take %v p50, %v p90; a batch waits %v p50, %v p90 for its segment", len(waits), delayP50, delayP90, p50.Round(time.Millisecond), p90.Round(time.Millisecond))})
			})
		}
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b Result) int { return strings.Compare(a.Name, b.Name) })
	return all, failed
}

// slowCreates is a store whose creates take as long as those of S3.
type slowCreates struct {
	*mem.Store
	delays delays
	made   atomic.Int64
}

func (s *slowCreates) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	s.made.Add(1)
	time.Sleep(s.delays.next())
	return s.Store.Create(ctx, key, b, o)
}

func lingering(ctx context.Context, perSecond float64, linger, span time.Duration) (segments float64, waits []time.Duration, err error) {
	s := &slowCreates{Store: mem.New(time.Now), delays: delays{rng: rand.New(rand.NewPCG(latencySeed, 0))}}
	c, err := commit.New(commit.Config{Store: s, Opening: journal.Opening{Writer: "linger", Role: journal.RoleCollector, Authority: authority}, Linger: linger})
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	arrivals := rand.New(rand.NewPCG(uint64(perSecond), uint64(linger)))
	p := planted{boots: 100, batches: 1 << 30, until: time.Now(), span: time.Hour}
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := time.Now()
	for i := 0; ; i++ {
		next = next.Add(time.Duration(arrivals.ExpFloat64() / perSecond * float64(time.Second)))
		select {
		case <-ctx.Done():
			err := <-done
			wg.Wait()
			slices.Sort(waits)
			return float64(s.made.Load()), waits, err
		case <-time.After(time.Until(next)):
		}
		began := time.Now()
		t, err := c.Add(p.entry(i))
		if err != nil {
			continue // it has just ended
		}
		wg.Go(func() {
			if _, err := t.Wait(context.WithoutCancel(ctx)); err == nil {
				mu.Lock()
				waits = append(waits, time.Since(began))
				mu.Unlock()
			}
		})
	}
}
