// Command house measures how the tree is built: its size, how complex and how reachable its
// functions are, what staticcheck says, and which packages have files that depend on each
// other in both directions. It prints one Markdown table, so that two revisions can be laid
// side by side (docs/house.md does).
//
// It runs from the root of the module that it measures:
//
//	make house
//
// Everything but staticcheck and deadcode, which it runs as programs from bin/, is computed
// here from the syntax trees and types of the packages.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	root := flag.String("root", ".", "the root of the module to measure")
	bin := flag.String("bin", "bin", "where staticcheck and deadcode are")
	verbose := flag.Bool("v", false, "name what is counted: complex functions, unreachable ones, findings")
	strict := flag.Bool("strict", false, "exit 1 where product code has an unreachable function")
	flag.Parse()
	if err := run(*root, *bin, *verbose, *strict); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
}

func run(root, bin string, verbose, strict bool) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	m, err := measure(root)
	if err != nil {
		return err
	}
	dead, err := lines(root, filepath.Join(bin, "deadcode"), "./...")
	if err != nil {
		return err
	}
	dead = slices.DeleteFunc(dead, func(l string) bool { return !strings.Contains(l, "unreachable func") || testKit(l) })
	found, err := lines(root, filepath.Join(bin, "staticcheck"), "./...")
	if err != nil {
		return err
	}
	print := func(name, form string, args ...any) { fmt.Printf("| %s | %s |\n", name, fmt.Sprintf(form, args...)) }
	fmt.Print("| Measure | Value |\n|---|---|\n")
	print("packages / files / lines, without tests and generated code", "%d / %d / %d", m.packages, len(m.files), sum(m.files))
	print("lines of tests", "%d", m.testLines)
	print("lines of a file: median / p90 / p99 / most", "%d / %d / %d / %d", at(m.files, 50), at(m.files, 90), at(m.files, 99), at(m.files, 100))
	print("lines of a function: median / p99 / most", "%d / %d / %d", at(m.funcs, 50), at(m.funcs, 99), at(m.funcs, 100))
	print("files of a package: median / p90 / most", "%d / %d / %d", at(m.perPackage, 50), at(m.perPackage, 90), at(m.perPackage, 100))
	print("functions over cognitive complexity 30", "%d", len(m.complex))
	print("comment lines inside functions per 1,000 lines", "%.0f", 1000*float64(m.inner)/float64(sum(m.files)))
	print("functions that no main program reaches (test kits apart)", "%d", len(dead))
	print("findings of staticcheck", "%d", len(found))
	var r room
	for name, a := range m.arrows {
		if name == "services/rollup" || strings.HasPrefix(name, "services/rollup/internal/") {
			r.files, r.arrows, r.back = r.files+a.files, r.arrows+a.arrows, r.back+a.back
		}
	}
	print("services/rollup and its internal packages: files / arrows between files of a package / that run back", "%d / %d / %d", r.files, r.arrows, r.back)
	worst := make([]room, 0, len(m.arrows))
	for _, a := range m.arrows {
		worst = append(worst, a)
	}
	slices.SortFunc(worst, func(a, b room) int {
		return cmp.Or(cmp.Compare(b.back, a.back), cmp.Compare(a.name, b.name))
	})
	var most []string
	for _, a := range worst[:min(5, len(worst))] {
		most = append(most, fmt.Sprintf("%s %d", a.name, a.back))
	}
	print("packages with most arrows that run back", "%s", strings.Join(most, ", "))
	if verbose {
		for _, l := range slices.Concat(m.complex, dead, found) {
			fmt.Println(l)
		}
	}
	if strict && len(dead) > 0 {
		return fmt.Errorf("%d functions are reached by no main program:\n%s", len(dead), strings.Join(dead, "\n"))
	}
	return nil
}

// kits are packages that only tests import, and the public client, which other people's
// programs call: no main program is expected to reach all of them.
var kits = regexp.MustCompile(`^(internal/(harness|lint|docgen|dashboard)|test|client)/|^[a-z]+_test\.go|(^|/)[a-z]*test/|^internal/objstore/fault/|^internal/platform/vfs/errorfs/|^proto/gen/`)

func testKit(line string) bool { return kits.MatchString(strings.TrimPrefix(line, "./")) }

// lines runs a checker, which exits non-zero when it found something, and gives what it printed.
func lines(dir, name string, args ...string) ([]string, error) {
	c := exec.Command(name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GOWORK=off")
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		return nil, fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, errs.String())
	}
	var ls []string
	for l := range strings.Lines(out.String()) {
		if l = strings.TrimSpace(l); l != "" {
			ls = append(ls, l)
		}
	}
	if err != nil && len(ls) == 0 {
		return nil, fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, errs.String())
	}
	return ls, nil
}

func sum(ns []int) (s int) {
	for _, n := range ns {
		s += n
	}
	return s
}

// at gives the p-th percentile of ns.
func at(ns []int, p int) int {
	if len(ns) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(ns))
	return s[min(len(s)-1, len(s)*p/100)]
}
