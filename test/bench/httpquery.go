package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// Goals of every query over HTTP, and of the memory under all of them.
const (
	goalOfPrometheus = 0.8
	goalOfVictoria   = 1.5
	goalOfMemory     = 2.0
)

// httpQuery is a request to the HTTP API.
type httpQuery struct {
	name, path string
	params     url.Values
	anyLabels  bool // see answer.differs
	short      bool // a part of the quick run's cold queries
}

// httpQueries are those of TSBS, sums over everything, ranges of a day and a week, and lists, to the end of the data.
func httpQueries(w *queriedData) []httpQuery {
	var all []httpQuery
	ranged := func(name, expr string, span, step time.Duration) httpQuery {
		if span == 0 {
			return httpQuery{name: name, path: "/api/v1/query", params: url.Values{"query": {expr}, "time": {seconds(w.end)}}}
		}
		return httpQuery{name: name, path: "/api/v1/query_range", params: url.Values{"query": {expr}, "start": {seconds(w.end.Add(-span))}, "end": {seconds(w.end)}, "step": {fmt.Sprint(step.Seconds())}}}
	}
	for _, t := range tsbsQueries {
		expr := t.expr
		if t.hosts > 0 {
			expr = fmt.Sprintf(expr, w.matcher(t.hosts))
		}
		q := ranged(t.name, expr, t.span, t.step)
		q.anyLabels, q.short = strings.HasPrefix(expr, "topk"), t.name == "lastpoint" || t.name == "double-groupby-1"
		all = append(all, q)
	}
	const day = 24 * time.Hour
	hourly, every := `avg by (hostname) (avg_over_time(cpu_usage_user[1h]))`, `sum(cpu_usage_user)`
	week := ranged("week-by-hour", hourly, w.span, time.Hour)
	week.short = true
	all = append(all,
		ranged("sum-all-series", `sum by (__name__) ({__name__=~".+"})`, time.Hour, time.Minute),
		ranged("day-by-hour", hourly, day, time.Hour), ranged("day-raw", every, day, 5*time.Minute),
		week, ranged("week-raw", every, w.span, 15*time.Minute))
	last := url.Values{"start": {seconds(w.end.Add(-time.Hour))}, "end": {seconds(w.end)}}
	list := func(name, path, match string) httpQuery {
		p := url.Values{}
		for k, v := range last {
			p[k] = v
		}
		if match != "" {
			p.Set("match[]", match)
		}
		return httpQuery{name: name, path: path, params: p}
	}
	return append(all, list("labels", "/api/v1/labels", ""), list("values-of-hostname", "/api/v1/label/hostname/values", ""), list("values-of-name", "/api/v1/label/__name__/values", ""),
		list("series-of-metric", "/api/v1/series", "cpu_usage_user"), list("series-of-host", "/api/v1/series", "{"+w.matcher(1)+"}"), list("series-all", "/api/v1/series", `{__name__=~".+"}`))
}

