package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// requestCase is one shape of load on all services together.
type requestCase struct {
	collectors, boots, samples, batches int
	// inline: manifests carry the frames.
	inline bool
	// spares: collections keep a log of epochs, and collectors read no markers of what it does not name.
	spares bool
}

func (c requestCase) String() string {
	name := fmt.Sprintf("requests/%d-collectors/%d-boots/%d-samples", c.collectors, c.boots, c.samples)
	if c.inline {
		name += "/inline"
	}
	if c.spares {
		name += "/marker-reads-epochs"
	}
	return name
}

// inlineBelow is ingest.inline_below of the cases with frames in their manifests.
const inlineBelow = "16KiB"

const (
	requestShards = 32
	// requestRate is how many batches a second are sent, where the machine gets so many accepted.
	requestRate   = 500
	digestTimeout = 20 * time.Minute
	// Goals of docs/guide/sizing.md.
	goalRequests, goalDollars, goalBytes = 4.2, 23, 0.3
)

// requestCases is the matrix. There are at least so many batches that what each interval costs is shared as
// in a minute of steady load.
func requestCases(quick bool) (all []requestCase) {
	if quick {
		return []requestCase{
			{1, 100, 500, 1000, false, false}, {2, 500, 500, 1000, false, false},
			{2, 500, 500, 1000, true, false}, {2, 500, 500, 1000, false, true},
		}
	}
	for _, samples := range []int{500, 10_000} {
		for _, boots := range []int{100, 10_000} {
			for _, collectors := range []int{1, 10, 100} {
				batches := 30_000
				if samples > 500 { // as many samples as fit into the query node's memory
					batches = 3000
				}
				all = append(all, requestCase{collectors, boots, samples, max(batches, boots), false, false})
			}
		}
	}
	return append(all, requestCase{10, 100, 500, 30_000, true, false}, requestCase{10, 100, 500, 30_000, false, true})
}

