package models

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const source = "../../docs/protocol/models"

// limit of one variant; the whole run at small scope takes about three minutes of CPU time.
const limit = 15 * time.Minute

// TestModels checks every variant; LIGHTMETRICS_SOAK=1 takes the larger scopes.
func TestModels(t *testing.T) {
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed (Debian: apt-get install spin gcc): the protocol models are not checked here", tool)
		}
	}
	vs := Variants(os.Getenv("LIGHTMETRICS_SOAK") == "1")
	results := make([]Result, len(vs))
	t.Run("variants", func(t *testing.T) {
		for i, v := range vs {
			t.Run(v.Model+" "+v.Name+" "+v.Scope, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				r, err := Run(ctx, source, t.TempDir(), v)
				if err != nil {
					t.Fatal(err)
				}
				results[i] = r
				if !r.Holds() {
					t.Errorf("%s\n%s", r.Verdict(), r.Output)
				}
			})
		}
	})
	table(results)
	reachable(t, results)
}

func table(results []Result) {
	fmt.Printf("%-11s %-33s %-64s %10s %6s  %s\n", "model", "variant", "scope", "states", "CPU s", "verdict")
	for _, r := range results {
		if r.Output == "" {
			continue // failed before the search, and said so
		}
		fmt.Printf("%-11s %-33s %-64s %10d %6.1f  %s\n", r.Model, r.Name, strings.ReplaceAll(r.Scope, "-D", ""), r.States, r.CPU.Seconds(), r.Verdict())
	}
}

// reachable: a model whose steps never happen proves nothing. Every statement of a
// designed protocol is reached in at least one of its scopes.
func reachable(t *testing.T, results []Result) {
	missed := map[string]map[string]int{}
	scopes := map[string]int{}
	for _, r := range results {
		if r.Name != Designed || r.Output == "" {
			continue
		}
		if r.Whole && len(r.Unreached) > 0 {
			t.Errorf("%s %s: never reached in this scope: %q", r.Model, r.Scope, r.Unreached)
		}
		scopes[r.Model]++
		here := map[string]bool{} // a statement of an inline stands in several places
		for _, at := range r.Unreached {
			// The state's number differs between scopes; proctype, line and statement do not.
			head, rest, _ := strings.Cut(at, ", state ")
			_, stmt, _ := strings.Cut(rest, ", ")
			here[head+" "+stmt] = true
		}
		if missed[r.Model] == nil {
			missed[r.Model] = map[string]int{}
		}
		for at := range here {
			missed[r.Model][at]++
		}
	}
	for model, stmts := range missed {
		for at, n := range stmts {
			if n >= scopes[model] {
				t.Errorf("%s: never reached in any scope: %s", model, at)
			}
		}
	}
}

// TestReadmeListsEveryVariant: the documentation names what is run, and nothing else is run.
func TestReadmeListsEveryVariant(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(source, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range Variants(true) {
		if v.Name == Designed {
			continue
		}
		if !strings.Contains(string(b), "`"+v.Name+"`") {
			t.Errorf("README.md does not list %s of %s", v.Name, v.Model)
		}
		model, err := os.ReadFile(filepath.Join(source, v.Model+".pml"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(model), v.Name) {
			t.Errorf("%s.pml has no variant %s", v.Model, v.Name)
		}
	}
}

// TestParse: a search that was cut short, or a verifier that died, is no pass.
func TestParse(t *testing.T) {
	const ok = "State-vector 88 byte, depth reached 117, errors: 0\n  5000 states, stored\n"
	for name, c := range map[string]struct {
		breaks bool
		output string
		holds  bool
	}{
		"all states":               {false, ok, true},
		"depth too small":          {false, "error: max search depth too small\n" + ok, false},
		"out of memory":            {false, "pan: out of memory\n" + ok, false},
		"not completed":            {false, "Warning: Search not completed\n" + ok, false},
		"hardly any state":         {false, "errors: 0\n 12 states, stored\n", false},
		"violation":                {false, "pan:1: assertion violated (x) (at depth 9)\nerrors: 1\n 5000 states, stored\n", false},
		"mutant violated":          {true, "pan:1: assertion violated (x) (at depth 9)\nerrors: 1\n 50 states, stored\n", true},
		"mutant survives":          {true, ok, false},
		"mutant merely gets stuck": {true, "pan:1: invalid end state (at depth 9)\nerrors: 1\n 50 states, stored\n", false},
	} {
		r := Result{Variant: Variant{Breaks: c.breaks}, Output: c.output}
		if err := r.parse(); err != nil || r.Holds() != c.holds {
			t.Errorf("%s: %v, holds is %v", name, err, r.Holds())
		}
	}
	if r := (&Result{Output: "Segmentation fault"}); r.parse() == nil {
		t.Error("output without a result was parsed")
	}
}
