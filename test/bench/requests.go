package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// requestCase is one shape of load on all services together.
type requestCase struct {
	collectors, boots, samples, batches int
}

func (c requestCase) String() string {
	return fmt.Sprintf("requests/%d-collectors/%d-boots/%d-samples", c.collectors, c.boots, c.samples)
}

const (
	requestShards = 32
	// idleFor is how long the requests of services without work are counted.
	idleFor = time.Minute
	// Goals of docs/guide/sizing.md.
	goalRequests, goalDollars, goalIdle, goalBytes = 4.2, 23, 0.3, 0.3
)

// benchRequests starts all services with default settings and counts what they ask the store: per accepted
// batch until it is answered by the query node and stands in a block, and per day while nothing comes.
func benchRequests(ctx context.Context, e *env) ([]Result, error) {
	cases := []requestCase{
		{1, 100, 500, 6000}, {1, 10_000, 500, 10_000}, {1, 100, 10_000, 1000},
		{10, 100, 500, 6000}, {100, 100, 500, 6000},
	}
	if e.quick {
		cases = []requestCase{{1, 100, 500, 1000}, {2, 500, 500, 1000}}
	}
	price, err := readPrices()
	if err != nil {
		return nil, err
	}
	var all []Result
	for _, c := range cases {
		if !e.cases.MatchString(c.String()) {
			continue
		}
		rs, err := benchRequestsOf(ctx, e, c, price)
		all = append(all, rs...)
		if err != nil {
			return all, fmt.Errorf("%s: %w", c, err)
		}
	}
	return all, nil
}

// prices of a request, in dollars.
type prices struct{ write, read float64 }

func readPrices() (p prices, err error) {
	f, err := os.Open(filepath.Join("docs", "guide", "prices.csv"))
	if err != nil {
		return p, err
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		return p, fmt.Errorf("prices.csv: %w", err)
	}
	for _, row := range rows {
		switch row[0] {
		case "write":
			p.write, err = strconv.ParseFloat(row[2], 64)
		case "read":
			p.read, err = strconv.ParseFloat(row[2], 64)
		}
		if err != nil {
			return p, fmt.Errorf("prices.csv: %w", err)
		}
	}
	p.write, p.read = p.write/1000, p.read/1000
	if p.write == 0 || p.read == 0 {
		return p, errors.New("prices.csv: no price of a write or of a read")
	}
	return p, nil
}

// asked is what services have asked the store, by service and operation.
type asked map[[2]string]float64

func (a asked) minus(b asked) asked {
	out := maps.Clone(a)
	for k, v := range b {
		out[k] -= v
	}
	return out
}

// Operations that S3 is paid for as writes, and as reads; deletes are free.
var paidAsWrites = []string{"put", "create", "replace", "list"}
var paidAsReads = []string{"get", "head"}

func (a asked) sum(ops ...string) (n float64) {
	for k, v := range a {
		if slices.Contains(ops, k[1]) {
			n += v
		}
	}
	return n
}

func (a asked) dollars(p prices) float64 {
	return a.sum(paidAsWrites...)*p.write + a.sum(paidAsReads...)*p.read
}

// perThousand lists services and operations, per 1,000 of n.
func (a asked) perThousand(n float64) string {
	var parts []string
	for _, k := range slices.SortedFunc(maps.Keys(a), func(x, y [2]string) int { return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1])) }) {
		if v := a[k] / n * 1000; v >= 0.5 {
			parts = append(parts, fmt.Sprintf("%s %s %.0f", k[0], k[1], v))
		}
	}
	return strings.Join(parts, ", ")
}

