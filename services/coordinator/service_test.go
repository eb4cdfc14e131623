package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/shard"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	must(t, err)
	return resp.StatusCode, string(b)
}

// TestOperatorsFaces: lists, drain and its end, JSON, readiness, metrics.
func TestOperatorsFaces(t *testing.T) {
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	s := start(t, quick(t.TempDir()), nil)
	c, base := s.client(), "http://"+s.HTTPAddr()
	b := newBook(t, 6)
	b.work("w0", s.addr())
	b.work("w1", s.addr())
	until(t, "two workers with all shards", func() bool { return b.balanced("w0", "w1") })
	until(t, "readiness", func() bool { code, _ := get(t, base+"/-/ready"); return code == http.StatusOK })

	var shards struct {
		Shards []struct {
			Owner, Target, Epoch, Fence string
		}
	}
	until(t, "the list of shards to be at rest", func() bool {
		code, body := get(t, base+"/v1/ownership/rollup/shards")
		if code != http.StatusOK {
			t.Fatalf("%d: %s", code, body)
		}
		must(t, json.Unmarshal([]byte(body), &shards))
		for _, sh := range shards.Shards {
			if sh.Owner == "" || sh.Owner != sh.Target || sh.Epoch == "0" || sh.Fence == "0" {
				return false
			}
		}
		return len(shards.Shards) == 6
	})
	if code, body := get(t, base+"/v1/ownership/cook/shards"); code != http.StatusBadRequest {
		t.Errorf("an unknown kind: %d: %s", code, body)
	}

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.Drain(ctx, &coordinatorv1.DrainRequest{Kind: "rollup", WorkerId: "w1"})
	must(t, err)
	until(t, "the drained worker to hold nothing", func() bool { return b.balanced("w0") })
	ws, err := c.ListWorkers(ctx, &coordinatorv1.ListWorkersRequest{Kind: "rollup"})
	must(t, err)
	if len(ws.GetWorkers()) != 2 || !ws.GetWorkers()[1].GetDraining() || ws.GetWorkers()[1].GetAddress() != "here:w1" {
		t.Errorf("workers: %v", ws.GetWorkers())
	}
	_, err = c.Drain(ctx, &coordinatorv1.DrainRequest{Kind: "rollup", WorkerId: "w1", Undo: true})
	must(t, err)
	until(t, "its shards again", func() bool { return b.balanced("w0", "w1") })
	if _, err := c.Drain(ctx, &coordinatorv1.DrainRequest{Kind: "rollup", WorkerId: "w7"}); status.Code(err) != codes.NotFound {
		t.Errorf("drain of nobody: %v", err)
	}
	checkMoves(t, 6, moves(t, c))

	_, text := get(t, base+"/metrics")
	for _, name := range []string{"leading 1", "etcd_up 1", `workers{kind="rollup"} 2`, `shards{kind="rollup"} 6`, `held_shards{kind="rollup"}`,
		`misplaced_shards{kind="rollup"}`, `assignments_total{kind="rollup"}`, `moved_shards_total{kind="rollup"}`, `grants_total{kind="rollup"}`, `renewals_total{result="ok"}`} {
		if !strings.Contains(text, "lightmetrics_coordinator_"+name) {
			t.Errorf("no metric lightmetrics_coordinator_%s", name)
		}
	}
	if problems, err := testutil.GatherAndLint(s.tel.Registry); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
}

