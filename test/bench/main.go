// Command bench measures Lightmetrics against baselines in the same run and writes
// build/bench.json and, with -doc, docs/benchmarks.md. Figures are ratios of interleaved
// runs (A B B A), medians of at least seven pairs; a pair in which the machine's speed moved
// by more than 10 % is thrown away. What our side acknowledged is read back after kill -9.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"text/tabwriter"
	"time"
)

// Result is one figure.
type Result struct {
	Name          string  `json:"name"`
	Value         float64 `json:"value"`
	Unit          string  `json:"unit"`
	Baseline      string  `json:"baseline"`
	BaselineValue float64 `json:"baseline_value"`
	Ratio         float64 `json:"ratio"`
	Goal          string  `json:"goal"`
	Pass          bool    `json:"pass"`
	Note          string  `json:"note"`
	// Durability is where the acknowledged data lay: memory, page cache, fsync, object store; ours first.
	Durability string `json:"durability,omitempty"`
	// Taken is when and of what the figure was taken.
	Taken string `json:"taken,omitempty"`
}

// benchmark is one group of figures.
type benchmark struct {
	name string
	what string
	run  func(context.Context, *env) ([]Result, error)
}

var benchmarks = []benchmark{
	{"frame", "encode and decode of frames, bytes per sample", benchFrame},
	{"chunk", "encode and decode of rollup chunks, bytes per sample next to a Prometheus block", benchChunk},
	{"query", "in process: TSBS queries over published chunks next to a Prometheus block", benchQuery},
	{"rollup", "an hour rolled up by a worker next to decoding its frames", benchRollup},
	{"ownership", "shards that move between workers, and how long they are nobody's", benchOwnership},
	{"store", "fsynced conditional PUTs and GETs of the embedded store next to versitygw, and PUTs next to bare fsyncs", benchStore},
	{"ec", "bodies on six places: coding them next to klauspost/reedsolomon, reading without places, healing, overhead; and what mirrors of the log cost", benchEC},
	{"claims", "claims of identities that share etcd's transactions next to one client that makes one a transaction", benchClaims},
	{"claims-size", "what a boot takes in etcd while its identities are claimed, settled and folded", benchClaimsSize},
	{"recovery", "how long a coordinator without its etcd takes until it knows what the buckets of three regions have", benchRecovery},
	{"joining", "how long a region with a history takes to be prepared and added, next to adding it unprepared", benchJoining},
	{"regions", "acknowledgement time in three regions under one linearizer, for several distances, next to a collector that asks nobody", benchRegions},
	{"open", "time and memory of opening a store of many small objects: with its index, from footers, from the log alone", benchOpen},
	{"accept", "accepted batches next to the bare conditional requests", benchAccept},
	{"latency", "acknowledgement time with injected S3 latency next to the bare requests", benchLatency},
	{"requests", "requests of all services to the store, per accepted batch, with dollars and bytes", benchRequests},
	{"idle", "requests of all services to the store while nothing comes", benchIdle},
	{"visible", "from acceptance until a query shows the batch, with and without watches", benchVisible},
	{"keepup", "a reconciler behind the journals of many collectors, over a slow store", benchKeepup},
	{"restart", "restarts of reconciler and query node over a long journal", benchRestart},
	{"followers", "memory and requests of followers against batches and boots", benchFollowers},
	{"collection", "requests of the collection of orphan blobs against batches and orphans, and as a share of those of acceptance", benchCollection},
	{"linger", "segments of a collector's journal against the time that they wait for further batches", benchLinger},
	{"chain", "from a sender to queryable, rolled up and merged: CPU, bytes and memory of all services next to VictoriaMetrics and Prometheus", benchChain},
	{"http-query", "queries over HTTP next to Prometheus and VictoriaMetrics with the same samples", benchHTTPQuery},
	{"start", "time from a collector's start to its first acknowledgement", benchStart},
	{"memory", "resident memory of ingest, agent and store at their stated loads", benchMemory},
}

// env is what benchmarks share.
type env struct {
	bin      string // the lightmetrics binary
	dir      string // scratch
	pairs    int
	objects  int    // in the store, for its memory
	days     int    // of http-query's data
	profiles string // folder for CPU profiles of the services; "" takes none
	quick    bool
	alone    bool
	full     bool           // claims-size
	cases    *regexp.Regexp // of accept, ec, joining, memory, recovery, regions and store
}

// Sizes of -quick.
const (
	quickPairs   = 1
	quickObjects = 50_000
)