// benchRequests starts all services with default settings and counts what they ask the store: per accepted
// batch until it is answered by the query node and stands in a block.
func benchRequests(ctx context.Context, e *env) ([]Result, error) {
	price, err := readPrices()
	if err != nil {
		return nil, err
	}
	var all []Result
	for _, c := range requestCases(e.quick) {
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

func benchRequestsOf(ctx context.Context, e *env, rc requestCase, price prices) ([]Result, error) {
	dir, err := os.MkdirTemp(e.dir, "requests-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	hour := time.Now().Truncate(time.Hour).Add(-time.Hour)
	due := time.Since(hour.Add(time.Hour)) + rc.rollupAfter(e.quick)
	adjust := defaultSettings(due)
	if rc.inline {
		defaults := adjust
		adjust = func(process string, settings map[string]any) {
			defaults(process, settings)
			if strings.HasPrefix(process, "collector-") {
				settings["inline_below"] = inlineBelow
			}
		}
	}
	var begins []func(context.Context, *cluster.Cluster) error
	if rc.spares {
		adjust, begins = sparing(adjust), append(begins, beginEpochs)
	}
	c, err := cluster.New(cluster.Options{Bin: e.bin, Dir: dir, Collectors: rc.collectors, Rollups: 1, Shards: requestShards, Adjust: adjust, Env: slowCollectors})
	if err != nil {
		return nil, err
	}
	defer c.StopAll()
	if err := startAll(ctx, c, begins...); err != nil {
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
	defer l.close()
	first, rest := split(fs)
	// The first batch of a boot also writes its record, which is paid once in its life.
	if _, err := l.send(ctx, first); err != nil {
		return nil, err
	}
	if err := answered(ctx, c, first); err != nil {
		return nil, err
	}
	if rc.spares {
		time.Sleep(2 * epochsInterval) // A run names what was read once it was open.
	}
	before, err := countAsked(ctx, c)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if _, err := l.send(ctx, rest); err != nil {
		return nil, err
	}
	rate := float64(count(rest)) / time.Since(began).Seconds()
	if err := answered(ctx, c, first, rest); err != nil {
		return nil, err
	}
	late, err := rolledUp(ctx, c, hour, len(first)+count(rest))
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, err := countAsked(ctx, c)
	if err != nil {
		return nil, err
	}
	bytes, err := storedBytes(ctx, c)
	if err != nil {
		return nil, err
	}
	return counted(rc, after.minus(before), float64(count(rest)), price, bytes,
		fmt.Sprintf("%d batches at %.0f/s, requests of collectors %v slower, all answered and rolled up after %v, %d of them as late ones", count(rest), rate, delayP50, took.Round(time.Second), late)), nil
}

// counted are the figures of n batches.
func counted(rc requestCase, got asked, n float64, price prices, bytes stored, what string) []Result {
	const durability = "object store, fsync"
	greetings := got.greetings()
	requests := got.paid() / n
	perBillion := got.dollars(price) / (n * float64(rc.samples)) * 1e9
	frames, others := bytes.split()
	lasting := others - bytes[strings.TrimSuffix(layout.LivePacksPrefix, "/")]
	goal := rc.samples == 500
	rs := []Result{
		{Name: rc.String() + "/all-services", Value: requests * 1000, Unit: "per 1,000 accepted", Baseline: "two PUTs and a GET", BaselineValue: 3000, Ratio: requests / 3,
			Goal: fmt.Sprintf("<= %.0f", goalRequests*1000), Pass: requests <= goalRequests, Durability: durability, Note: fmt.Sprintf("%s; without %.0f greetings of streams; per 1,000: %s", what, greetings, got.per(n/1000))},
		{Name: rc.String() + "/cost", Value: perBillion, Unit: "$/billion samples", Goal: goalOf(goal, goalDollars), Pass: perBillion <= goalDollars || !goal,
			Durability: durability, Note: "requests alone, with the prices of docs/guide/prices.csv"},
		{Name: rc.String() + "/bytes", Value: lasting / frames, Unit: "bytes per byte of frames", Goal: goalOf(goal, goalBytes), Pass: lasting/frames <= goalBytes || !goal, Durability: durability,
			Note: fmt.Sprintf("everything in the bucket but frames (%.1f MB), chunks, deltas and their indexes, and packs of frames, which go when their hours are rolled up; %.2f with packs; all families: %s", frames/1e6, others/frames, bytes.largest(frames))},
	}
	if rc.inline { // frames and records are one family of keys
		return rs[:2]
	}
	return rs
}

func goalOf(has bool, g float64) string {
	if !has {
		return ""
	}
	return fmt.Sprintf("<= %g", g)
}

// startAll starts every service, the store first, then what is to be in it; the coordinator where there are rollup workers.
func startAll(ctx context.Context, c *cluster.Cluster, prepare ...func(context.Context, *cluster.Cluster) error) error {
	start := []func(context.Context) error{c.StartStore}
	for _, p := range prepare {
		start = append(start, func(ctx context.Context) error { return p(ctx, c) })
	}
	start = append(start, c.StartReconciler)
	if len(c.Rollups) > 0 {
		start = append(start, c.StartCoordinator)
	}
	for i := range c.Collectors {
		start = append(start, func(ctx context.Context) error { return c.StartCollector(ctx, i) })
	}
	for i := range c.Rollups {
		start = append(start, func(ctx context.Context) error { return c.StartRollup(ctx, i) })
	}
	for _, s := range append(start, c.StartQuery) {
		if err := s(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rollupAfter is from the start until the worker rolls the hour up: like in the field, everything has come by then
// unless the machine is slow.
func (c requestCase) rollupAfter(quick bool) time.Duration {
	wait := time.Duration(0)
	if c.spares {
		wait = 2 * epochsInterval
	}
	if quick {
		return 30*time.Second + wait
	}
	sending := time.Duration(2*(c.boots+c.batches)) * time.Second / requestRate
	return 20*time.Second + wait + time.Duration(c.collectors)*time.Second/2 + sending
}

// defaultSettings takes the cluster's own haste away, so that what is counted is what an operator gets.
// Only the times of rollups are others: the hour's is due at a time after its end, and those of late batches sooner.
func defaultSettings(due time.Duration) func(string, map[string]any) {
	return func(process string, settings map[string]any) {
		switch process {
		case "rollup-1":
			follow := settings["follow"].(map[string]any)
			delete(follow, "interval")
			delete(follow, "idle")
			settings["schedule"] = map[string]any{"first_after": due.String(), "late_after": "20s"}
		case "query":
			delete(settings, "rollup")
		}
	}
}

// slowCollectors lets the requests of collectors that answers wait for take as long as those of S3: how many
// batches share a segment of the journal depends on it.
func slowCollectors(process string) []string {
	if !strings.HasPrefix(process, "collector-") {
		return nil
	}
	var armed []string
	for _, request := range []string{"create.raw-blobs", "create.accepted", "get.gc", "create.journal"} {
		armed = append(armed, fmt.Sprintf("ingest.store.%s.before=sleep:%v", request, delayP50))
	}
	return []string{failpoint.Env + "=" + strings.Join(armed, ",")}
}

// agentsOfBoots is how many agents there are; more boots are lives of theirs, one after the other.
const agentsOfBoots = 100

// feedsOfHour are batches whose samples lie in an hour.
func feedsOfHour(rc requestCase, hour time.Time) ([]feed, error) {
	each := 1 + rc.batches/rc.boots
	rows := rc.samples / seriesPerBatch
	hosts := tsbs.Generate(1, min(rc.boots, agentsOfBoots), rows).Hosts()
	lives := (rc.boots + agentsOfBoots - 1) / agentsOfBoots
	out := make([]feed, rc.boots)
	for i := range out {
		h := hosts[i%len(hosts)]
		h.Series = slices.Clone(h.Series)
		times := make([]int64, rows)
		for k := range times {
			times[k] = hour.UnixMilli() + int64(k+1)*tsbs.StepMS + int64(i/agentsOfBoots)*time.Hour.Milliseconds()/2/int64(lives)
		}
		for k := range h.Series {
			h.Series[k].Timestamps = times
		}
		f, err := newFeed(h, identity.Boot{Agent: fmt.Sprintf("counted-%02d", i%agentsOfBoots), Boot: nextBoot("counted", i)}, each, rc.samples)
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

// answered waits until the query node knows every record.
func answered(ctx context.Context, c *cluster.Cluster, feeds ...[]feed) error {
	ctx, cancel := context.WithTimeout(ctx, digestTimeout)
	defer cancel()
	records := uint64(0)
	for _, f := range slices.Concat(feeds...) {
		for _, b := range f.batches {
			records += b.id.Count()
		}
	}
	return cluster.Poll(ctx, "the batches to be answered", func() (bool, error) {
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
}

// rolledUp waits until blocks and deltas have so many batches; late are those that only deltas have.
func rolledUp(ctx context.Context, c *cluster.Cluster, hour time.Time, batches int) (late int, err error) {
	ctx, cancel := context.WithTimeout(ctx, digestTimeout)
	defer cancel()
	err = cluster.Poll(ctx, "the batches to be rolled up", func() (bool, error) {
		var blocks int
		var err error
		blocks, late, err = c.RolledUp(ctx, hour, hour)
		return blocks+late == batches, errors.Join(err, fmt.Errorf("%d of %d batches", blocks+late, batches))
	})
	return late, err
}
