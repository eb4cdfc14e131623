package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

var update = flag.Bool("update", false, "write docs/protocol/failpoints.md")

const (
	page  = "../../docs/protocol/failpoints.md"
	begin = "<!-- generated: go test ./cmd/lightmetrics -run Failpoints -update -->\n"
)

// TestFailpointsPageListsThemAll: the page is what the binary knows.
func TestFailpointsPageListsThemAll(t *testing.T) {
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(b), begin)
	if !ok {
		t.Fatalf("%s has no line %q", page, begin)
	}
	var out strings.Builder
	points := failpoint.Points()
	fmt.Fprintf(&out, "%s%s\n%d points.\n\n| Point | When it is reached | Driven by |\n|---|---|---|\n", head, begin, len(points))
	for _, p := range points {
		fmt.Fprintf(&out, "| `%s` | %s | `%s` |\n", p.Name, p.When, cmp.Or(p.Test, "test/robustness"))
	}
	if *update {
		if err := os.WriteFile(page, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if out.String() != string(b) {
		t.Errorf("%s is not what the binary knows: go test ./cmd/lightmetrics -run Failpoints -update", page)
	}
	if len(points) < 60 {
		t.Errorf("%d points, want at least 60", len(points))
	}
}

// TestFailpointsAreHitWhereTheyAreRegistered: every registered name stands at a place
// in the code, and every name in the code is registered; a typing error would be a point that is never reached.
func TestFailpointsAreHitWhereTheyAreRegistered(t *testing.T) {
	call := regexp.MustCompile(`failpoint\.(?:Hit|Err)\("([^"]+)"\)`)
	placed := map[string]string{}
	for _, root := range []string{"../../agent", "../../services", "../../internal"} {
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range call.FindAllStringSubmatch(string(b), -1) {
				if at, twice := placed[m[1]]; twice {
					t.Errorf("%s stands in %s and in %s", m[1], at, path)
				}
				placed[m[1]] = path
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range failpoint.Points() {
		if _, ok := placed[p.Name]; !ok && !strings.Contains(p.Name, ".store.") {
			t.Errorf("%s is registered and stands nowhere", p.Name)
		}
		delete(placed, p.Name)
	}
	for name, at := range placed {
		t.Errorf("%s in %s is not registered", name, at)
	}
}

// TestUnknownFailpointEndsTheStart: a misspelt name must not pass as a test that found nothing.
func TestUnknownFailpointEndsTheStart(t *testing.T) {
	if os.Getenv("FAILPOINTS_CHILD") != "" {
		os.Args = []string{"lightmetrics", "ingest", "--config.check", "--ingest.store.bucket=b"}
		main()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestUnknownFailpointEndsTheStart$")
	cmd.Env = append(os.Environ(), "FAILPOINTS_CHILD=1", failpoint.Env+"=ingest.no.such=kill")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), `no failpoint "ingest.no.such"`) {
		t.Errorf("%v\n%s", err, out)
	}
}