// TestRefusals: what can never be right ends the worker's Run; what the stream may not say ends the stream.
func TestRefusals(t *testing.T) {
	s := start(t, quick(t.TempDir()), nil)
	b := newBook(t, 4)
	b.work("w0", s.addr())
	until(t, "all shards", func() bool { return b.balanced("w0") })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	cfg := coordinator.DefaultConfig()
	cfg.Addresses, cfg.WorkerID = []string{s.addr()}, "w1"
	for what, o := range map[string]struct {
		kind   string
		worker string
		shards uint32
		reason string
	}{
		"another number of shards": {"rollup", "w1", 5, coordinator.ReasonShardCount},
		"an unknown kind":          {"cook", "w1", 4, rpc.ReasonInvalidArgument},
		"a bad name":               {"rollup", "w/1", 4, rpc.ReasonInvalidArgument},
	} {
		cfg.WorkerID = o.worker
		owner, err := coordinator.NewOwner(cfg, o.kind, o.shards, coordinator.Deps{})
		must(t, err)
		if err := owner.Run(ctx, nil); rpc.Reason(err) != o.reason {
			t.Errorf("%s: %v", what, err)
		}
	}

	register := func(r *coordinatorv1.RegisterWorker) *coordinatorv1.OwnRequest {
		return &coordinatorv1.OwnRequest{Message: &coordinatorv1.OwnRequest_Register{Register: r}}
	}
	good := register(&coordinatorv1.RegisterWorker{Kind: "rollup", WorkerId: "w", Shards: 4})
	for what, c := range map[string]struct {
		send   []*coordinatorv1.OwnRequest
		reason string
	}{
		"keep_alive first": {[]*coordinatorv1.OwnRequest{{Message: &coordinatorv1.OwnRequest_KeepAlive{KeepAlive: &coordinatorv1.KeepAlive{}}}}, rpc.ReasonInvalidArgument},
		"nothing first":    {[]*coordinatorv1.OwnRequest{{}}, rpc.ReasonInvalidArgument},
		"register twice":   {[]*coordinatorv1.OwnRequest{good, good}, rpc.ReasonInvalidArgument},
		"an old session": {[]*coordinatorv1.OwnRequest{register(&coordinatorv1.RegisterWorker{Kind: "rollup", WorkerId: "w", Shards: 4,
			Session: "0000000000000001-x"})}, coordinator.ReasonSessionLost},
		"a long address": {[]*coordinatorv1.OwnRequest{register(&coordinatorv1.RegisterWorker{Kind: "rollup", WorkerId: "w", Shards: 4,
			Address: strings.Repeat("x", 1000)})}, rpc.ReasonInvalidArgument},
	} {
		stream, err := s.client().Own(ctx)
		must(t, err)
		for _, m := range c.send {
			must(t, stream.Send(m))
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if rpc.Reason(err) != c.reason {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !b.balanced("w0") {
		t.Error("a refused worker has changed something")
	}
}

// TestWorkThatReturns: a shard whose work returned by itself is given back, and granted again.
func TestWorkThatReturns(t *testing.T) {
	s := start(t, quick(t.TempDir()), nil)
	cfg := coordinator.DefaultConfig()
	cfg.Addresses, cfg.WorkerID = []string{s.addr()}, "w0"
	o, err := coordinator.NewOwner(cfg, "rollup", 2, coordinator.Deps{})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	epochs := map[shard.ID][]uint64{}
	active := map[shard.ID]int{}
	done := make(chan error, 1)
	go func() {
		done <- o.Run(ctx, func(ctx context.Context, g coordinator.Grant) error {
			mu.Lock()
			epochs[g.Shard] = append(epochs[g.Shard], g.Epoch)
			if active[g.Shard]++; active[g.Shard] > 1 {
				t.Errorf("work on shard %s runs twice", g.Shard)
			}
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				active[g.Shard]--
			}()
			if err := g.Check(); err != nil {
				t.Error(err)
			}
			if g.Shard == 0 {
				return errors.New("can't")
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), coordinator.ErrDraining) {
				t.Errorf("ended by %v", context.Cause(ctx))
			}
			return nil
		})
	}()
	until(t, "the shard to come again", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(epochs[0]) >= 3 && len(epochs[1]) == 1
	})
	cancel()
	must(t, <-done)
	for i, e := range epochs[0] {
		if e != uint64(i+1) {
			t.Errorf("epochs %v", epochs[0])
		}
	}
}

// TestWorkThatPanics ends Run with an error, and the session with it.
func TestWorkThatPanics(t *testing.T) {
	s := start(t, quick(t.TempDir()), nil)
	cfg := coordinator.DefaultConfig()
	cfg.Addresses, cfg.WorkerID = []string{s.addr()}, "w0"
	o, err := coordinator.NewOwner(cfg, "rollup", 2, coordinator.Deps{})
	must(t, err)
	err = o.Run(context.Background(), func(ctx context.Context, g coordinator.Grant) error {
		if g.Shard == 1 {
			panic("a bug")
		}
		<-ctx.Done()
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "a bug") {
		t.Errorf("Run: %v", err)
	}
}

func TestSettings(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"http.listen":   func(c *Config) { c.HTTP.Listen = ":4780" },
		"grpc.listen":   func(c *Config) { c.GRPC.Listen = "0.0.0.0:4781" },
		"lease.worker":  func(c *Config) { c.Lease.Worker = 1500 * time.Millisecond },
		"lease.leader":  func(c *Config) { c.Lease.Leader = 0 },
		"rebalance":     func(c *Config) { c.Rebalance.MaxDelay = 0 },
		"max_streams":   func(c *Config) { c.MaxStreams = 0 },
		"drain_timeout": func(c *Config) { c.DrainTimeout = 0 },
		"etcd.prefix":   func(c *Config) { c.Etcd.Prefix = "" },
	} {
		c := DefaultConfig()
		must(t, c.Validate())
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
