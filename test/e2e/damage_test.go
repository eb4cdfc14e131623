package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestDamagedRollups spoils and deletes what the workers publish, under load and while
// the workers are killed and paused, with agents whose clocks are a year off among the
// senders; two operators at once check and request repairs. Afterwards nothing is damaged,
// no request is left, every accepted batch is rolled up once, and no hour has more
// generations than time and requests account for.
func TestDamagedRollups(t *testing.T) {
	t.Parallel()
	length := time.Duration(size(t, "SECONDS", 15, 300)) * time.Second
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SEED"); v != "" {
		seed, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("SEED=%d SECONDS=%v", seed, length.Seconds())
	rnd := rand.New(rand.NewPCG(seed, 8))

	const shards = 4
	c := newCluster(t, cluster.Options{Collectors: 2, Rollups: 2, Shards: shards, Adjust: shortGrace})
	ctx := within(t, length+5*time.Minute)
	must(t, c.StartStore(ctx))
	for i := range c.Collectors {
		must(t, c.StartCollector(ctx, i))
	}
	must(t, c.StartReconciler(ctx))
	must(t, c.StartCoordinator(ctx))
	for i := range c.Rollups {
		must(t, c.StartRollup(ctx, i))
	}
	must(t, c.StartQuery(ctx))

	f := load.StartFleet(ctx, c, load.FleetOptions{Seed: seed, Senders: 12, Rows: 5, Pause: 400 * time.Millisecond, BootBatches: 15})
	wrong := startWrongClocks(ctx, c)
	v := &vandal{c: c, rnd: rnd, was: map[string][]byte{}}
	requests, faults, began := 0, 0, time.Now()
	for end := time.Now().Add(length); time.Now().Before(end); {
		must(t, f.Err())
		for range 3 {
			must(t, v.spoil(ctx))
		}
		n, err := twoOperators(ctx, c, shards)
		must(t, err)
		requests += n
		if err := disturbWorker(ctx, c, rnd); err != nil {
			t.Fatal(err)
		}
		faults++
	}
	sent, err := f.Stop()
	must(t, err)
	skewed, err := wrong()
	must(t, err)

	must(t, cluster.Poll(ctx, "nothing to be damaged and no request to be left", func() (bool, error) {
		found, pending, err := v.state(ctx, shards)
		if err != nil || found == 0 {
			return err == nil && pending == 0, err
		}
		n, err := twoOperators(ctx, c, shards)
		requests += n
		time.Sleep(time.Second)
		return false, errors.Join(err, fmt.Errorf("%d findings, %d requests", found, pending))
	}))
	must(t, v.putBack(ctx))
	var r *load.Rollups
	must(t, cluster.Poll(ctx, "every batch to be rolled up", func() (bool, error) {
		var err error
		r, err = load.CheckRollups(ctx, c, shards)
		if err != nil && !errors.Is(err, load.ErrNotRolledUp) {
			t.Fatal(err)
		}
		return err == nil, err
	}))
	t.Logf("%d things spoiled (%v), %d requests, %d faults, %d batches of wrong clocks; %d sets in %d hours of shards, %d raw generations, %d aborted",
		v.count, v.done, requests, faults, skewed, r.Blocks, r.Hours, r.Generations, r.Aborted)
	most, where, err := mostGenerations(ctx, c)
	must(t, err)
	t.Logf("at most %d generations, %s", most, where)
	// Late batches gather for two seconds; a request takes a generation that was in work and
	// its own.
	if bound := uint64(time.Since(began)/(2*time.Second)) + 2*uint64(requests) + 2; most > bound {
		t.Errorf("%d generations of %s, at most %d are accounted for", most, where, bound)
	}
	var count, sum float64
	err = cluster.Poll(ctx, "PromQL to count every record once", func() (bool, error) {
		now := time.Now()
		var w1, w2 []string
		var err1, err2 error
		count, w1, err1 = c.Scalar(ctx, "sum(count_over_time("+load.Metric+"[3h]))", now)
		sum, w2, err2 = c.Scalar(ctx, "sum(sum_over_time("+load.Metric+"[3h]))", now)
		return count == float64(sent.Count) && sum == sent.Sum && len(w1)+len(w2) == 0, errors.Join(err1, err2)
	})
	if err != nil {
		t.Fatalf("%v: %v of %v, %v of %v", err, count, sent.Count, sum, sent.Sum)
	}
}

