package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// joinerName is the region that joins two that run; its bucket is an authority of its own before.
const joinerName = "joiner"

// joinerBoot is how many batches a boot of it has.
const joinerBoot = 1000

// benchJoining measures how long a region with a history takes to be prepared and then added, next to adding it unprepared. While it is
// prepared everybody accepts; while it is added nobody does.
func benchJoining(ctx context.Context, e *env) ([]Result, error) {
	n := 100 * joinerBoot
	if e.quick {
		n = 5 * joinerBoot
	}
	var all []Result
	for _, c := range []struct {
		name          string
		delay         bool
		n, unprepared int
	}{
		{"near", false, n, n},
		// One GET a batch, each later by the delay: a fifth of them is enough to know the rest.
		{"far", true, n, n / 5},
	} {
		if !e.cases.MatchString(c.name) {
			continue
		}
		with, err := join(ctx, e, c.n, c.delay, true)
		if err != nil {
			return all, fmt.Errorf("%s, prepared: %w", c.name, err)
		}
		without, err := join(ctx, e, c.unprepared, c.delay, false)
		if err != nil {
			return all, fmt.Errorf("%s, not prepared: %w", c.name, err)
		}
		over := storeAt(c.delay)
		per := func(took time.Duration, n int) float64 { return took.Seconds() * 1e6 / float64(n) }
		all = append(all,
			Result{Name: "joining/" + c.name + "/prepare", Value: per(with.prepare, c.n), Unit: "s per million", Durability: "object store, fsync",
				Note: fmt.Sprintf("%d batches of %d boots were prepared in %.1f s, while everybody accepts; %s", c.n, c.n/joinerBoot, with.prepare.Seconds(), over)},
			Result{Name: "joining/" + c.name + "/prepare-requests", Value: with.prepareRequests * 1e6 / float64(c.n), Unit: "per million", Durability: "object store", Note: "to all buckets, counted at the store"},
			Result{Name: "joining/" + c.name + "/add", Value: per(with.add, c.n), Unit: "s per million", Durability: "object store and etcd, fsync",
				Baseline: "to add it unprepared", BaselineValue: per(without.add, c.unprepared), Ratio: per(with.add, c.n) / per(without.add, c.unprepared),
				Note: fmt.Sprintf("they were added in %.1f s, while nobody accepts, and %d unprepared ones in %.1f s", with.add.Seconds(), c.unprepared, without.add.Seconds())},
			Result{Name: "joining/" + c.name + "/add-requests", Value: with.addRequests * 1e6 / float64(c.n), Unit: "per million", Durability: "object store",
				Baseline: "to add it unprepared", BaselineValue: without.addRequests * 1e6 / float64(c.unprepared),
				Ratio: with.addRequests / float64(c.n) / (without.addRequests / float64(c.unprepared)), Note: "to all buckets, counted at the store"})
	}
	return all, nil
}

// joined is what preparing and adding a region took.
type joined struct {
	prepare, add                 time.Duration
	prepareRequests, addRequests float64
}

// join fills the bucket of a region, and takes it into a linearizer of two regions that is open.
func join(ctx context.Context, e *env, n int, delay, prepared bool) (out joined, _ error) {
	r, err := newRig(e)
	if err != nil {
		return out, err
	}
	defer r.close()
	if err := r.startStore(ctx); err != nil {
		return out, err
	}
	if err := fillJoiner(ctx, r, n); err != nil {
		return out, err
	}
	endpoint := "http://" + r.storeAddr
	if delay {
		far, stop, err := startDelaying(r.storeAddr, func() time.Duration { return recoveryDelay })
		if err != nil {
			return out, err
		}
		defer stop()
		endpoint = far
	}
	start := func(names ...string) (*proc.Process, string, error) {
		var regions []section
		for _, name := range names {
			regions = append(regions, section{"name": name, "store": section{"endpoint": endpoint, "bucket": bucket, "prefix": name + "/", "path_style": true,
				"access_key_id": r.accessKey, "secret_access_key": r.secret}})
		}
		return r.startCoordinator(ctx, section{
			"identity": section{"regions": regions, "max_unprepared": max(n, 1_000_000)},
			"etcd":     section{"embedded": section{"data_dir": filepath.Join(r.dir, "etcd"), "quota": "4GiB"}},
		})
	}
	// The linearizer begins without the region, which its settings name only then.
	p, addr, err := start("eu", "us")
	if err != nil {
		return out, err
	}
	err = isOpen(ctx, addr)
	p.Kill()
	if err != nil {
		return out, err
	}
	if p, addr, err = start("eu", "us", joinerName); err != nil {
		return out, err
	}
	defer p.Kill()
	if err := isOpen(ctx, addr); err != nil {
		return out, err
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return out, err
	}
	defer conn.Close()
	c := coordinatorv1.NewIdentityServiceClient(conn)
	if prepared {
		if out.prepare, out.prepareRequests, err = r.counting(ctx, func() error { return prepare(ctx, c, n) }); err != nil {
			return out, err
		}
	}
	out.add, out.addRequests, err = r.counting(ctx, func() error {
		a, err := c.AddRegion(ctx, &coordinatorv1.AddRegionRequest{Region: joinerName})
		want := uint64(n)
		if prepared {
			want = 0
		}
		if err == nil && a.GetClaims() != want {
			err = fmt.Errorf("%d batches became claims, not %d", a.GetClaims(), want)
		}
		return err
	})
	return out, err
}

