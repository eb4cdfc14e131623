// Package e2e tests the whole system on real processes: the lightmetrics binary, its
// embedded store and other S3 servers, killed and restarted at any moment.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// bin is the lightmetrics binary under test.
var bin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lightmetrics-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	bin = filepath.Join(dir, "lightmetrics")
	build := exec.Command("go", "build", "-o", bin, "../../cmd/lightmetrics")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	code := 1
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build lightmetrics:", err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// size gives the size of a test: small in make test, large with make soak; the
// environment variable name overrides both.
func size(t *testing.T, name string, small, large int) int {
	t.Helper()
	if v := os.Getenv(name); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			t.Fatalf("%s=%q: want a positive number", name, v)
		}
		return n
	}
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		return large
	}
	return small
}

// newCluster makes a cluster that is stopped at the end of the test; a failed test
// prints the ends of the logs.
func newCluster(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	o.Bin, o.Dir = bin, t.TempDir()
	c, err := cluster.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.StopAll()
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(o.Dir, "*.log"))
			for _, l := range logs {
				out, _ := exec.Command("tail", "-n", "15", l).Output()
				t.Logf("-- %s\n%s", filepath.Base(l), out)
			}
		}
	})
	return c
}

// within bounds a step of a test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// makeFrame is load.Frame.
func makeFrame(t *testing.T, boot identity.Boot, metric string, seq uint64, rows int, start time.Time, value float64) []byte {
	t.Helper()
	f, err := load.Frame(boot, metric, seq, rows, start, value)
	must(t, err)
	return f
}
