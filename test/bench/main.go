// Command bench measures Lightmetrics against baselines in the same run and writes
// build/bench.json. Figures are ratios of interleaved runs (A B B A), medians of at
// least seven pairs; a pair in which the machine's speed moved by more than 10 % is thrown away.
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
	"runtime"
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
}

// benchmark is one group of figures.
type benchmark struct {
	name string
	what string
	run  func(context.Context, *env) ([]Result, error)
}

var benchmarks = []benchmark{
	{"frame", "encode and decode of frames, bytes per sample", benchFrame},
	{"store", "fsynced conditional PUTs of the embedded store next to versitygw", benchStore},
	{"accept", "accepted batches next to the bare conditional requests", benchAccept},
	{"start", "time from a collector's start to its first acknowledgement", benchStart},
	{"memory", "resident memory of ingest, agent and store at their stated loads", benchMemory},
}

// env is what benchmarks share.
type env struct {
	bin   string // the lightmetrics binary
	dir   string // scratch
	pairs int
	quick bool
}

func main() {
	var (
		run   = flag.String("run", "", "regular expression of benchmark names")
		out   = flag.String("out", "build/bench.json", "file for the figures")
		bin   = flag.String("bin", "bin/lightmetrics", "the lightmetrics binary")
		pairs = flag.Int("pairs", 7, "pairs of interleaved runs")
		quick = flag.Bool("quick", false, "small sizes, to see that everything runs")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := execute(ctx, *run, *out, &env{bin: *bin, pairs: *pairs, quick: *quick}); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func execute(ctx context.Context, pattern, out string, e *env) error {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	if e.dir, err = os.MkdirTemp("", "lightmetrics-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(e.dir)
	fmt.Printf("machine: %d cores, %s, GOMAXPROCS %d\n", runtime.NumCPU(), runtime.Version(), runtime.GOMAXPROCS(0))
	var all []Result
	for _, b := range benchmarks {
		if !re.MatchString(b.name) {
			continue
		}
		fmt.Printf("\n-- %s: %s\n", b.name, b.what)
		start := time.Now()
		rs, err := b.run(ctx, e)
		all = append(all, rs...)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", b.name, err), write(out, all))
		}
		show(rs)
		fmt.Printf("   (%v)\n", time.Since(start).Round(time.Second))
	}
	if err := write(out, all); err != nil {
		return err
	}
	var missed []string
	for _, r := range all {
		if r.Goal != "" && !r.Pass {
			missed = append(missed, fmt.Sprintf("%s is %.3g %s (ratio %.2f), goal %s", r.Name, r.Value, r.Unit, r.Ratio, r.Goal))
		}
	}
	if len(missed) > 0 {
		for _, m := range missed {
			fmt.Println("short of its goal:", m)
		}
		return fmt.Errorf("%d of %d figures fall short of their goals", len(missed), len(all))
	}
	return nil
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
		fmt.Fprintf(tw, "%s\t%.4g\t%s\t%s\t%.4g\t%.2f\t%s\t%s\t%s\n", r.Name, r.Value, r.Unit, r.Baseline, r.BaselineValue, r.Ratio, r.Goal, mark, r.Note)
	}
	tw.Flush()
}