func shortGrace(process string, settings map[string]any) {
	quickWorkers(process, settings)
	if strings.HasPrefix(process, "collector") { // agents of wrong clocks are to be accepted
		settings["limits"] = map[string]any{"future": "0s"}
	}
	if s, ok := settings["schedule"].(map[string]any); ok {
		s["ahead_after"] = "5s"
		settings["collect"] = map[string]any{"interval": "1s", "grace": "2s"}
	}
}

// startWrongClocks sends from agents a year ahead and a year behind; the function that it
// gives stops them and says how many batches were accepted.
func startWrongClocks(ctx context.Context, c *cluster.Cluster) func() (int, error) {
	const metric = "skewed"
	quit := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	accepted := 0
	var errs []error
	for i, off := range []time.Duration{365 * 24 * time.Hour, -365 * 24 * time.Hour, 30 * 24 * time.Hour} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			boot := identity.Boot{Agent: fmt.Sprintf("skewed-%d", i), Boot: "b"}
			s := load.NewSender(boot, c.Addr.Collectors[i%2].GRPC, c.Addr.Collectors[(i+1)%2].GRPC)
			defer s.Close()
			start := time.Now().Add(off)
			for k := 0; ; k++ {
				select {
				case <-quit:
					return
				case <-time.After(500 * time.Millisecond):
				}
				body, err := load.Frame(boot, metric, uint64(1+4*k), 2, start.Add(time.Duration(k%40)*7*time.Minute+time.Duration(k)*time.Second), 1)
				if err == nil {
					r, serr := s.Send(ctx, body)
					if err = serr; err == nil && r.GetStatus().String() != load.Accepted && r.GetStatus().String() != load.Duplicate {
						err = fmt.Errorf("%s: %s %s", boot.Agent, r.GetStatus(), r.GetReason())
					}
				}
				mu.Lock()
				if accepted++; err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		}()
	}
	return func() (int, error) {
		close(quit)
		wg.Wait()
		return accepted, errors.Join(errs...)
	}
}

// disturbWorker kills one, or pauses it past its lease.
func disturbWorker(ctx context.Context, c *cluster.Cluster, rnd *rand.Rand) error {
	i := rnd.IntN(len(c.Rollups))
	if rnd.IntN(2) == 0 {
		cluster.Kill(&c.Rollups[i])
		time.Sleep(time.Duration(rnd.Int64N(int64(2 * workerLease))))
		return c.StartRollup(ctx, i)
	}
	if err := c.Rollups[i].Pause(); err != nil {
		return err
	}
	time.Sleep(workerLease + time.Duration(rnd.Int64N(int64(workerLease))))
	return c.Rollups[i].Resume()
}

func openRepairer(ctx context.Context, c *cluster.Cluster, shards uint32) (*repair.Repairer, error) {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return nil, err
	}
	return repair.New(repair.Config{Store: store, AuthorityID: cluster.Authority, Shards: shards, By: "test", Now: time.Now,
		Scan: func(ctx context.Context, _ timegrid.Hour, _ shard.ID, fn func(accepted.Batch) error) error {
			return storetest.Each(ctx, store, layout.AcceptedPrefix, func(i objstore.Info) error {
				b, _, err := store.Get(ctx, i.Key, objstore.GetOptions{Limit: accept.MaxRecordBytes})
				if err != nil {
					return err
				}
				m, err := accept.ParseManifest(b)
				if err != nil {
					return err
				}
				return fn(m.Batch())
			})
		}})
}

var everyHour = repair.Options{From: timegrid.HourStarting(time.Unix(0, 0)), To: timegrid.HourStarting(time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC))}

// twoOperators check everything and request that what is damaged is rebuilt, at the same time.
func twoOperators(ctx context.Context, c *cluster.Cluster, shards uint32) (requests int, err error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			n, oerr := operator(ctx, c, shards)
			mu.Lock()
			defer mu.Unlock()
			requests, err = requests+n, errors.Join(err, oerr)
		}()
	}
	wg.Wait()
	return requests, err
}

