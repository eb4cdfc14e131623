// Package regions runs systems of several regions as real processes, breaks them on purpose, and judges every answer
// that senders got: docs/protocol/linearizer.md has the promises. Tests mostly wait, so two run at a time on two cores.
package regions

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/netns"
)

// bin is the lightmetrics binary under test.
var bin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lightmetrics-regions-")
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

// size is small in CI and large with LIGHTMETRICS_SOAK; the variable of this name overrides both.
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

// seeded gives the seed of a test, from SEED where that is set, and prints it.
func seeded(t *testing.T) (uint64, *rand.Rand) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("SEED=%q: %v", v, err)
		}
		seed = n
	}
	t.Logf("SEED=%d", seed)
	return seed, rand.New(rand.NewPCG(seed, 1))
}

// newRegions makes three regions, in network namespaces where this machine can make them. They are stopped at the end of
// the test; a failed test prints the ends of the logs.
func newRegions(t *testing.T, o cluster.RegionsOptions) *cluster.Regions {
	t.Helper()
	o.Bin, o.Dir, o.Collectors = bin, t.TempDir(), 2
	if err := netns.Available(); err != nil || os.Getenv("NAMESPACES") == "0" || o.Delay > 0 {
		t.Logf("regions on loopback, behind a gate (%v)", err)
	} else {
		n, err := netns.New()
		must(t, err)
		t.Cleanup(func() { must(t, n.Close()) })
		o.Net = n
	}
	own := o.Adjust
	o.Adjust = func(process string, s map[string]any) {
		hurry(filepath.Base(process), s)
		if own != nil {
			own(process, s)
		}
	}
	r, err := cluster.NewRegions(o)
	must(t, err)
	t.Cleanup(func() {
		r.StopAll()
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(o.Dir, "*", "*.log"))
			for _, l := range logs {
				out, _ := exec.Command("tail", "-n", "12", l).Output()
				t.Logf("-- %s/%s\n%s", filepath.Base(filepath.Dir(l)), filepath.Base(l), out)
			}
		}
	})
	return r
}

// hurry makes what happens seldom happen often.
func hurry(process string, s map[string]any) {
	switch process {
	case "collector-1", "collector-2":
		// A collector gives up on what is cut within the length of a fault.
		s["store"].(map[string]any)["request_timeout"] = "2s"
		s["accept_timeout"] = "4s"
		if s["acceptance"] == "global" {
			s["take_over"] = "2s"
		}
	case "reconciler":
		s["journal"] = map[string]any{"poll_interval": "200ms", "idle_interval": "500ms", "fold_interval": "1s", "retention": "5s"}
		s["ledgers"] = map[string]any{"save_interval": "500ms"}
		if s["region"] != nil {
			s["claims"] = map[string]any{"interval": "1s", "age": "3s", "take_over": "15s"}
		}
	case "query":
		s["follow"].(map[string]any)["poll_interval"] = "500ms"
	}
}

// addresses of the collectors over gRPC, region by region.
func addresses(r *cluster.Regions) (all [][]string) {
	for _, c := range r.Of {
		var region []string
		for _, a := range c.Addr.Collectors {
			region = append(region, a.GRPC)
		}
		all = append(all, region)
	}
	return all
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