func benchRequestsOf(ctx context.Context, e *env, rc requestCase, price prices) ([]Result, error) {
	dir, err := os.MkdirTemp(e.dir, "requests-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	c, err := cluster.New(cluster.Options{Bin: e.bin, Dir: dir, Collectors: rc.collectors, Rollups: 1, Shards: requestShards, Adjust: defaultSettings})
	if err != nil {
		return nil, err
	}
	defer c.StopAll()
	start := []func(context.Context) error{c.StartStore, c.StartCoordinator, c.StartReconciler}
	for i := range rc.collectors {
		start = append(start, func(ctx context.Context) error { return c.StartCollector(ctx, i) })
	}
	start = append(start, func(ctx context.Context) error { return c.StartRollup(ctx, 0) }, c.StartQuery)
	for _, s := range start {
		if err := s(ctx); err != nil {
			return nil, err
		}
	}
	fs, err := recentFeeds(rc)
	if err != nil {
		return nil, err
	}
	first, rest := split(fs)
	// The first batch of a boot also writes its record, which is paid once in its life.
	if _, err := sendAll(ctx, c, first); err != nil {
		return nil, err
	}
	if err := digested(ctx, c, first, nil); err != nil {
		return nil, err
	}
	before, err := countAsked(ctx, c)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if _, err := sendAll(ctx, c, rest); err != nil {
		return nil, err
	}
	rate := float64(count(rest)) / time.Since(began).Seconds()
	if err := digested(ctx, c, first, rest); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, err := countAsked(ctx, c)
	if err != nil {
		return nil, err
	}
	frames, others, err := storedBytes(ctx, c)
	if err != nil {
		return nil, err
	}
	n := float64(count(rest))
	got := after.minus(before)
	requests := got.sum(append(paidAsWrites, paidAsReads...)...) / n
	perBillion := got.dollars(price) / (n * float64(rc.samples)) * 1e9
	note := fmt.Sprintf("%.0f batches at %.0f/s, everything answered and in blocks after %v; per 1,000: %s", n, rate, took.Round(time.Second), got.perThousand(n))
	rs := []Result{
		{Name: rc.String() + "/all-services", Value: requests * 1000, Unit: "per 1,000 accepted", Baseline: "two PUTs and a GET", BaselineValue: 3000, Ratio: requests / 3,
			Goal: fmt.Sprintf("<= %.0f", goalRequests*1000), Pass: requests <= goalRequests, Durability: "object store, fsync", Note: note},
		{Name: rc.String() + "/cost", Value: perBillion, Unit: "$/billion samples", Goal: goalOf(rc.samples == 500, goalDollars), Pass: perBillion <= goalDollars || rc.samples != 500,
			Durability: "object store, fsync", Note: "requests alone, with the prices of docs/guide/prices.csv"},
		{Name: rc.String() + "/bytes", Value: others / frames, Unit: "bytes per byte of frames", Goal: goalOf(rc.samples == 500, goalBytes), Pass: others/frames <= goalBytes || rc.samples != 500,
			Durability: "object store, fsync", Note: fmt.Sprintf("everything in the bucket but frames (%.1f MB), chunks and their indexes", frames/1e6)},
	}
	idle, err := idleDollars(ctx, e, c, price)
	if err != nil {
		return rs, err
	}
	return append(rs, idle.named(rc)), nil
}

func goalOf(has bool, g float64) string {
	if !has {
		return ""
	}
	return fmt.Sprintf("<= %g", g)
}

type idleResult struct{ Result }

func (r idleResult) named(c requestCase) Result {
	r.Name = c.String() + "/idle"
	return r.Result
}

// idleDollars counts for a minute after the services had time to find that nothing comes any more.
func idleDollars(ctx context.Context, e *env, c *cluster.Cluster, price prices) (idleResult, error) {
	wait, span := 6*time.Minute, idleFor*3
	if e.quick {
		wait, span = 30*time.Second, idleFor/2
	}
	var counts []asked
	for _, d := range []time.Duration{wait, span} {
		select {
		case <-ctx.Done():
			return idleResult{}, ctx.Err()
		case <-time.After(d):
		}
		a, err := countAsked(ctx, c)
		if err != nil {
			return idleResult{}, err
		}
		counts = append(counts, a)
	}
	got := counts[1].minus(counts[0])
	perDay := float64(24*time.Hour) / float64(span)
	return idleResult{Result{Value: got.dollars(price) * perDay, Unit: "$/day", Goal: goalOf(!e.quick, goalIdle), Pass: got.dollars(price)*perDay <= goalIdle || e.quick,
		Note: fmt.Sprintf("%d shards; requests a day: %s", requestShards, got.perThousand(1000/perDay))}}, nil
}

// defaultSettings takes the cluster's own haste away, so that what is counted is what an operator gets.
// Only the wait for a late batch's rollup is shorter: its requests come once, whenever it is.
func defaultSettings(process string, settings map[string]any) {
	switch process {
	case "rollup-1":
		delete(settings, "follow")
		settings["schedule"] = map[string]any{"late_after": "20s"}
	}
}

// recentFeeds are batches whose samples lie in a past hour that query nodes still have in memory.
func recentFeeds(rc requestCase) ([]feed, error) {
	each := max(2, rc.batches/rc.boots)
	hosts := tsbs.Generate(1, min(rc.boots, 100), rc.samples/seriesPerBatch).Hosts()
	from := time.Now().Truncate(time.Hour).Add(-90 * time.Minute).UnixMilli()
	times := make([]int64, rc.samples/seriesPerBatch)
	for i := range times {
		times[i] = from + int64(i)*tsbs.StepMS
	}
	out := make([]feed, rc.boots)
	for i := range out {
		h := hosts[i%len(hosts)]
		h.Series = slices.Clone(h.Series)
		for k := range h.Series {
			h.Series[k].Timestamps = times
		}
		agent := i % 100
		f, err := newFeed(h, identity.Boot{Agent: fmt.Sprintf("counted-%02d", agent), Boot: nextBoot("counted", i)}, each, rc.samples)
		if err != nil {
			return nil, err
		}
		out[i] = f
	}
	return out, nil
}

// split is the first batch of each boot, and the others.
func split(fs []feed) (first, rest []feed) {
	for _, f := range fs {
		first = append(first, feed{f.boot, f.batches[:1]})
		rest = append(rest, feed{f.boot, f.batches[1:]})
	}
	return first, rest
}

func count(fs []feed) (n int) {
	for _, f := range fs {
		n += len(f.batches)
	}
	return n
}

// bootsAtOnce bounds the streams that are open at one time: a fleet has its turn after the other.
const bootsAtOnce = 100

func sendAll(ctx context.Context, c *cluster.Cluster, fs []feed) (n int, err error) {
	for part := range slices.Chunk(fs, bootsAtOnce) {
		g, ctx := errgroup.WithContext(ctx)
		for i, a := range c.Addr.Collectors {
			var mine []feed
			for k := i; k < len(part); k += len(c.Addr.Collectors) {
				mine = append(mine, part[k])
			}
			if len(mine) == 0 {
				continue
			}
			g.Go(func() error {
				fl, err := newFleet(a.GRPC, len(mine))
				if err != nil {
					return err
				}
				defer fl.close()
				_, err = fl.send(ctx, mine, windowOf(len(part)))
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return n, err
		}
		n += count(part)
	}
	return n, nil
}

// digested waits until the query node knows every record, and blocks have every batch.
func digested(ctx context.Context, c *cluster.Cluster, first, rest []feed) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	batches := count(first) + count(rest)
	records := uint64(0)
	for _, f := range append(slices.Clone(first), rest...) {
		for _, b := range f.batches {
			records += b.id.Count()
		}
	}
	err := cluster.Poll(ctx, "the batches to be answered", func() (bool, error) {
		agents, complete, err := c.Agents(ctx)
		if err != nil {
			return false, err
		}
		var n uint64
		for _, a := range agents {
			n += a.GetRecordCount()
		}
		return n == records && !complete.GetPartial(), fmt.Errorf("%d of %d records, partial %v", n, records, complete.GetPartial())
	})
	if err != nil {
		return err
	}
	return cluster.Poll(ctx, "the batches to stand in blocks", func() (bool, error) {
		blocks, err := c.RawBlocks(ctx, time.Now().Add(-4*time.Hour), time.Now().Add(time.Hour))
		n := 0
		for _, b := range blocks {
			n += int(b.Inputs.Batches())
		}
		return n == batches, errors.Join(err, fmt.Errorf("%d of %d batches", n, batches))
	})
}

// countAsked reads the counters of all services.
func countAsked(ctx context.Context, c *cluster.Cluster) (asked, error) {
	out := asked{}
	services := map[string][]string{
		"reconciler": {c.Addr.ReconcilerHTTP}, "query": {c.Addr.QueryHTTP}, "rollup": c.Addr.Rollups, "coordinator": {c.Addr.CoordinatorHTTP},
	}
	for _, a := range c.Addr.Collectors {
		services["collector"] = append(services["collector"], a.HTTP)
	}
	for service, addrs := range services {
		for _, addr := range addrs {
			s, err := scrape(ctx, addr)
			if err != nil {
				return nil, fmt.Errorf("metrics of the %s: %w", service, err)
			}
			for _, op := range append(append([]string{"delete", "tag"}, paidAsWrites...), paidAsReads...) {
				if n := s.sum("lightmetrics_store_requests_total", fmt.Sprintf("op=%q", op)); n > 0 {
					out[[2]string{service, op}] += n
				}
			}
		}
	}
	return out, nil
}

// storedBytes are the bytes of frames, and of everything else but chunks and indexes.
func storedBytes(ctx context.Context, c *cluster.Cluster) (frames, others float64, err error) {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return 0, 0, err
	}
	return sumSizes(ctx, store)
}

// ofBlocks are the families of chunks and their indexes.
var ofBlocks = []string{"rollup/v1/window=", "index/v1/"}

func sumSizes(ctx context.Context, s objstore.Lister) (frames, others float64, err error) {
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{}) {
		if err != nil {
			return 0, 0, err
		}
		switch {
		case strings.HasPrefix(o.Key, layout.RawBlobsPrefix):
			frames += float64(o.Size)
		case !slices.ContainsFunc(ofBlocks, func(p string) bool { return strings.HasPrefix(o.Key, p) }):
			others += float64(o.Size)
		}
	}
	return frames, others, nil
}
