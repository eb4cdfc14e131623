package regions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// faults breaks a system of regions, one fault after the other, each undone before the next.
type faults struct {
	t      *testing.T
	r      *cluster.Regions
	rnd    *rand.Rand
	copies *copies
	// lasts is how long a fault lasts: half to all of it.
	lasts time.Duration
	done  map[string]int
	lost  string // the region that was destroyed, if one was
}

// newFaults are those of a round; done counts them over all rounds.
func newFaults(t *testing.T, r *cluster.Regions, rnd *rand.Rand, done map[string]int) *faults {
	return &faults{t: t, r: r, rnd: rnd, copies: &copies{r: r, dir: t.TempDir()}, lasts: 3 * time.Second, done: done}
}

// fault is one thing that goes wrong. It returns when it was undone.
type fault struct {
	name string
	do   func(context.Context) error
}

// all kinds of faults but restores.
func (f *faults) kinds() []fault {
	return []fault{
		{"a link in one direction", f.cutOneWay},
		{"a region, from all others", f.isolate},
		{"the leading coordinator, killed", func(ctx context.Context) error { return f.killCoordinator(ctx, f.leading(ctx)) }},
		{"a coordinator, killed", func(ctx context.Context) error { return f.killCoordinator(ctx, f.region()) }},
		{"collectors, killed", f.killCollectors},
		{"a reconciler, killed", f.killReconciler},
		{"a collector, stopped", f.pauseCollector},
		{"the leading coordinator, stopped", func(ctx context.Context) error { return f.pauseCoordinator(ctx, f.leading(ctx)) }},
		{"a region, killed", f.killRegion},
	}
}

// run does each of the faults, in the order given.
func (f *faults) run(ctx context.Context, todo []fault) error {
	for _, x := range todo {
		began := time.Now()
		if err := x.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		f.done[x.name]++
		f.t.Logf("%s: %v", x.name, time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// region is any that was not lost.
func (f *faults) region() int {
	left := f.r.Left()
	return left[f.rnd.IntN(len(left))]
}

// wait lets a fault last: what happens meanwhile is the test.
func (f *faults) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(f.lasts/2 + time.Duration(f.rnd.Int64N(int64(f.lasts/2)))):
		return nil
	}
}

func (f *faults) cutOneWay(ctx context.Context) error {
	a, b := f.region(), f.region()
	for a == b {
		b = f.region()
	}
	if err := f.r.Cut(a, b); err != nil {
		return err
	}
	return errors.Join(f.wait(ctx), f.r.Heal())
}

func (f *faults) isolate(ctx context.Context) error {
	if err := f.r.Isolate(f.region()); err != nil {
		return err
	}
	return errors.Join(f.wait(ctx), f.r.Heal())
}

func (f *faults) killCoordinator(ctx context.Context, i int) error {
	c := f.r.Of[i]
	cluster.Kill(&c.Coordinator)
	return errors.Join(f.wait(ctx), c.StartCoordinator(ctx))
}

// killCollectors kills one collector of each region, so that calls of all regions are cut off in the middle.
func (f *faults) killCollectors(ctx context.Context) error {
	k := f.rnd.IntN(2)
	for _, c := range f.r.LeftOf() {
		cluster.Kill(&c.Collectors[k])
	}
	errs := []error{f.wait(ctx)}
	for _, c := range f.r.LeftOf() {
		errs = append(errs, c.StartCollector(ctx, k))
	}
	return errors.Join(errs...)
}

func (f *faults) killReconciler(ctx context.Context) error {
	c := f.r.Of[f.region()]
	cluster.Kill(&c.Reconciler)
	return errors.Join(f.wait(ctx), c.StartReconciler(ctx))
}

// pauseCollector: what it had begun goes on later, when others have taken it over.
func (f *faults) pauseCollector(ctx context.Context) error {
	p := f.r.Of[f.region()].Collectors[f.rnd.IntN(2)]
	if err := p.Pause(); err != nil {
		return err
	}
	return errors.Join(f.wait(ctx), p.Resume())
}

func (f *faults) pauseCoordinator(ctx context.Context, i int) error {
	p := f.r.Of[i].Coordinator
	if err := p.Pause(); err != nil {
		return err
	}
	return errors.Join(f.wait(ctx), p.Resume())
}

func (f *faults) killRegion(ctx context.Context) error {
	c := f.r.Of[f.region()]
	c.KillServices()
	return errors.Join(f.wait(ctx), c.StartServices(ctx))
}

// leading is the region whose coordinator leads, or any.
func (f *faults) leading(ctx context.Context) int {
	for _, i := range f.r.Left() {
		if v, err := cluster.Metric(ctx, f.r.Of[i].Addr.CoordinatorHTTP, "lightmetrics_coordinator_leading"); err == nil && v == 1 {
			return i
		}
	}
	return f.region()
}

// takeCopy keeps a copy of etcd as it is now.
func (f *faults) takeCopy(ctx context.Context) error { return f.copies.take(ctx, f.region()) }

// restore n begins etcd anew from the n-th copy.
func (f *faults) restore(n int) fault {
	return fault{fmt.Sprintf("etcd, restored from copy %d", n), func(ctx context.Context) error { return f.copies.restore(ctx, n) }}
}

// restores begins etcd anew from the three copies behind the first n: the oldest, one that has what the oldest has not, and
// then the one between both. Each is recovered and decides for a while before the next.
func (f *faults) restores(n int) (todo []fault) {
	for _, k := range []int{0, 2, 1} {
		todo = append(todo, f.restore(n+k), fault{"load on the restored etcd", func(ctx context.Context) error {
			return errors.Join(f.opened(ctx), f.wait(ctx))
		}})
	}
	return todo
}

// opened waits until every coordinator serves an epoch.
func (f *faults) opened(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	return cluster.Poll(ctx, "the linearizer to be open after a restore", func() (bool, error) {
		for _, i := range f.r.Left() {
			v, err := cluster.Metric(ctx, f.r.Of[i].Addr.CoordinatorHTTP, "lightmetrics_coordinator_identity_open")
			if err != nil || v != 1 {
				return false, fmt.Errorf("%s: open %v, %w", f.r.Names[i], v, err)
			}
		}
		return true, nil
	})
}
