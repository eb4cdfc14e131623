package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// regionsAgents send at the same time, each to one collector, one batch at a time.
const regionsAgents = 4

// roundTrips are those between any two regions.
var roundTrips = []time.Duration{0, 30 * time.Millisecond, 70 * time.Millisecond, 150 * time.Millisecond}

// regionsElection is ten times the longest of them, which etcd needs.
const regionsElection = 2 * time.Second

// ackTimes are the times to an acknowledgement: of the first batch of each boot, and of those that follow.
type ackTimes struct{ first, rest []time.Duration }

// benchRegions measures how long a batch takes to be accepted in each of three regions, next to a collector that asks nobody,
// for each time that a message takes from one region to another and back.
func benchRegions(ctx context.Context, e *env) ([]Result, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.startBoth(ctx); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(e.dir, "regions-")
	if err != nil {
		return nil, err
	}
	three, err := cluster.NewRegions(cluster.RegionsOptions{
		Options: cluster.Options{Bin: e.bin, Dir: dir, Collectors: 1}, ElectionTimeout: regionsElection,
	})
	if err != nil {
		return nil, err
	}
	defer three.StopAll()
	for _, start := range []func(*cluster.Cluster) error{
		func(c *cluster.Cluster) error { return c.StartStore(ctx) },
		func(c *cluster.Cluster) error { return c.StartCoordinator(ctx) },
		func(c *cluster.Cluster) error { return errors.Join(c.StartCollector(ctx, 0), c.StartReconciler(ctx)) },
	} {
		if err := cluster.SideBySide(three.Of, start); err != nil {
			return nil, err
		}
	}
	addrs := []string{r.grpcAddr}
	for _, c := range three.Collectors() {
		addrs = append(addrs, c.GRPC)
	}
	fleets := make([]*fleet, len(addrs))
	for i, addr := range addrs {
		if fleets[i], err = newFleet(addr, regionsAgents); err != nil {
			return nil, err
		}
		defer fleets[i].close()
	}
	each := 12
	if e.quick {
		each = 4
	}
	for range 2 { // until the epoch is open, and every connection
		for i := range fleets {
			if _, _, err := acks(ctx, fleets[i], 2); err != nil {
				return nil, fmt.Errorf("warm up %s: %w", addrs[i], err)
			}
		}
	}
	var all []Result
	for _, rtt := range roundTrips {
		if !e.cases.MatchString(fmt.Sprintf("%d-ms", rtt.Milliseconds())) {
			continue
		}
		three.Delay(rtt / 2)
		rs, err := regionsAt(ctx, e, rtt, fleets, three.Names, each)
		if all = append(all, rs...); err != nil {
			return all, fmt.Errorf("%v between regions: %w", rtt, err)
		}
	}
	return all, nil
}

// regionsAt measures with one delay. The first fleet is that of the collector that asks nobody.
func regionsAt(ctx context.Context, e *env, rtt time.Duration, fleets []*fleet, names []string, each int) ([]Result, error) {
	// What is under way comes without the new delay.
	for i := range fleets {
		if _, _, err := acks(ctx, fleets[i], 2); err != nil {
			return nil, err
		}
	}
	times := make([]ackTimes, len(fleets))
	retries := 0
	for round := range e.pairs {
		for k := range fleets {
			i := k
			if round%2 == 1 {
				i = len(fleets) - 1 - k
			}
			got, n, err := acks(ctx, fleets[i], each)
			if err != nil {
				return nil, err
			}
			times[i].first, times[i].rest = append(times[i].first, got.first...), append(times[i].rest, got.rest...)
			retries += n
		}
	}
	for i := range times {
		slices.Sort(times[i].first)
		slices.Sort(times[i].rest)
	}
	p := func(i int, q float64) float64 { return ms(quantile(times[i].rest, q)) }
	// The region whose member leads etcd is the nearest to its quorum: there a call is one round trip, elsewhere two.
	near, far := 1, 1
	for i := 2; i < len(fleets); i++ {
		if p(i, 0.5) < p(near, 0.5) {
			near = i
		}
		if p(i, 0.5) > p(far, 0.5) {
			far = i
		}
	}
	var rs []Result
	for _, at := range []struct {
		name  string
		i     int
		trips int
		says  string
	}{
		{"near", near, 2, "the region that answers soonest, where etcd's leader is"},
		{"far", far, 4, "the region that answers latest"},
	} {
		name := fmt.Sprintf("regions/%d-ms/%s/", rtt.Milliseconds(), at.name)
		floor := p(0, 0.5) + float64(at.trips)*ms(rtt)
		note := fmt.Sprintf("%s (%s); %d batches, %d told to retry; claim and complete are %d round trips, so the floor is %.1f ms",
			at.says, names[at.i-1], len(times[at.i].rest), retries, at.trips, floor)
		rs = append(rs,
			compare(name+"ack-p50", p(at.i, 0.5), "ms", "a collector of s3_manifest", p(0, 0.5), "object store and etcd, fsync", note),
			compare(name+"ack-p99", p(at.i, 0.99), "ms", "a collector of s3_manifest", p(0, 0.99), "object store and etcd, fsync", at.says),
			compare(name+"first-p50", ms(quantile(times[at.i].first, 0.5)), "ms", "a collector of s3_manifest", ms(quantile(times[0].first, 0.5)),
				"object store and etcd, fsync", fmt.Sprintf("the first batch of a boot, for which buckets of other regions are asked for folds; %d batches", len(times[at.i].first))))
	}
	return rs, nil
}

// acks sends batches of new boots, one at a time for each agent, and gives how long each took.
func acks(ctx context.Context, f *fleet, each int) (a ackTimes, retries int, err error) {
	fs, err := feeds("agent", len(f.conns), each, 500)
	if err != nil {
		return a, 0, err
	}
	streams := make([]*agentStream, len(fs))
	for i := range fs {
		if streams[i], err = openStream(ctx, f.conns[i], fs[i]); err != nil {
			return a, 0, err
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, st := range streams {
		wg.Go(func() {
			times, n, failed := st.run(ctx, 1)
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", st.feed.boot, failed))
				return
			}
			a.first, a.rest = append(a.first, times[0]), append(a.rest, times[1:]...)
			retries += n
		})
	}
	wg.Wait()
	return a, retries, err
}
