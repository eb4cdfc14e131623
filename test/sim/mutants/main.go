// Command mutants plants known bugs in the acceptance protocol and in the garbage
// collector, one at a time, and plays the simulation until it finds each. A bug that
// survives is a hole in the simulation, and the command fails.
//
// The sources stay as they are: each mutant is compiled through "go build -overlay".
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

func main() {
	schedules := flag.Uint64("schedules", 100_000, "the most schedules for one mutant")
	only := flag.String("only", "", "only mutants whose name contains this")
	write := flag.String("write", "", "write the table as Markdown to this file")
	workers := flag.Int("workers", runtime.NumCPU(), "mutants at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := all(ctx, *only, *schedules, *workers, *write); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func all(ctx context.Context, only string, schedules uint64, workers int, write string) error {
	root, err := output(ctx, "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var chosen []mutant
	for _, m := range mutants {
		if strings.Contains(m.name, only) {
			chosen = append(chosen, m)
		}
	}
	start := time.Now()
	verdicts := make([]verdict, len(chosen))
	var wg sync.WaitGroup
	queue := make(chan int)
	for range workers {
		wg.Go(func() {
			for i := range queue {
				verdicts[i] = try(ctx, strings.TrimSpace(root), dir, chosen[i], schedules)
				fmt.Println(verdicts[i].line(chosen[i]))
			}
		})
	}
	for i := range chosen {
		queue <- i
	}
	close(queue)
	wg.Wait()
	survived := 0
	for _, v := range verdicts {
		if !v.caught {
			survived++
		}
	}
	fmt.Printf("mutants=%d caught=%d survived=%d seconds=%.0f\n", len(chosen), len(chosen)-survived, survived, time.Since(start).Seconds())
	if write != "" && only == "" && survived == 0 {
		if err := os.WriteFile(write, table(chosen, verdicts), 0o644); err != nil {
			return err
		}
	}
	if survived > 0 || len(chosen) == 0 {
		return fmt.Errorf("%d of %d survived", survived, len(chosen))
	}
	return nil
}

// verdict on one mutant.
type verdict struct {
	caught         bool
	seed, schedule uint64
	text           string // the violation, or what went wrong
}

func (v verdict) line(m mutant) string {
	if !v.caught {
		return fmt.Sprintf("SURVIVED %-40s %s", m.name, v.text)
	}
	return fmt.Sprintf("caught   %-40s seed %-6d %.90s", m.name, v.seed, v.text)
}

// invariant is the first word of the violation.
func (v verdict) invariant() string {
	name, _, _ := strings.Cut(v.text, ":")
	return name
}

// apply gives the changed files, by path below root.
func (m mutant) apply(root string) (map[string][]byte, error) {
	sources := map[string][]byte{}
	for _, e := range m.edits {
		src, ok := sources[e.file]
		if !ok {
			var err error
			if src, err = os.ReadFile(filepath.Join(root, e.file)); err != nil {
				return nil, err
			}
		}
		if n := bytes.Count(src, []byte(e.old)); n != 1 {
			return nil, fmt.Errorf("%s: the text to replace is there %d times: %q", e.file, n, e.old)
		}
		sources[e.file] = bytes.Replace(src, []byte(e.old), []byte(e.new), 1)
	}
	return sources, nil
}

// try compiles one mutant and plays schedules until one violates.
func try(ctx context.Context, root, dir string, m mutant, schedules uint64) verdict {
	sources, err := m.apply(root)
	if err != nil {
		return verdict{text: err.Error()}
	}
	replace := map[string]string{}
	for file, src := range sources {
		to := filepath.Join(dir, m.name+"-"+filepath.Base(file))
		if err := os.WriteFile(to, src, 0o644); err != nil {
			return verdict{text: err.Error()}
		}
		replace[filepath.Join(root, file)] = to
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return verdict{text: err.Error()}
	}
	list, program := filepath.Join(dir, m.name+".json"), filepath.Join(dir, m.name)
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		return verdict{text: err.Error()}
	}
	defer os.Remove(program)
	if out, err := output(ctx, "go", "build", "-C", root, "-ldflags=-s -w", "-overlay", list, "-o", program, "./test/sim"); err != nil {
		return verdict{text: fmt.Sprintf("does not compile: %v\n%s", err, out)}
	}
	out, err := output(ctx, program, "-terse", "-workers=1", "-seed=1", fmt.Sprint("-schedules=", schedules))
	at := strings.Index(out, "VIOLATION ")
	if at < 0 {
		return verdict{text: fmt.Sprintf("%v %s", err, strings.TrimSpace(out))}
	}
	v := verdict{caught: true}
	if _, err := fmt.Sscanf(out[at:], "VIOLATION seed=%d schedule=%d", &v.seed, &v.schedule); err != nil {
		return verdict{text: out}
	}
	v.text = strings.TrimSpace(strings.SplitN(strings.SplitN(out[at:], "\n", 2)[0], " ", 4)[3])
	return v
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return string(out), err
}

func table(ms []mutant, vs []verdict) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Planted bugs\n\nWritten by `make mutants WRITE=1`; `make mutants` plants each again and fails when one survives. A mutant is the source with one guard\n"+
		"left out or reordered (`test/sim/mutants/mutants.go`); the seed is the first of the simulation, counted from 1, that breaks an invariant.\n"+
		"Seed 0 is the probe of unsound stores, before the first schedule. The %d mutants below are all caught.\n\n", len(ms))
	b.WriteString("| Mutant | Race or step | Seed | Invariant broken |\n|---|---|---|---|\n")
	for i, m := range ms {
		fmt.Fprintf(&b, "| %s | %s | %d | %s |\n", m.name, m.about, vs[i].seed, vs[i].invariant())
	}
	b.WriteString("\nInvariants: I1 to I6 and I10, *plan*, *breaker*, *log*, *fence*, *marker*, *versions*, *doubt*, *derived* and *spool* as in `gc.md`; *order*: a record names only a generation that held the frame; *conflict*: a conflict has its quarantine\n" +
		"record; *boot*: one spool per boot; *authority*: no collector serves under another authority; *ledger*: counts agree with a count by hand;\n" +
		"*progress*: without faults each submission has an outcome; *probe*: unsound stores are refused.\n")
	return b.Bytes()
}
