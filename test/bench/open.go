package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// benchOpen runs the engine's own benchmark, which fills a store without HTTP, and opens it by processes of its own.
func benchOpen(ctx context.Context, e *env) ([]Result, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkStart$", "-benchtime", "1x", "-timeout", "4h",
		"./services/objectstore/internal/engine")
	cmd.Env = append(os.Environ(), "LIGHTMETRICS_START_OBJECTS="+strconv.Itoa(e.objects), "TMPDIR="+e.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	m := metricsOf(string(out))
	if len(m) == 0 {
		return nil, fmt.Errorf("no figures in\n%s", out)
	}
	size := fmt.Sprintf("%d objects of 100 B", e.objects)
	rs := []Result{{Name: "open/fill", Value: m["filled/s"], Unit: "PUT/s", Durability: "fsync",
		Note: fmt.Sprintf("%s through the engine, 1,024 at a time, no HTTP; %.0f B of log and %.0f B of index an object", size, m["log-B/object"], m["index-B/object"])}}
	for _, c := range []struct{ name, note string }{
		{"index", "the index is there"},
		{"footers", "the index is lost: built from the footers of segments"},
		{"log", "index and footers are lost: the log is read, footers are made, the index is built from them"},
	} {
		rs = append(rs,
			Result{Name: "open/" + c.name + "/time", Value: m[c.name+"-open-s"], Unit: "s", Durability: "fsync", Note: size + ", in the page cache; " + c.note},
			Result{Name: "open/" + c.name + "/memory", Value: m[c.name+"-MiB"], Unit: "MiB", Note: fmt.Sprintf("resident when it is open; peak %.0f MiB", m[c.name+"-peak-MiB"])})
	}
	return append(rs, Result{Name: "open/reads", Value: m["read-us"], Unit: "us/GET", Note: fmt.Sprintf("50,000 random objects one after the other, without HTTP; resident then %.0f MiB", m["read-MiB"])}), nil
}

// metricsOf reads the figures of a benchmark of one run by their units.
func metricsOf(out string) map[string]float64 {
	m := map[string]float64{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				m[f[i+1]] = v
			}
		}
	}
	return m
}
