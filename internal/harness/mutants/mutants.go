// Package mutants plants known bugs in a package and checks that the package's own
// tests find each of them. A package has one test with its list:
//
//	func TestMutantsAreCaught(t *testing.T) {
//		mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
//			{Name: "an answer is matched by its range", File: "answer.go", Old: "x.flights[d]", New: "x.any()", By: "TestAnswers"},
//		}})
//	}
//
// All mutants of a list are compiled into one test binary: the function that a mutant
// changes gets a changed copy beside it, and calls the copy when LIGHTMETRICS_MUTANT
// names the mutant. So a list costs one build, and one run of the named tests per mutant.
package mutants

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Mutant is one known bug.
type Mutant struct {
	// Name is unique in its list; blanks are fine.
	Name string
	// File that is changed, relative to the directory of the test; it may be in another
	// package ("../work/job.go").
	File string
	// Old stands exactly once in File, within the body of one function. New takes its place.
	Old, New string
	// By is the regular expression of the tests that must find the mutant, as for
	// go test -run; empty is List.Run.
	By string
}

// List is the mutants of one package.
type List struct {
	Mutants []Mutant
	// Run and Skip choose the tests, as for go test; empty Run is all of them. Skip what is
	// slow and finds nothing that other tests do not.
	Run, Skip string
	// Timeout of one mutant's run, after which it counts as caught: a bug may be that
	// something never ends. 60 s when 0; where the tests take long without a mutant it is longer.
	Timeout time.Duration
	// Env is added to the environment of each run, as NAME=value.
	Env []string
}

// Variable of the environment that names the mutant which is played.
const Variable = "LIGHTMETRICS_MUTANT"

// Playing reports whether this process plays a mutant: tests that wait for what never comes
// may wait less then.
func Playing() bool { return os.Getenv(Variable) != "" }

// Patience bounds the waits of a test for what comes in the end: d, and 4 s in a process that plays
// a mutant, since most mutants make something wait that never comes.
func Patience(d time.Duration) time.Duration {
	if Playing() {
		return min(d, 4*time.Second)
	}
	return d
}

// Check builds the package's tests with every mutant, wants them to pass without one, and to
// fail with each. Within the binary that it builds, and in short mode, it does nothing.
func Check(t *testing.T, l List) {
	t.Helper()
	if _, playing := os.LookupEnv(Variable); playing {
		return
	}
	if testing.Short() {
		t.Skip("compiles the package once more")
	}
	program := Build(t, l.Mutants)
	// Without a mutant nothing waits for ever, and a machine may be as slow as it is.
	began := time.Now()
	if out, err := l.play(t.Context(), program, Mutant{}, untilEnd(t)); err != nil {
		t.Fatalf("the tests fail without a mutant: %v\n%s", err, out)
	}
	l.Timeout = l.limit(time.Since(began))
	for _, m := range l.Mutants {
		t.Run(strings.ReplaceAll(m.Name, " ", "_"), func(t *testing.T) {
			t.Parallel() // a bug often makes a test wait
			by, err := l.find(t.Context(), program, m)
			if err != nil {
				t.Error(err)
			}
			t.Log(by)
		})
	}
}

// Build compiles the tests of the package in the working directory with every mutant
// in them, and gives the binary's path. It skips the test where there is no go tool.
func Build(t *testing.T, list []Mutant) string {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("the go tool, which plants the bugs, is not installed")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	sources, err := plant(dir, list)
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	replace := map[string]string{}
	for path, src := range sources {
		to := filepath.Join(tmp, strconv.Itoa(len(replace))+".go")
		if err := os.WriteFile(to, src, 0o600); err != nil {
			t.Fatal(err)
		}
		replace[path] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay, program := filepath.Join(tmp, "overlay.json"), filepath.Join(tmp, "mutants.test")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), goTool, "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", program, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the mutants do not compile: %v\n%s", err, out)
	}
	return program
}

// untilEnd is the time that is left to the test, but for what it takes to say where a child was; 0: it has no end.
func untilEnd(t *testing.T) time.Duration {
	if end, ok := t.Deadline(); ok {
		return max(time.Until(end)*9/10, time.Second)
	}
	return 0
}

// limit is how long one mutant's run may take on a machine on which the tests take so long without one. A machine
// that is slow must not count as one that waits for ever: the mutant would be caught by nothing.
func (l List) limit(took time.Duration) time.Duration {
	limit := l.Timeout
	if limit == 0 {
		limit = time.Minute
	}
	return max(limit, 2*took)
}

// find plays a mutant and gives the line that says which test found it.
func (l List) find(ctx context.Context, program string, m Mutant) (by string, err error) {
	out, err := l.play(ctx, program, m, l.Timeout)
	by, caught := caughtBy(out)
	switch {
	case err == nil:
		return "", fmt.Errorf("survived: no test fails when %s has %q in place of %q", m.File, m.New, m.Old)
	case !caught:
		return "", fmt.Errorf("the run failed, but not because of a test: %w\n%.2000s", err, out)
	}
	return by, nil
}

// play runs the tests with one mutant; without a name, with none. It ends them after the timeout, 0: never.
func (l List) play(ctx context.Context, program string, m Mutant, timeout time.Duration) (string, error) {
	run := m.By
	if run == "" {
		run = l.Run
	}
	cmd := exec.CommandContext(ctx, program, "-test.failfast", "-test.run="+run, "-test.skip="+l.Skip, fmt.Sprintf("-test.timeout=%s", timeout))
	cmd.Env = append(append(os.Environ(), l.Env...), Variable+"="+m.Name)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// caughtBy gives the line that says which test failed; false when none did.
func caughtBy(out string) (line string, ok bool) {
	for l := range strings.Lines(out) {
		l = strings.TrimSpace(l)
		switch {
		case strings.HasPrefix(l, "--- FAIL: "), strings.HasPrefix(l, "panic: "), strings.HasPrefix(l, "fatal error: "):
			if line == "" || !ok {
				line = l
			}
			ok = true
		case ok && strings.Contains(l, "_test.go:"):
			return line + ": " + l, true
		}
	}
	return line, ok
}
