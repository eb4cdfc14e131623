package coordinator

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// TestKilledAtEveryPoint: workers come, one drains and another comes; somewhere on the
// way the coordinator is killed, and started again. In the end every shard is owned,
// evenly, and no epoch was granted twice.
func TestKilledAtEveryPoint(t *testing.T) {
	t.Parallel()
	if len(points) < 10 {
		t.Fatalf("only %d points", len(points))
	}
	for _, p := range points {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			at := ports(t, 2)
			cfg := withRegions(brief(t.TempDir()), threeBuckets())
			cfg.HTTP.Listen, cfg.GRPC.Listen = at[0], at[1]
			armed := spawn(t, "coordinator", cfg, failpoint.Env+"="+p.Name+"="+failpoint.Kill)
			armed.started() // or killed before it could say so
			killed := false
			// reach waits; when the coordinator is killed meanwhile, another one takes its place.
			b := newBook(t, 8)
			reach := func(what string, workers ...string) {
				t.Helper()
				until(t, what, func() bool {
					select {
					case <-armed.exited:
						if !killed {
							killed = true
							coordinate(t, cfg)
						}
					default:
					}
					return b.balanced(workers...)
				})
			}
			b.work("w0", cfg.GRPC.Listen)
			reach("the first worker's shards", "w0")
			w1 := b.work("w1", cfg.GRPC.Listen)
			reach("the second worker's shards", "w0", "w1")
			w1.end(t)
			reach("the first worker to have all", "w0")
			b.work("w2", cfg.GRPC.Listen)
			reach("the third worker's shards", "w0", "w2")
			if !killed {
				t.Fatal("the point was not reached")
			}
			conn, err := rpc.Dial(cfg.GRPC.Listen, rpc.ClientConfig{})
			must(t, err)
			defer conn.Close()
			checkMoves(t, 8, moves(t, coordinatorv1.NewOwnershipServiceClient(conn)))
		})
	}
}
