// Package robustness breaks real processes on purpose: at every named failpoint, by
// pauses, by a store that answers wrongly or late, by a network that is cut. After it the bucket,
// the answers and every acknowledged batch are checked against what was sent.
package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
)

// bin is the lightmetrics binary under test.
var bin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lightmetrics-robustness-")
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

// soak says whether the long runs are wanted.
func soak() bool { return os.Getenv("LIGHTMETRICS_SOAK") != "" }

// size is small in CI and large with LIGHTMETRICS_SOAK; ROUNDS overrides both.
func size(t *testing.T, small, large int) int {
	t.Helper()
	if v := os.Getenv("ROUNDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			t.Fatalf("ROUNDS=%q: want a positive number", v)
		}
		return n
	}
	if soak() {
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

// newCluster makes a cluster of busy processes with small segments, so that rare steps
// come often. It is stopped at the end of the test; a failed test prints the ends of the logs.
func newCluster(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	o.Bin, o.Dir = bin, t.TempDir()
	o.ScrapeInterval, o.BatchAge = 50*time.Millisecond, time.Minute
	own := o.Adjust
	// Nobody in a cluster needs the store's events; the test takes them, so that the store sends some.
	events := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(events.Close)
	o.Adjust = func(process string, s map[string]any) {
		hurry(process, s)
		if process == "objectstore" {
			s["webhooks"] = []map[string]any{{"name": "accepted", "bucket": "lightmetrics", "prefix": "accepted/v1/", "url": events.URL}}
		}
		if own != nil {
			own(process, s)
		}
	}
	c, err := cluster.New(o)
	must(t, err)
	t.Cleanup(func() {
		c.StopAll()
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(o.Dir, "*.log"))
			for _, l := range logs {
				out, _ := exec.Command("tail", "-n", "12", l).Output()
				t.Logf("-- %s\n%s", filepath.Base(l), out)
			}
		}
	})
	return c
}

// agentBatch is the number of records of the agent's batches: each is full before it is old.
const agentBatch = 60

func hurry(process string, s map[string]any) {
	switch process {
	case "objectstore":
		s["segment"], s["inline_object"], s["reclaim_interval"], s["reclaim_below"] = "64KiB", "4KiB", "100ms", 0.75
	case "reconciler":
		s["journal"] = map[string]any{"poll_interval": "200ms", "idle_interval": "500ms", "fold_interval": "500ms", "retention": "1s"}
		s["scrub"] = map[string]any{"period": "1s"}
		s["derived"] = "objects" // more requests that can fail, and derived keys that must be right after all
		s["ledgers"] = map[string]any{"save_interval": "200ms"}
	case "query":
		s["follow"].(map[string]any)["poll_interval"] = "500ms"
	case "agent":
		s["batch"].(map[string]any)["max_records"] = agentBatch
		s["queue"] = map[string]any{"segment_bytes": "64KiB"}
		s["send"].(map[string]any)["backoff_initial"] = "50ms"
		s["send"].(map[string]any)["backoff_max"] = "200ms"
	}
}

// startAll starts every process, the agent too.
func startAll(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	must(t, c.StartStore(ctx))
	for i := range c.Collectors {
		must(t, c.StartCollector(ctx, i))
	}
	must(t, c.StartReconciler(ctx))
	must(t, c.StartQuery(ctx))
	must(t, c.StartAgent(ctx))
}

// askAllTheTime asks about what f sends until the end of the test, beside everything else, and wants every answer to be
// right. The returned function ends it and says what was asked.
func askAllTheTime(ctx context.Context, t *testing.T, c *cluster.Cluster, f *load.Fleet) (*load.Asker, func() load.Asked) {
	t.Helper()
	a, err := load.StartAsker(ctx, c, f)
	must(t, err)
	return a, func() load.Asked {
		t.Helper()
		asked, err := a.Stop()
		if err != nil {
			t.Error(err)
		}
		t.Logf("answers: %d complete, %d strong and %d with a token, %d batches proven; marked %v; refused %v",
			asked.Complete, asked.Strong, asked.Tokens, asked.Proven, asked.Partial, asked.Refused)
		if asked.Complete == 0 || asked.Proven == 0 {
			t.Error("the client has seen too little")
		}
		return asked
	}
}

// finish stops the load and the agent, and checks everything.
func finish(ctx context.Context, t *testing.T, c *cluster.Cluster, f *load.Fleet) {
	t.Helper()
	sent, err := f.Stop()
	if err != nil {
		t.Error(err)
	}
	if c.Agent != nil {
		must(t, cluster.Stop(&c.Agent))
	}
	began := time.Now()
	report, err := load.Check(ctx, c, sent)
	if err != nil {
		t.Error(err)
		return
	}
	judged(t, sent)
	t.Logf("%d batches acknowledged, %d duplicates, %d conflicts; the bucket has %d manifests, %d quarantined; checked in %v",
		len(sent.Acked), sent.Duplicates, sent.Conflicts, report.Manifests, report.Quarantined, time.Since(began).Round(time.Millisecond))
	lagZero(ctx, t, c)
}

// rest holds the load, stops the agent and checks everything as it is now; what was done since the
// last check goes into a failure.
func rest(ctx context.Context, t *testing.T, c *cluster.Cluster, f *load.Fleet, done string) {
	t.Helper()
	sent, err := f.Pause()
	defer f.Resume()
	if c.Agent != nil {
		err = errors.Join(err, cluster.Stop(&c.Agent))
	}
	if _, cerr := load.Check(ctx, c, &sent); cerr != nil {
		err = errors.Join(err, cerr)
	}
	if err != nil {
		t.Fatalf("%v\nsince the last check: %s", err, done)
	}
	lagZero(ctx, t, c)
}

// judged tells what the checks rest on, and refuses a load that shows nothing.
func judged(t *testing.T, sent *load.Sent) {
	t.Helper()
	h, _ := sent.Calls.Check() // what it finds is in load.Check's error
	if len(sent.Acked) == 0 || sent.Duplicates == 0 || sent.Conflicts == 0 || sent.Races == 0 || h.Identities < len(sent.Acked) && h.Dropped == 0 {
		t.Errorf("the load did too little: %d batches, %d duplicates, %d conflicts, %d races, history %+v",
			len(sent.Acked), sent.Duplicates, sent.Conflicts, sent.Races, h)
	}
	t.Logf("histories of %d identities are judged: %d answers, %d calls without one, %d accepted unseen, %d races",
		h.Identities, h.Answers, h.Open, h.Unseen, sent.Races)
}

// lagZero: a minute after the last fault nothing waits in the reconciler.
func lagZero(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	must(t, cluster.Poll(ctx, "the reconciler's queue to be empty", func() (bool, error) {
		st, err := reconcilerStatus(ctx, c)
		return err == nil && st.GetQueueLength() == 0 && st.GetOpenRepairs() == 0, fmt.Errorf("%v %w", st, err)
	}))
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