// counting is how long something took, and how many requests the store had meanwhile.
func (r *rig) counting(ctx context.Context, do func() error) (took time.Duration, requests float64, _ error) {
	const total = "lightmetrics_objectstore_requests_total"
	before, err := scrape(ctx, r.storeAdmin)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	after, err := scrape(ctx, r.storeAdmin)
	return took, after.sum(total) - before.sum(total), err
}

// isOpen waits until the linearizer decides.
func isOpen(ctx context.Context, addr string) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		got, err := coordinatorv1.NewIdentityServiceClient(conn).ListRegions(ctx, &coordinatorv1.ListRegionsRequest{})
		if err == nil && got.GetEpoch() > 0 && got.GetNotOpen() == "" {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// prepare prepares the region, as lmctl does.
func prepare(ctx context.Context, c coordinatorv1.IdentityServiceClient, n int) error {
	for {
		got, err := c.PrepareRegion(ctx, &coordinatorv1.PrepareRegionRequest{Region: joinerName})
		if err != nil {
			return err
		}
		if !got.GetDone() {
			continue
		}
		if batches := got.GetPreparation().GetBatches(); batches != uint64(n) {
			return fmt.Errorf("%d of %d batches were prepared", batches, n)
		}
		return nil
	}
}

// fillJoiner writes what the region has accepted on its own: manifests, and its journal, folded as by its reconciler.
func fillJoiner(ctx context.Context, r *rig, n int) error {
	s, err := r.client(ctx, "", joinerName+"/")
	if err != nil {
		return err
	}
	defer s.Close()
	fill, fctx := errgroup.WithContext(ctx)
	fill.SetLimit(16)
	for boot := range n / joinerBoot {
		fill.Go(func() error { return fillJoinerBoot(fctx, s, boot) })
	}
	if err := fill.Wait(); err != nil {
		return err
	}
	_, err = journaltest.Fold(ctx, s, joinerName)
	return err
}

func fillJoinerBoot(ctx context.Context, s *s3.Store, boot int) error {
	var entries []journal.Entry
	for i := range uint64(joinerBoot) {
		id := identity.Batch{Agent: fmt.Sprintf("host-%05d", boot), Boot: "0190b5a2-7f3e-7c41-9d6a-2f1c8e5b7a90", SeqStart: i*100 + 1, SeqEnd: i*100 + 100}
		sum := identity.Sum([]byte(id.String()))
		m := accept.Manifest{
			AuthorityID: joinerName, Identity: id, FrameSHA256: sum, FrameBytes: 1, RawBlobKey: layout.Blob(sum, 0), AcceptedAt: int64(i) + 1,
			CollectorID: "c", AttemptID: strings.Repeat("0", 32), RecordCount: id.Count(), MinTime: 1, MaxTime: 2,
		}
		if _, err := s.Create(ctx, layout.Accepted(id), m.Marshal(), objstore.PutOptions{}); err != nil {
			return err
		}
		entries = append(entries, m.Entry(journal.Accepted))
	}
	return journaltest.Append(ctx, s, joinerName, entries...)
}
