package work_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutants are known bugs; each replaces a text that stands exactly once in a file.
var mutants = []struct{ name, file, old, new string }{
	{"a completed job is created again", "decide.go", "case r.Number <= log.Last:", "case false:"},
	{"changes compare nothing", "decide.go", "cur != nil && cur.Increment == r.Increment && cur.Owner == r.Owner", "cur != nil"},
	{"a checkpoint keeps the old state", "decide.go", "n.State, n.Live, n.Attempts = state, true, 0", "n.Live, n.Attempts = true, 0"},
	{"progress does not make attempts good", "decide.go", "n.State, n.Live, n.Attempts = state, true, 0", "n.State, n.Live = state, true"},
	{"done does not record the number", "decide.go", "log.Last = max(log.Last, r.Number)", ""},
	{"a smaller fence claims", "decide.go", "case c.Fence < cur.Fence:", "case false:"},
	{"dense jobs do not wait", "worker.go", "return k.Number == log.Last+1, nil", "return true, nil"},
	{"sparse jobs do not wait", "worker.go", "return r.Number >= k.Number, nil // the log's lowest", "return true, nil"},
	{"a crashing job is tried for ever", "worker.go", "row.Attempts >= w.cfg.MaxAttempts && !row.Live", "false && !row.Live"},
	{"a redriven job is buried unseen", "worker.go", "(m == nil || m.Tries > 1)", "true"},
	{"a lost worker goes on", "job.go", "		j.lost = err\n		return err\n", "		return nil\n"},
	{"an unknown end deletes the message", "job.go", "			unknown = true\n		case errors.Is(err, ErrUnavailable):\n		case unknown", "			return Completed, w.settle(j.msg, func(m Message) error { return w.queue.Bury(ctx, m, \"\") })\n		case unknown"},
	{"a hand-over counts as an attempt", "job.go", "w.table.Release(ctx, j.row, true)", "w.table.Release(ctx, j.row, false)"},
	{"the sweep does not note what it sent", "sweep.go", "n.Sent++", "n.Sent++\n	return nil"},
	{"the sweep wakes poison", "sweep.go", "case r.Attempts >= s.MaxAttempts:", "case false:"},
	{"submit sends without a row", "sweep.go", "switch _, err := t.Create(ctx, r, nil); {", "switch err := error(nil); {"},
}

// TestMutantsAreCaught plants each bug and wants this package's tests to fail.
func TestMutantsAreCaught(t *testing.T) {
	if os.Getenv("WORK_MUTANT") != "" {
		return // this is the mutant
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("the go tool, which plants the bugs, is not installed")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			src, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(string(src), m.old) != 1 {
				t.Fatalf("%q stands %d times in %s", m.old, strings.Count(string(src), m.old), m.file)
			}
			tmp := t.TempDir()
			file, overlay, program := filepath.Join(tmp, m.file), filepath.Join(tmp, "overlay.json"), filepath.Join(tmp, "mutant.test")
			list, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(dir, m.file): file}})
			if err != nil {
				t.Fatal(err)
			}
			for name, b := range map[string][]byte{file: []byte(strings.Replace(string(src), m.old, m.new, 1)), overlay: list} {
				if err := os.WriteFile(name, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if out, err := exec.CommandContext(t.Context(), goTool, "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
				t.Fatalf("mutant %d does not compile: %v\n%s", i, err, out)
			}
			cmd := exec.CommandContext(t.Context(), program, "-test.failfast", "-test.skip", "Chain", "-test.timeout", "60s")
			cmd.Env = append(os.Environ(), "WORK_MUTANT=1")
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatal("survived")
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "_test.go:") {
					t.Log(strings.TrimSpace(line))
					break
				}
			}
		})
	}
}