// benchHTTPQuery asks all three systems, each a process of its own with the same samples, over HTTP: once with the last two
// hours in memory as batches that came in no order, then with everything rolled up and merged.
func benchHTTPQuery(ctx context.Context, e *env) (all []Result, err error) {
	dir, err := os.MkdirTemp(e.dir, "http-query-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	w := newQueriedData(e)
	b := &httpBench{e: e, w: w, queries: httpQueries(w)}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.start(ctx, dir); err != nil {
		return nil, err
	}
	for _, phase := range []struct {
		name    string
		prepare func(context.Context) error
	}{{"live", b.live}, {"published", b.published}} {
		if err := phase.prepare(ctx); err != nil {
			return all, fmt.Errorf("%s: %w", phase.name, err)
		}
		rs, err := b.measure(ctx, "http-query/"+phase.name)
		all = append(all, rs...)
		if err != nil {
			return all, fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	return all, nil
}

// httpBench is the three systems: ours, Prometheus, VictoriaMetrics.
type httpBench struct {
	e       *env
	w       *queriedData
	queries []httpQuery
	o       *ours
	peers   []*peerSystem
}

func (b *httpBench) systems() []*system {
	all := []*system{b.o.system}
	for _, p := range b.peers {
		all = append(all, p.system)
	}
	return all
}

func (b *httpBench) measure(ctx context.Context, name string) (all []Result, err error) {
	for _, q := range b.queries {
		if !b.e.cases.MatchString(name + "/" + q.name) {
			continue
		}
		if err := b.equal(ctx, q); err != nil {
			return all, fmt.Errorf("%s: %w", q.name, err)
		}
		if err := b.profile(ctx, name, q); err != nil {
			return all, err
		}
		for _, clients := range []int{1, 8} {
			rs, err := b.time(ctx, name, q, clients)
			all = append(all, rs...)
			if err != nil {
				return all, fmt.Errorf("%s, %d clients: %w", q.name, clients, err)
			}
		}
	}
	if b.e.cases.MatchString(name + "/memory") {
		mixed, err := b.memory(ctx, name)
		all = append(all, mixed...)
		if err != nil {
			return all, err
		}
	}
	cold, err := b.cold(ctx, name)
	return append(all, cold...), err
}

// profile takes a CPU profile of the query node under a query, where profiles are wanted.
func (b *httpBench) profile(ctx context.Context, name string, q httpQuery) error {
	if b.e.profiles == "" {
		return nil
	}
	done := b.e.profile(ctx, name+"/"+q.name, b.o.c.Addr.QueryHTTP)
	defer done()
	return new(timed).run(ctx, b.o.system, q, 1, profileFor, 1)
}

// equal wants the same answer from all.
func (b *httpBench) equal(ctx context.Context, q httpQuery) error {
	var answers []*answer
	for _, s := range b.systems() {
		body, err := s.get(ctx, q.path, q.params)
		if err != nil {
			return err
		}
		a, err := readAnswer(body)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if a.empty() {
			return fmt.Errorf("%s found nothing", s.name)
		}
		answers = append(answers, a)
	}
	prometheus := answers[1]
	for i, s := range b.systems() {
		if diff := prometheus.differs(answers[i], q.anyLabels); diff != "" {
			return fmt.Errorf("%s answers other than prometheus: %s", s.name, diff)
		}
	}
	return nil
}

// timed is what one system's queries took.
type timed struct {
	times []time.Duration
	cpu   float64 // seconds
	p50s  []float64
}

func (t *timed) quantile(q float64) float64 {
	slices.Sort(t.times)
	return ms(quantile(t.times, q))
}

func (t *timed) millicpu() float64 { return t.cpu / float64(max(len(t.times), 1)) * 1e3 }

// atLeast is how long a run of a query is, and how often each client asks it.
func (b *httpBench) atLeast() (time.Duration, int) {
	if b.e.quick {
		return 50 * time.Millisecond, 2
	}
	return 300 * time.Millisecond, 5
}

// time runs a query on all systems in turn, A B C C B A.
func (b *httpBench) time(ctx context.Context, name string, q httpQuery, clients int) ([]Result, error) {
	systems := b.systems()
	got := make([]timed, len(systems))
	span, times := b.atLeast()
	for round := range b.e.pairs {
		for i := range systems {
			if round%2 == 1 {
				i = len(systems) - 1 - i
			}
			if err := got[i].run(ctx, systems[i], q, clients, span, times); err != nil {
				return nil, err
			}
		}
	}
	note := fmt.Sprintf("p99 %.2f ms, %.2f CPU-ms a query", got[0].quantile(0.99), got[0].millicpu())
	return b.beside(fmt.Sprintf("%s/%d-clients/%s", name, clients, q.name), got, note, true), nil
}

// beside is the figure of ours beside each of the others.
func (b *httpBench) beside(name string, got []timed, note string, goal bool) (all []Result) {
	for i, s := range b.systems() {
		if i == 0 {
			continue
		}
		ratios := make([]float64, len(got[0].p50s))
		for k := range ratios {
			ratios[k] = got[0].p50s[k] / got[i].p50s[k]
		}
		r := compare(name+"/"+s.name, got[0].quantile(0.5), "ms p50", s.name, got[i].quantile(0.5), "",
			fmt.Sprintf("%s; %s p99 %.2f ms, %.2f CPU-ms; ratio %.2f..%.2f", note, s.name, got[i].quantile(0.99), got[i].millicpu(), slices.Min(ratios), slices.Max(ratios)))
		r.Ratio = median(ratios)
		if goal {
			limit := goalOfPrometheus
			if s.name == victoria {
				limit = goalOfVictoria
			}
			r.Goal, r.Pass = goalOf(true, limit), r.Ratio <= limit
		}
		all = append(all, r)
	}
	return all
}

// run has some clients ask a query again and again, for a while and each of them some times at least.
func (t *timed) run(ctx context.Context, s *system, q httpQuery, clients int, span time.Duration, least int) error {
	before, err := s.used()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var all []time.Duration
	g, gctx := errgroup.WithContext(ctx)
	began := time.Now()
	for range clients {
		g.Go(func() error {
			for n := 0; n < least || time.Since(began) < span; n++ {
				start := time.Now()
				if _, err := s.get(gctx, q.path, q.params); err != nil {
					return err
				}
				took := time.Since(start)
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	after, err := s.used()
	if err != nil {
		return err
	}
	slices.Sort(all)
	t.times, t.cpu, t.p50s = append(t.times, all...), t.cpu+after.minus(before).cpu(), append(t.p50s, ms(quantile(all, 0.5)))
	return nil
}

// memory has eight clients ask everything, and reads the peak of what is resident meanwhile.
func (b *httpBench) memory(ctx context.Context, name string) ([]Result, error) {
	span := 20 * time.Second
	if b.e.quick {
		span = 2 * time.Second
	}
	peaks := map[string]float64{}
	for _, s := range b.systems() {
		asked := s.processes()
		for process, p := range asked {
			if s == b.o.system && process != "query" {
				continue
			}
			if err := resetPeak(p.Pid()); err != nil {
				return nil, err
			}
		}
		g, gctx := errgroup.WithContext(ctx)
		began := time.Now()
		for c := range 8 {
			g.Go(func() error {
				for n := c; n < c+len(b.queries) || time.Since(began) < span; n++ {
					q := b.queries[n%len(b.queries)]
					if _, err := s.get(gctx, q.path, q.params); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
		for process, p := range asked {
			if s == b.o.system && process != "query" {
				continue
			}
			peak, err := residentPeak(p.Pid())
			if err != nil {
				return nil, err
			}
			peaks[s.name] = peak / (1 << 20)
		}
	}
	var all []Result
	for _, s := range b.systems()[1:] {
		r := compare(name+"/memory/"+s.name, peaks[b.o.name], "MiB", s.name, peaks[s.name], "", "peak resident memory of the query node while eight clients ask everything")
		if s.name == victoria {
			r.Goal, r.Pass = goalOf(true, goalOfMemory), r.Ratio <= goalOfMemory
		}
		all = append(all, r)
	}
	return all, nil
}

// coldRounds bounds how often everything is restarted for each query.
const coldRounds = 3

// cold starts a system again before each query: its own caches are empty, the kernel's are not.
func (b *httpBench) cold(ctx context.Context, name string) (all []Result, err error) {
	for _, q := range b.queries {
		if !b.e.cases.MatchString(name+"/"+q.name) || b.e.quick && !q.short {
			continue
		}
		got := make([]timed, len(b.systems()))
		for range min(b.e.pairs, coldRounds) {
			if err := b.restart(ctx); err != nil {
				return all, err
			}
			for i, s := range b.systems() {
				// The connection is made, and the process has answered once.
				if _, err := s.get(ctx, "/api/v1/query", url.Values{"query": {"1"}, "time": {seconds(b.w.end)}}); err != nil {
					return all, err
				}
				start := time.Now()
				if _, err := s.get(ctx, q.path, q.params); err != nil {
					return all, err
				}
				took := time.Since(start)
				got[i].times, got[i].p50s = append(got[i].times, took), append(got[i].p50s, ms(took))
			}
		}
		all = append(all, b.beside(name+"/cold/"+q.name, got, "the first query after a restart", false)...)
	}
	return all, nil
}

// restart starts the query node and both peers again.
func (b *httpBench) restart(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, p := range b.peers {
		g.Go(func() error { return errors.Join(p.monitor.Stop(), p.monitor.Start(gctx)) })
	}
	err := errors.Join(cluster.Stop(&b.o.c.Query), b.o.c.StartQuery(ctx), g.Wait())
	for _, s := range b.systems() {
		s.client.CloseIdleConnections()
	}
	return err
}

// scrambled orders batches at random, the same way in each run.
func scrambled(fs []feed) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range fs {
		rng.Shuffle(len(fs[i].batches), func(a, b int) { fs[i].batches[a], fs[i].batches[b] = fs[i].batches[b], fs[i].batches[a] })
	}
}
