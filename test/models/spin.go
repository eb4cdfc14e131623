package models

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Bounds of one run of a verifier. Reaching one is a failure, never a pass.
const (
	memoryMiB     = 3000
	maxDepth      = 100_000
	maxDepthLong  = 2_000_000
	hashTableBits = 18 // to begin with, of a search that is not long: it grows
)

// Result of a variant's search.
type Result struct {
	Variant
	// States stored until the search ended: all that there are, or those until the first violation.
	States uint64
	Errors uint64
	// CPU that the search took with generating and compiling the verifier. Unlike the time until it ended it does not depend on what
	// else the machine does.
	CPU time.Duration
	// Exhausted: no bound of depth or memory was reached.
	Exhausted bool
	// Violated is the verifier's line about the first violation.
	Violated string
	// Unreached statements of the collectors, calls and garbage collectors.
	Unreached []string
	Output    string
}

// Holds reports whether the outcome is what the variant promises.
func (r Result) Holds() bool {
	if r.Breaks {
		return r.Errors > 0 && strings.Contains(r.Violated, "assertion violated")
	}
	return r.Errors == 0 && r.Exhausted && r.States > 1000
}

// Verdict in a few words.
func (r Result) Verdict() string {
	switch {
	case r.Breaks && r.Holds():
		return "violated, as it must be"
	case r.Breaks:
		return "FAILED: no assertion was violated"
	case r.Errors > 0:
		return "FAILED: " + r.Violated
	case !r.Exhausted:
		return "FAILED: the search was cut short"
	case !r.Holds():
		return "FAILED: too few states to mean anything"
	}
	return "holds, all states"
}

// Run generates, compiles and runs the verifier of a variant in dir.
func Run(ctx context.Context, source, dir string, v Variant) (Result, error) {
	r := Result{Variant: v}
	model, err := os.ReadFile(filepath.Join(source, v.Model+".pml"))
	if err != nil {
		return r, err
	}
	if err := os.WriteFile(filepath.Join(dir, v.Model+".pml"), model, 0o600); err != nil {
		return r, err
	}
	flags := append([]string{"-a"}, strings.Fields(v.Scope)...)
	// Code that costs the compiler time pays only where the search is long. A shortest
	// violation is found breadth first; all states are found with less memory depth first.
	search, pan := []string{"-O0"}, []string{"-m" + strconv.Itoa(maxDepth), "-w" + strconv.Itoa(hashTableBits)}
	if v.Long {
		search, pan = []string{"-O2"}, []string{"-m" + strconv.Itoa(maxDepthLong)}
	}
	if v.Name != Designed {
		flags = append(flags, "-D"+v.Name)
	}
	switch {
	case v.Reverse:
		search = append(search, "-DREVERSE")
	case v.Breaks && !v.Deep:
		search = append(search, "-DBFS")
	}
	if out, err := r.command(ctx, dir, "spin", append(flags, v.Model+".pml")...); err != nil || bytes.Contains(out, []byte("Error")) {
		return r, fmt.Errorf("spin %s %s: %v\n%s", v.Model, v.Name, err, out)
	}
	if out, err := r.command(ctx, dir, "gcc", append(search, "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM="+strconv.Itoa(memoryMiB), "-o", "pan", "pan.c")...); err != nil {
		return r, fmt.Errorf("gcc %s %s: %w\n%s", v.Model, v.Name, err, out)
	}
	out, err := r.command(ctx, dir, filepath.Join(dir, "pan"), pan...)
	r.Output = string(out)
	if err != nil && ctx.Err() != nil {
		return r, fmt.Errorf("pan %s %s: %w", v.Model, v.Name, ctx.Err())
	}
	return r, r.parse()
}

func (r *Result) command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if p := cmd.ProcessState; p != nil {
		r.CPU += p.UserTime() + p.SystemTime()
	}
	return out, err
}

var (
	statesLine = regexp.MustCompile(`(?m)^\s*([0-9.e+]+) states, stored`)
	errorsLine = regexp.MustCompile(`errors: (\d+)`)
	violation  = regexp.MustCompile(`(?m)^pan:\d+: (.*)$`)
	unreached  = regexp.MustCompile(`(?s)unreached in proctype (\w+)\n(.*?)\(\d+ of \d+ states\)`)
	cut        = regexp.MustCompile(`max search depth too small|out of memory|Search not completed|VECTORSZ|hash table full|memory limit`)
)

func (r *Result) parse() error {
	states, errs := statesLine.FindStringSubmatch(r.Output), errorsLine.FindStringSubmatch(r.Output)
	if states == nil || errs == nil {
		return fmt.Errorf("pan %s %s ended without a result:\n%s", r.Model, r.Name, r.Output)
	}
	n, err := strconv.ParseFloat(states[1], 64)
	if err != nil {
		return err
	}
	r.States = uint64(n)
	if r.Errors, err = strconv.ParseUint(errs[1], 10, 64); err != nil {
		return err
	}
	if m := violation.FindStringSubmatch(r.Output); m != nil {
		r.Violated = m[1]
	}
	r.Exhausted = r.Errors == 0 && !cut.MatchString(r.Output)
	for _, m := range unreached.FindAllStringSubmatch(r.Output, -1) {
		if m[1] == "Monitor" {
			continue
		}
		for line := range strings.Lines(m[2]) {
			if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, `"-end-"`) {
				r.Unreached = append(r.Unreached, m[1]+" "+line)
			}
		}
	}
	return nil
}
