package publish_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// mutant is a bug that the schedules must find: old becomes new when it is chosen.
type mutant struct {
	name string
	// seed to start from: near one that found it, so that this is quick.
	seed uint64
	// finds are the first words of violations that may find it, or the test that fails.
	finds    string
	file     string
	old, new string
}

// mutants are compiled into one binary; the variable mutant chooses one.
var mutants = []mutant{
	{"no-abort", 259, "missing", "collect.go", `rec, err := x.c.abort(ctx, n, "collected")`,
		`if mutant == "no-abort" { return dead, nil }; rec, err := x.c.abort(ctx, n, "collected")`},
	{"abort-unread", 88, "missing", "abort.go", "	if err == nil {\n		return a, nil",
		"	if err == nil || mutant == \"abort-unread\" {\n		return a, nil"},
	{"condemn-without-compare", 0, "TestAReferenceThatComesInBetween", "collect.go", `	if errors.Is(err, ErrChanged) {
		return verdict{Later,`, `	if errors.Is(err, ErrChanged) && mutant == "condemn-without-compare" { return verdict{action: Deleted}, nil }
	if errors.Is(err, ErrChanged) {
		return verdict{Later,`},
	{"delete-without-condemning", 20, "missing", "collect.go", `next := Record{Key: key, Condemned: true}`,
		`next := Record{Key: key, Condemned: true}; if mutant == "delete-without-condemning" { return verdict{action: Deleted}, nil }`},
	{"no-references", 16, "missing end", "prepare.go", `		if len(batch) == 0 {`, `		if len(batch) == 0 || mutant == "no-references" {`},
	{"references-unknown-is-done", 1590, "missing end", "prepare.go", `		case err != nil:
			return nil, err
		default:
			for _, o := range batch {`, `		case err != nil && mutant != "references-unknown-is-done":
			return nil, err
		default:
			for _, o := range batch {`},
	{"condemned-is-passed-over", 1, "missing end", "prepare.go", `if err := t.renew(ctx, batch, condemned.Keys); err != nil {`,
		`if mutant == "condemned-is-passed-over" { for _, o := range batch { o.referred = true } } else if err := t.renew(ctx, batch, condemned.Keys); err != nil {`},
	{"exists-is-right", 1, "missing", "prepare.go", `			if why != "" {`, `			if why != "" && mutant != "exists-is-right" {`},
	{"object-unknown-is-created", 1, "missing", "prepare.go", `		case err != nil:
			return err
		default:
			t.p.cfg.Events.objectCreated`, `		case err != nil && mutant != "object-unknown-is-created":
			return err
		default:
			t.p.cfg.Events.objectCreated`},
	{"commit-unread", 1, "answer", "publisher.go", `	if err == nil {
		return &Result{Set: t.set, Created: true}, nil`, `	if err == nil || mutant == "commit-unread" {
		return &Result{Set: t.set, Created: true}, nil`},
	{"absent-is-aborted", 1, "answer", "publisher.go", `	case r != nil:
		r.Created`, `	case r == nil && e == nil && mutant == "absent-is-aborted":
		return nil, ErrAborted
	case r != nil:
		r.Created`},
	{"order-unchecked", 180, "order fence", "publisher.go", `	if err := t.checkOrder(ctx); err != nil {`, `	if err := t.checkOrder(ctx); err != nil && mutant != "order-unchecked" {`},
	{"fence-unchecked", 180, "fence", "publisher.go", `case r.Set != nil && r.Set.Fence > t.pub.Fence:`, `case mutant != "fence-unchecked" && r.Set != nil && r.Set.Fence > t.pub.Fence:`},
	{"highest-is-removed", 1, "superseded", "collector.go", `	if by == 0 {`, `	if by == 0 && mutant != "highest-is-removed" {`},
	{"aborted-supersedes", 1, "superseded", "record.go", `if r != nil && r.Aborted == nil {`, `if r != nil && (r.Aborted == nil || mutant == "aborted-supersedes") {`},
	{"removed-is-live", 1, "collected", "collect.go", `	if r.Set != nil && r.Set.TransactionID`, `	if mutant == "removed-is-live" && r.Removed != nil { return live, nil }
	if r.Set != nil && r.Set.TransactionID`},
	{"committed-without-it-is-live", 543, "collected", "collect.go", `&& r.Set.Names(key) {`, `&& (r.Set.Names(key) || mutant == "committed-without-it-is-live") {`},
	{"sweep-forgets-superseded", 1, "collected", "sweep.go", `&& last.Name.Span == n.Span {`, `&& last.Name.Span == n.Span && mutant != "sweep-forgets-superseded" {`},
	{"founding-unchecked", 168, "missing", "mem/mem.go", `if r.founding == nil || r.founding.ID != id {`, `if mutant != "founding-unchecked" && (r.founding == nil || r.founding.ID != id) {`},
	{"transactions-under-way-survive", 858, "missing", "settle.go", `			if decided[n.Key()] {`, `			if decided[n.Key()] || mutant == "transactions-under-way-survive" {`},
	{"deletes-before-settled", 0, "TestNothingIsDeletedBeforeItIsSettled", "collector.go", `	if !x.founding.Settled {`, `	if !x.founding.Settled && mutant != "deletes-before-settled" {`},
	{"manifests-unread", 1, "missing", "collect.go", `if by := named[key]; by != "" {`, `if by := named[key]; by != "" && mutant != "manifests-unread" {`},
	{"generations-start-over", 0, "TestLateDeleteMeetsNoNewObject", "refs.go", `return f.Number << 16`, `if mutant == "generations-start-over" { return 0 }; return f.Number << 16`},
}