func main() {
	if os.Getenv(ceilingEnv) != "" {
		if err := serveCeiling(); err != nil {
			fmt.Fprintln(os.Stderr, "bench: bare server:", err)
			os.Exit(1)
		}
		return
	}
	if dir := os.Getenv(leastEnv); dir != "" {
		if err := serveLeast(dir); err != nil {
			fmt.Fprintln(os.Stderr, "bench: least server:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	e := &env{}
	flag.StringVar(&o.run, "run", "", "regular expression of benchmark names")
	cases := flag.String("case", "", "regular expression of cases: 8-agents/500-samples and others of accept; ingest, agent and store of memory")
	flag.StringVar(&o.out, "out", "build/bench.json", "file for the figures")
	flag.StringVar(&o.doc, "doc", "", "page to write the figures to, such as docs/benchmarks.md")
	flag.StringVar(&e.bin, "bin", "bin/lightmetrics", "the lightmetrics binary")
	flag.StringVar(&e.profiles, "profile", "", "folder for CPU profiles of the services")
	flag.IntVar(&e.pairs, "pairs", 7, "pairs of interleaved runs")
	flag.IntVar(&e.objects, "objects", 1_000_000, "objects in the store when its memory, or its start, is measured")
	flag.IntVar(&e.days, "days", 7, "days of data of http-query, two at least; fewer are sooner rolled up")
	flag.BoolVar(&e.quick, "quick", false, "small sizes and one pair, to see that everything runs: no figures to rely on")
	flag.BoolVar(&e.full, "full", false, "claims-size with 10 million identities, which takes two hours or more")
	flag.BoolVar(&e.alone, "alone", false, "chain without the peers, to see what a change does: no figures for the page")
	flag.Parse()
	var err error
	if e.cases, err = regexp.Compile(*cases); err != nil {
		fmt.Fprintln(os.Stderr, "bench: -case:", err)
		os.Exit(2)
	}
	if e.days < 2 {
		fmt.Fprintln(os.Stderr, "bench: -days: 2 or more")
		os.Exit(2)
	}
	if e.alone && o.doc != "" {
		fmt.Fprintln(os.Stderr, "bench: -alone measures no ratio, and -doc wants them")
		os.Exit(2)
	}
	if e.quick {
		e.pairs, e.objects = quickPairs, min(e.objects, quickObjects)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err = execute(ctx, o, e); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are what to run and where to write.
type options struct{ run, out, doc string }

func execute(ctx context.Context, o options, e *env) error {
	re, err := regexp.Compile(o.run)
	if err != nil {
		return err
	}
	if e.dir, err = os.MkdirTemp("", "lightmetrics-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(e.dir)
	m := thisMachine(e)
	fmt.Println("machine:", m)
	var all []Result
	var failed error
	began := time.Now()
	for _, b := range benchmarks {
		if !re.MatchString(b.name) {
			continue
		}
		fmt.Printf("\n-- %s: %s\n", b.name, b.what)
		start := time.Now()
		rs, err := b.run(ctx, e)
		for i := range rs {
			rs[i].Taken = m.taken()
		}
		all = append(all, rs...)
		show(rs)
		fmt.Printf("   (%v)\n", time.Since(start).Round(time.Second))
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", b.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	fmt.Printf("\n%d figures in %v\n", len(all), time.Since(began).Round(time.Second))
	page := all
	if !e.quick {
		before, err := figuresBefore(o)
		if err != nil {
			return errors.Join(failed, err)
		}
		page = merge(before, all)
	}
	failed = errors.Join(failed, write(o.out, page))
	if o.doc != "" {
		failed = errors.Join(failed, writeDoc(o.doc, m, page, failed))
	}
	var missed int
	for _, r := range all {
		if r.Goal != "" && !r.Pass {
			missed++
			fmt.Println("short of its goal:", r.short())
		}
	}
	if missed > 0 {
		failed = errors.Join(failed, fmt.Errorf("%d of %d figures fall short of their goals", missed, len(all)))
	}
	return failed
}

// figuresBefore are those of earlier runs: of the file of figures, or else of the page.
func figuresBefore(o options) (before []Result, err error) {
	b, err := os.ReadFile(o.out)
	switch {
	case err == nil:
		err = json.Unmarshal(b, &before)
	case errors.Is(err, os.ErrNotExist) && o.doc != "":
		before, err = readPage(o.doc)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return before, err
}

// merge keeps the figures of earlier runs that this one did not take again.
func merge(before, now []Result) []Result {
	taken := map[string]Result{}
	for _, r := range now {
		taken[r.Name] = r
	}
	var all []Result
	for _, r := range before {
		if n, ok := taken[r.Name]; ok {
			r = n
			delete(taken, r.Name)
		}
		all = append(all, r)
	}
	for _, r := range now {
		if _, ok := taken[r.Name]; ok {
			all = append(all, r)
		}
	}
	return all
}

func write(out string, rs []Result) error {
	b, err := json.MarshalIndent(rs, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, append(b, '\n'), 0o644)
}

func show(rs []Result) {
	tw := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "NAME\tVALUE\tUNIT\tBASELINE\tITS VALUE\tRATIO\tGOAL\t\tNOTE")
	for _, r := range rs {
		mark := ""
		if r.Goal != "" {
			mark = "ok"
			if !r.Pass {
				mark = "SHORT"
			}
		}
		value, ratio := "", ""
		if r.Baseline != "" {
			value, ratio = fmt.Sprintf("%.4g", r.BaselineValue), fmt.Sprintf("%.2f", r.Ratio)
		}
		fmt.Fprintf(tw, "%s\t%.4g\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.Value, r.Unit, r.Baseline, value, ratio, r.Goal, mark, r.Note)
	}
	tw.Flush()
}
