package main

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// explained says what the figures mean and where the time goes; it stands below the tables.
//
//go:embed explained.md
var explained string

// machine is where figures were taken.
type machine struct {
	cores    int
	cpu      string
	fs       string
	kernel   string
	revision string
	load     string // average of the last minute when the run began: what else was at work
	date     time.Time
	quick    bool
	pairs    int
}

func thisMachine(e *env) machine {
	m := machine{cores: runtime.NumCPU(), date: time.Now().UTC(), quick: e.quick, pairs: e.pairs, cpu: "unknown CPU", fs: "unknown", revision: "unknown"}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.kernel = strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.load, _, _ = strings.Cut(string(b), " ")
	}
	if b, err := exec.Command("stat", "-f", "-c", "%T", e.dir).Output(); err == nil {
		m.fs = strings.TrimSpace(string(b))
	}
	if b, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		m.revision = strings.TrimSpace(string(b))
	}
	return m
}

func (m machine) String() string {
	s := fmt.Sprintf("%s, Linux %s, %s, %s/%s, %d pairs", m.taken(), m.kernel, m.fs, runtime.Version(), runtime.GOARCH, m.pairs)
	if m.quick {
		s += ", QUICK: not to rely on"
	}
	return s
}

// taken is when, of what and on what figures were taken: those of a page come from several runs.
func (m machine) taken() string {
	s := fmt.Sprintf("%s of %s on %d cores of %s", m.date.Format(time.DateOnly), m.revision, m.cores, m.cpu)
	if m.load != "" {
		s += " (load average " + m.load + " when it began)"
	}
	return s
}

// short is a figure and its goal in a line.
func (r Result) short() string {
	s := fmt.Sprintf("%s is %.4g %s", r.Name, r.Value, r.Unit)
	if r.Baseline != "" && r.Ratio != 0 {
		s += fmt.Sprintf(" (%.2f of %s)", r.Ratio, r.Baseline)
	}
	return s + ", goal " + r.Goal
}

func takenOn(rs []Result) (all []string) {
	for _, r := range rs {
		if !slices.Contains(all, r.Taken) {
			all = append(all, r.Taken)
		}
	}
	return all
}

// writeDoc writes the page: a table for each benchmark, then what explains it.
// failed is what kept the run from measuring all.
func writeDoc(file string, m machine, rs []Result, failed error) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks\n\nWritten by `make bench`; do not edit. The latest run: %s. Where a table names no processor, none was noted.\n\n", m)
	b.WriteString("Ratios are medians of pairs measured side by side in one run (A B B A); absolute figures are this machine's, where the\n" +
		"load generators take their share of the same cores. Durability says where the data lay when it was acknowledged, ours\n" +
		"first: the embedded store fsyncs its log before every answer, versitygw fsyncs nothing.\n")
	var missed []string
	for _, bench := range benchmarks {
		var rows []Result
		for _, r := range rs {
			if strings.HasPrefix(r.Name, bench.name+"/") {
				rows = append(rows, r)
			}
		}
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s: %s\n\nTaken on %s.\n\n| Figure | Value | Baseline | Ratio | Goal | | Durability | Note |\n|---|---|---|---|---|---|---|---|\n", bench.name, bench.what, strings.Join(takenOn(rows), ", "))
		for _, r := range rows {
			b.WriteString(r.row(bench.name))
			if r.Goal != "" && !r.Pass {
				missed = append(missed, r.short())
			}
		}
	}
	b.WriteString(costTable(rs))
	b.WriteString("\n## Short of their goals\n\n")
	for _, s := range missed {
		fmt.Fprintf(&b, "- %s\n", s)
	}
	if len(missed) == 0 {
		b.WriteString("None.\n")
	}
	if failed != nil {
		fmt.Fprintf(&b, "\n## Not measured\n\nThis run did not get through all: %s.\n", strings.ReplaceAll(failed.Error(), "\n", "; "))
	}
	b.WriteString("\n" + explained)
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

func (r Result) row(bench string) string {
	baseline, ratio, mark := "", "", ""
	if r.Baseline != "" {
		baseline = fmt.Sprintf("%.4g (%s)", r.BaselineValue, r.Baseline)
	}
	if r.Ratio != 0 {
		ratio = fmt.Sprintf("%.2f", r.Ratio)
	}
	if r.Goal != "" {
		if mark = "met"; !r.Pass {
			mark = "**short**"
		}
	}
	return fmt.Sprintf("| %s | %.4g %s | %s | %s | %s | %s | %s | %s |\n",
		strings.TrimPrefix(r.Name, bench+"/"), r.Value, r.Unit, baseline, ratio, r.Goal, mark, r.Durability, r.Note)
}
