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
	// finds are the first words of violations that may find it.
	finds    string
	file     string
	old, new string
}

// mutants are compiled into one binary; the variable mutant chooses one.
var mutants = []mutant{
	{"no-abort", "missing", "collect.go", `rec, err := x.c.abort(ctx, n, "collected")`,
		`if mutant == "no-abort" { return dead, nil }; rec, err := x.c.abort(ctx, n, "collected")`},
	{"abort-unread", "missing", "abort.go", "	if err == nil {\n		return a, nil",
		"	if err == nil || mutant == \"abort-unread\" {\n		return a, nil"},
	{"condemn-without-compare", "missing", "collect.go", `	if errors.Is(err, ErrChanged) {
		return verdict{Later,`, `	if errors.Is(err, ErrChanged) && mutant == "condemn-without-compare" { return verdict{action: Deleted}, nil }
	if errors.Is(err, ErrChanged) {
		return verdict{Later,`},
	{"delete-without-condemning", "missing", "collect.go", `next := Record{Key: key, Condemned: true}`,
		`next := Record{Key: key, Condemned: true}; if mutant == "delete-without-condemning" { return verdict{action: Deleted}, nil }`},
	{"no-references", "missing", "prepare.go", `		if len(batch) == 0 {`, `		if len(batch) == 0 || mutant == "no-references" {`},
	{"references-unknown-is-done", "missing", "prepare.go", `		case err != nil:
			return nil, err
		default:
			for _, o := range batch {`, `		case err != nil && mutant != "references-unknown-is-done":
			return nil, err
		default:
			for _, o := range batch {`},
	{"condemned-is-passed-over", "missing", "prepare.go", `if err := t.renew(ctx, batch, condemned.Keys); err != nil {`,
		`if mutant == "condemned-is-passed-over" { for _, o := range batch { o.referred = true } } else if err := t.renew(ctx, batch, condemned.Keys); err != nil {`},
	{"exists-is-right", "missing", "prepare.go", `			if why != "" {`, `			if why != "" && mutant != "exists-is-right" {`},
	{"object-unknown-is-created", "missing", "prepare.go", `		case err != nil:
			return err
		default:
			t.p.cfg.Events.objectCreated`, `		case err != nil && mutant != "object-unknown-is-created":
			return err
		default:
			t.p.cfg.Events.objectCreated`},
	{"commit-unread", "answer", "publisher.go", `	if err == nil {
		return &Result{Set: t.set, Created: true}, nil`, `	if err == nil || mutant == "commit-unread" {
		return &Result{Set: t.set, Created: true}, nil`},
	{"absent-is-aborted", "answer", "publisher.go", `	case r != nil:
		r.Created`, `	case r == nil && e == nil && mutant == "absent-is-aborted":
		return nil, ErrAborted
	case r != nil:
		r.Created`},
	{"order-unchecked", "order fence", "publisher.go", `	if err := t.checkOrder(ctx); err != nil {`, `	if err := t.checkOrder(ctx); err != nil && mutant != "order-unchecked" {`},
	{"fence-unchecked", "fence", "publisher.go", `case r.Set != nil && r.Set.Fence > t.pub.Fence:`, `case mutant != "fence-unchecked" && r.Set != nil && r.Set.Fence > t.pub.Fence:`},
	{"highest-is-removed", "superseded", "collector.go", `	if by == 0 {`, `	if by == 0 && mutant != "highest-is-removed" {`},
	{"aborted-supersedes", "superseded", "record.go", `if r != nil && r.Aborted == nil {`, `if r != nil && (r.Aborted == nil || mutant == "aborted-supersedes") {`},
	{"removed-is-live", "collected", "collect.go", `	if r.Set != nil && r.Set.TransactionID`, `	if mutant == "removed-is-live" && r.Removed != nil { return live, nil }
	if r.Set != nil && r.Set.TransactionID`},
	{"committed-without-it-is-live", "collected", "collect.go", `&& r.Set.Names(key) {`, `&& (r.Set.Names(key) || mutant == "committed-without-it-is-live") {`},
	{"sweep-forgets-superseded", "collected", "sweep.go", `&& last.Name.Span == n.Span {`, `&& last.Name.Span == n.Span && mutant != "sweep-forgets-superseded" {`},
	{"founding-unchecked", "missing", "mem/mem.go", `if r.founding == nil || r.founding.ID != id {`, `if mutant != "founding-unchecked" && (r.founding == nil || r.founding.ID != id) {`},
	{"transactions-under-way-survive", "missing", "settle.go", `			if decided[n.Key()] {`, `			if decided[n.Key()] || mutant == "transactions-under-way-survive" {`},
	{"deletes-before-settled", "missing", "collector.go", `	if !x.founding.Settled {`, `	if !x.founding.Settled && mutant != "deletes-before-settled" {`},
	{"manifests-unread", "missing", "collect.go", `if by := named[key]; by != "" {`, `if by := named[key]; by != "" && mutant != "manifests-unread" {`},
	{"generations-start-over", "missing", "refs.go", `return f.Number << 16`, `if mutant == "generations-start-over" { return 0 }; return f.Number << 16`},
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
	if out, err := play(t, binary, "", 20); err != nil {
		t.Fatalf("without a mutant: %v\n%s", err, out)
	}
	for _, m := range mutants {
		out, err := play(t, binary, m.name, 4000)
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

func play(t *testing.T, binary, name string, schedules int) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^TestSchedules$", "-test.v")
	cmd.Env = append(os.Environ(), "LIGHTMETRICS_MUTANT="+name, fmt.Sprintf("LIGHTMETRICS_SCHEDULES=%d", schedules), "LIGHTMETRICS_SEED=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