func operator(ctx context.Context, c *cluster.Cluster, shards uint32) (requests int, err error) {
	r, err := openRepairer(ctx, c, shards)
	if err != nil {
		return 0, err
	}
	rep, err := r.Verify(ctx, everyHour)
	if err != nil {
		return 0, err
	}
	type place struct {
		h timegrid.Hour
		s shard.ID
	}
	seen := map[place]bool{}
	for _, f := range rep.Findings {
		p := place{f.Hour, f.Shard}
		if seen[p] {
			continue
		}
		seen[p] = true
		o, err := r.Request(ctx, f.Hour, f.Shard, "damaged", false)
		if err != nil && !errors.Is(err, repair.ErrNothing) {
			return requests, err
		}
		if err == nil && !o.Pending {
			requests++
		}
	}
	return requests, nil
}

// mostGenerations of any shard's hour and resolution.
func mostGenerations(ctx context.Context, c *cluster.Cluster) (most uint64, key string, err error) {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return 0, "", err
	}
	err = storetest.Each(ctx, store, layout.ManifestsPrefix, func(i objstore.Info) error {
		if n, err := layout.ParseBlockManifest(i.Key); err == nil && n.Generation > most {
			most, key = n.Generation, i.Key
		}
		return nil
	})
	return most, key, err
}

// vandal is an admin who spoils objects of a live bucket.
type vandal struct {
	c     *cluster.Cluster
	rnd   *rand.Rand
	count int
	done  map[string]int
	was   map[string][]byte // records as they were
}

const garbage = "spoiled"

func (v *vandal) spoil(ctx context.Context) error {
	store, err := v.c.OpenStore(ctx)
	if err != nil {
		return err
	}
	prefix := []string{layout.ManifestsPrefix, layout.PlansPrefix, "rollup/v1/window=", "index/v1/"}[v.rnd.IntN(4)]
	var keys []string
	err = storetest.Each(ctx, store, prefix, func(i objstore.Info) error {
		keys = append(keys, i.Key)
		return nil
	})
	if err != nil || len(keys) == 0 {
		return err
	}
	slices.Sort(keys)
	key := keys[v.rnd.IntN(len(keys))]
	if v.done == nil {
		v.done = map[string]int{}
	}
	v.count++
	if prefix == layout.ManifestsPrefix {
		b, _, err := store.Get(ctx, key, objstore.GetOptions{Limit: catalog.MaxRecordBytes})
		if errors.Is(err, objstore.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if string(b) != garbage {
			v.was[key] = b
		}
	}
	if prefix != layout.ManifestsPrefix && v.rnd.IntN(2) == 0 {
		v.done["deleted "+prefix]++
		return store.Delete(ctx, key)
	}
	v.done["spoiled "+prefix]++
	_, err = store.Put(ctx, key, []byte(garbage), objstore.PutOptions{})
	return err
}

// putBack makes the superseded records that are still spoiled readable again.
func (v *vandal) putBack(ctx context.Context) error {
	store, err := v.c.OpenStore(ctx)
	if err != nil {
		return err
	}
	for key, b := range v.was {
		there, _, err := store.Get(ctx, key, objstore.GetOptions{Limit: catalog.MaxRecordBytes})
		if errors.Is(err, objstore.ErrNotFound) || err == nil && string(there) != garbage {
			continue
		}
		if err != nil {
			return err
		}
		if _, err := store.Put(ctx, key, b, objstore.PutOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// state is what a check finds, and the requests that are pending.
func (v *vandal) state(ctx context.Context, shards uint32) (found uint64, pending int, err error) {
	r, err := openRepairer(ctx, v.c, shards)
	if err != nil {
		return 0, 0, err
	}
	rep, err := r.Verify(ctx, everyHour)
	if err != nil {
		return 0, 0, err
	}
	requests, err := r.Requests(ctx, func(string, error) { pending++ })
	return rep.Found, pending + len(requests), err
}
