package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// collecting has reports soon, and sweeps only when they are asked for.
func collecting(adjust func(string, map[string]any)) func(string, map[string]any) {
	return func(process string, settings map[string]any) {
		adjust(process, settings)
		switch process {
		case "reconciler":
			settings["gc"] = map[string]any{"delay": "500ms", "min_age": "100ms", "sweep_interval": "0s", "poll_interval": "200ms", "rate": 5000}
		case "collector-1":
			settings["orphans"] = map[string]any{"report_interval": "300ms"}
		}
	}
}

// checkGarbage: what a collector has reported is collected, and so is, by a sweep that an operator asks for, the blob of a
// collector that was killed before its manifest. lmctl, the API and the metrics say so.
func checkGarbage(ctx context.Context, t *testing.T, c *cluster.Cluster, reported int) {
	t.Helper()
	store, err := c.OpenStore(ctx)
	must(t, err)
	blobs := func(action, source string) float64 {
		return metric(ctx, t, c.Addr.ReconcilerHTTP, fmt.Sprintf(`lightmetrics_reconciler_gc_blobs_total{action=%q,source=%q}`, action, source))
	}
	must(t, cluster.Poll(ctx, "what was reported to be collected", func() (bool, error) {
		n := blobs("DELETED", "REPORTS")
		return n == float64(reported), fmt.Errorf("%v of %d", n, reported)
	}))
	body := makeFrame(t, identity.Boot{Agent: "killed", Boot: "boot"}, "requests", 1, 1, time.Now().Add(-time.Hour), 1)
	orphan := layout.Blob(identity.Sum(body), 0)
	_, err = store.Create(ctx, orphan, body, objstore.PutOptions{})
	must(t, err)
	must(t, cluster.Poll(ctx, "the orphan to be collected", func() (bool, error) {
		// Again, as one that began before the blob was old enough leaves it.
		resp, err := http.Post("http://"+c.Addr.ReconcilerHTTP+"/v1/gc/sweep", "application/json", strings.NewReader("{}"))
		if err != nil {
			return false, err
		}
		text, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK {
			return false, fmt.Errorf("%s: %s, %v", resp.Status, text, err)
		}
		_, err = store.Head(ctx, orphan)
		return errors.Is(err, objstore.ErrNotFound), err
	}))

	bin := filepath.Join(t.TempDir(), "lmctl")
	out, err := exec.CommandContext(ctx, "go", "build", "-o", bin, "../../cmd/lmctl").CombinedOutput()
	if err != nil {
		t.Fatalf("build lmctl: %v\n%s", err, out)
	}
	at := c.StoreConfig()
	lmctl := func(into any, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, bin, append(args, at.Endpoint+"/"+at.Bucket, "-o", "json")...)
		cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID="+at.AccessKeyID, "AWS_SECRET_ACCESS_KEY="+at.SecretAccessKey.Reveal())
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, into)
		}
		if err != nil {
			t.Fatalf("lmctl %q: %v\n%s", args, err, out)
		}
	}
	var state struct {
		Deleted uint64 `json:"deleted_blobs"`
		Markers uint64 `json:"markers"`
		Holds   bool   `json:"breaker_holds"`
	}
	// The blob is gone before the state says so.
	must(t, cluster.Poll(ctx, "the state to have it", func() (bool, error) {
		lmctl(&state, "gc", "status")
		return state.Deleted == uint64(reported)+1, fmt.Errorf("%+v", state)
	}))
	if state.Markers < state.Deleted || state.Holds {
		t.Errorf("lmctl gc status: %+v", state)
	}
	var entries []struct{ Key, Action, Source, Plan string }
	lmctl(&entries, "gc", "log", "--limit", "1000")
	counts := map[string]int{}
	for _, e := range entries {
		counts[e.Source+" "+e.Action]++
		if e.Key == orphan && e.Action == "DELETED" {
			counts["the orphan"]++
		}
	}
	if counts["REPORTS CONDEMNED"] != reported || counts["REPORTS DELETED"] != reported || counts["SWEEP DELETED"] != 1 || counts["the orphan"] != 1 {
		t.Errorf("lmctl gc log: %v", counts)
	}
	if n, bytes := blobs("DELETED", "SWEEP"), metric(ctx, t, c.Addr.ReconcilerHTTP, "lightmetrics_reconciler_gc_deleted_bytes_total"); n != 1 || bytes <= 0 {
		t.Errorf("metrics: %v deleted by sweeps, %v bytes in all", n, bytes)
	}
}