const mutantVariable = `package %s

import "os"

var mutant = os.Getenv("LIGHTMETRICS_MUTANT")
`

// overlay writes the changed sources and gives go build's overlay file.
func overlay(t *testing.T, dir string) string {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string][]byte{"mutant.go": fmt.Appendf(nil, mutantVariable, "publish"), "mem/mutant.go": fmt.Appendf(nil, mutantVariable, "mem")}
	for _, m := range mutants {
		src := sources[m.file]
		if src == nil {
			if src, err = os.ReadFile(m.file); err != nil {
				t.Fatal(err)
			}
		}
		if n := bytes.Count(src, []byte(m.old)); n != 1 {
			t.Fatalf("%s: the text to replace is in %s %d times", m.name, m.file, n)
		}
		sources[m.file] = bytes.Replace(src, []byte(m.old), []byte(m.new), 1)
	}
	replace := map[string]string{}
	for file, src := range sources {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(to, src, 0o644); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, file)] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A bug that the schedules do not find is a hole in them.
func TestMutantsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the package once more")
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "mutants")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay(t, dir), "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := play(t, binary, mutant{seed: 1}, 20); err != nil {
		t.Fatalf("without a mutant: %v\n%s", err, out)
	}
	for _, m := range mutants {
		out, err := play(t, binary, m, 4000)
		if m.seed == 0 {
			if err == nil || !strings.Contains(out, "--- FAIL: "+m.finds) {
				t.Errorf("%s: not found by %s: %v\n%.2000s", m.name, m.finds, err, out)
			}
			continue
		}
		line := ""
		for l := range strings.Lines(out) {
			if strings.Contains(l, "seed ") {
				line = strings.TrimSpace(l)
				break
			}
		}
		_, found, _ := strings.Cut(line, "seed ")
		_, violation, ok := strings.Cut(found, ": ")
		word, _, _ := strings.Cut(violation, ":")
		if err == nil || !ok || !strings.Contains(m.finds, word) {
			t.Errorf("%s: not found as %q: %v\n%.2000s", m.name, m.finds, err, out)
			continue
		}
		t.Logf("%-32s %.150s", m.name, line)
	}
}

func play(t *testing.T, binary string, m mutant, schedules int) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	run := "TestSchedules"
	if m.seed == 0 {
		run = m.finds
	}
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^"+run+"$", "-test.v")
	cmd.Env = append(os.Environ(), "LIGHTMETRICS_MUTANT="+m.name, fmt.Sprintf("LIGHTMETRICS_SCHEDULES=%d", schedules), fmt.Sprintf("LIGHTMETRICS_SEED=%d", m.seed))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
