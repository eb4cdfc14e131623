package regions

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// TestARegionThatIsLost: under load, one of three regions is destroyed, with its bucket and its member of etcd, and is
// retired while a coordinator dies over it. What it had decided stays decided, also when etcd is restored from copies that
// are older and younger than the retirement: every frame that was ever acknowledged is accepted again, or a duplicate, no
// other frame with its identity is, and the regions that are left count each once.
func TestARegionThatIsLost(t *testing.T) {
	t.Parallel()
	rounds := size(t, "LOST_REGIONS", 1, 20)
	for n := range rounds {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			seed, rnd := seeded(t)
			late := newLateStores(t, rnd)
			r := newRegions(t, cluster.RegionsOptions{Between: late.between, Options: cluster.Options{Adjust: foldSoon}})
			ctx := within(t, 12*time.Minute)
			must(t, r.Start(ctx))
			f := newFaults(t, r, rnd, map[string]int{})
			over := make(chan struct{})
			o := contestOptions(t, r, seed, "lost", size(t, "OPERATIONS", fewOperations, allOperations))
			o.Until, o.Losses = over, true
			contest := load.StartContest(ctx, o)
			err := f.run(ctx, []fault{
				{"load", f.wait},
				{"a region, from all others", f.isolate},
				{"copy 0 of etcd", f.takeCopy},
				{"collectors, killed", f.killCollectors},
				{"a region, lost", f.loseRegion},
				{"load without the region", f.wait},
				{"the region, retired", f.retire},
				{"load in the next epoch", f.wait},
				{"copy 1 of etcd", f.takeCopy},
				{"a collector, stopped", f.pauseCollector},
			})
			must(t, r.Heal())
			close(over)
			if err != nil {
				contest.Stop()
				t.Fatal(err)
			}
			left := func(of string) {
				t.Helper()
				fctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
				defer cancel()
				seen, err := contest.Resubmit(fctx)
				if err != nil {
					t.Fatalf("%s: %v", of, err)
				}
				report, err := load.CheckRegions(ctx, r, seen)
				if err != nil {
					t.Fatalf("%s: %v", of, err)
				}
				twice := 0
				for _, n := range seen.Accepted {
					if n > 1 {
						twice++
					}
				}
				t.Logf("%s: %d identities acknowledged, %d of them accepted again; %+v", of, len(seen.Acked), twice, report)
				if twice == 0 {
					t.Errorf("%s: nothing of the region that was lost was accepted again", of)
				}
			}
			fctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
			defer cancel()
			if _, err := contest.Finish(fctx); err != nil {
				t.Fatal(err)
			}
			left("after the region was retired")
			for _, copied := range []int{0, 1} {
				must(t, f.run(ctx, []fault{f.restore(copied), {"the epoch, opened", f.opened}}))
				left(fmt.Sprintf("after etcd was restored from copy %d", copied))
			}
		})
	}
}

// loseRegion destroys a region for good.
func (f *faults) loseRegion(ctx context.Context) error {
	i := f.region()
	f.lost = f.r.Names[i]
	f.t.Logf("%s is lost", f.lost)
	return errors.Join(f.r.Lose(i), f.wait(ctx))
}

// retire retires the region that was lost. The coordinator that begins with it is killed meanwhile, as far as it is not done by then.
func (f *faults) retire(ctx context.Context) error {
	first := f.r.Of[f.region()]
	dies := time.AfterFunc(time.Duration(f.rnd.IntN(300))*time.Millisecond, first.Coordinator.Kill)
	err := retireRegion(ctx, first, f.lost)
	if dies.Stop() {
		first.Coordinator.Kill()
	}
	f.t.Logf("the first attempt to retire %s: %v", f.lost, err)
	<-first.Coordinator.Exited()
	first.Coordinator = nil
	if err := first.StartCoordinator(ctx); err != nil {
		return err
	}
	rctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	return cluster.Poll(rctx, "the region to be retired", func() (bool, error) {
		err := retireRegion(rctx, f.r.Of[f.region()], f.lost)
		return err == nil, err
	})
}

func retireRegion(ctx context.Context, by *cluster.Cluster, region string) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	conn, err := rpc.Dial(by.Addr.CoordinatorGRPC, rpc.ClientConfig{})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = coordinatorv1.NewIdentityServiceClient(conn).RetireRegion(ctx, &coordinatorv1.RetireRegionRequest{Region: region})
	return err
}
