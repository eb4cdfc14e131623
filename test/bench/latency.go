package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Latency that is put on top of every request to the store: log-normal with this
// median and 90th percentile, and a tail.
const (
	delayP50    = 27 * time.Millisecond
	delayP90    = 41 * time.Millisecond
	tailShare   = 0.01
	tailFactor  = 8
	latencySeed = 2701
)

// delays gives a sequence of delays that depends on its seed alone.
type delays struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (d *delays) next() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	const z90 = 1.2815515655446004
	sigma := math.Log(float64(delayP90)/float64(delayP50)) / z90
	out := float64(delayP50) * math.Exp(sigma*d.rng.NormFloat64())
	if d.rng.Float64() < tailShare {
		out *= tailFactor
	}
	return time.Duration(out)
}

// startDelaying serves the store behind delays, of which next is asked for each request.
func startDelaying(storeAddr string, next func() time.Duration) (endpoint string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	target := &url.URL{Scheme: "http", Host: storeAddr}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		},
		Transport: &http.Transport{MaxIdleConnsPerHost: 256},
		ErrorLog:  log.New(io.Discard, "", 0), // of requests that their senders gave up
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(next()):
		case <-r.Context().Done():
			return
		}
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = srv.Serve(l) }() // ends with Close
	return "http://" + l.Addr().String(), func() { srv.Close() }, nil
}

// latencyAgents send at the same time, one batch each.
const latencyAgents = 8

func benchLatency(ctx context.Context, e *env) ([]Result, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.startStore(ctx); err != nil {
		return nil, err
	}
	d := &delays{rng: rand.New(rand.NewPCG(latencySeed, 0))}
	endpoint, stop, err := startDelaying(r.storeAddr, d.next)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := r.startCollector(ctx, endpoint); err != nil {
		return nil, err
	}
	fl, err := newFleet(r.grpcAddr, latencyAgents)
	if err != nil {
		return nil, err
	}
	defer fl.close()
	store, err := r.client(ctx, endpoint, floorPrefix)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	each := 40
	if e.quick {
		each = 6
	}
	var all [2][]time.Duration
	// The rate is 1/p50, so that more is better.
	half := func(k int, times []time.Duration) float64 {
		all[k] = append(all[k], times...)
		slices.Sort(times)
		return 1 / quantile(times, 0.5).Seconds()
	}
	ours := func(ctx context.Context) (float64, error) {
		fs, err := feeds("agent", latencyAgents, each, 500)
		if err != nil {
			return 0, err
		}
		got, err := fl.send(ctx, fs, 1)
		if err != nil {
			return 0, err
		}
		return half(0, got.times), nil
	}
	floor := func(ctx context.Context) (float64, error) {
		fs, err := feeds("plain", latencyAgents, each, 500)
		if err != nil {
			return 0, err
		}
		times, _, err := newBare(store, fs).run(ctx, latencyAgents)
		if err != nil {
			return 0, err
		}
		return half(1, times), nil
	}
	a, b, ratio, note, err := paired(ctx, e.pairs, ours, floor)
	if err != nil {
		return nil, err
	}
	ratio = 1 / ratio
	for k := range all {
		slices.Sort(all[k])
	}
	rs := []Result{{Name: "latency/ack-p50", Value: 1e3 / a, Unit: "ms", Baseline: "bare requests one after the other", BaselineValue: 1e3 / b, Ratio: ratio,
		Goal: "<= 1.53 (bare + 1.6 PUTs)", Pass: ratio <= 4.6/3, Durability: "object store, fsync",
		Note: fmt.Sprintf("every store request delayed by %v p50, %v p90, 1 %% of them %d times as long; %s (inverse)", delayP50, delayP90, tailFactor, note)}}
	for _, q := range []float64{0.9, 0.99} {
		rs = append(rs, compare(fmt.Sprintf("latency/ack-p%.0f", q*100), ms(quantile(all[0], q)), "ms", "bare requests one after the other",
			ms(quantile(all[1], q)), "object store, fsync", fmt.Sprintf("%d batches each", len(all[0]))))
	}
	return rs, nil
}
