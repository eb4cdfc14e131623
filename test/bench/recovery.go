package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// recoveryBoot and recoveryLongBoot are how many identities a boot of the recovery has.
const recoveryBoot, recoveryLongBoot = 1000, 20_000

// benchRecovery measures how long a coordinator with an empty etcd takes until it answers for the identities in the buckets of three
// regions: none of them folded, so that each is read and becomes a claim; all of them; and all of boots with long histories, whose manifests
// need not be listed.
func benchRecovery(ctx context.Context, e *env) ([]Result, error) {
	n := 100 * recoveryBoot
	if e.quick {
		n = 10 * recoveryBoot
	}
	var all []Result
	for _, c := range []struct {
		name    string
		n, boot int
		folded  bool
		delay   bool
	}{
		{"not-folded", n, recoveryBoot, false, false},
		{"folded", n, recoveryBoot, true, false},
		{"folded-long", 2 * n, recoveryLongBoot, true, false},
		{"not-folded-far", n / 5, recoveryBoot, false, true},
		{"folded-long-far", 2 * n, recoveryLongBoot, true, true},
	} {
		if !e.cases.MatchString(c.name) {
			continue
		}
		took, requests, lists, err := recover3(ctx, e, c.n, c.boot, c.folded, c.delay)
		if err != nil {
			return all, fmt.Errorf("%s: %w", c.name, err)
		}
		over := storeAt(c.delay)
		per := float64(c.n) / 1e6
		all = append(all,
			Result{Name: "recovery/" + c.name + "/time", Value: took.Seconds() / per, Unit: "s per million", Durability: "object store and etcd, fsync",
				Note: fmt.Sprintf("%d identities of %d boots in three buckets took %.1f s from the start of the process; %s", c.n, c.n/c.boot, took.Seconds(), over)},
			Result{Name: "recovery/" + c.name + "/requests", Value: requests / per, Unit: "per million", Durability: "object store", Note: "to all buckets, counted at the store"},
			Result{Name: "recovery/" + c.name + "/lists", Value: lists / per, Unit: "per million", Durability: "object store", Baseline: "to list every manifest", BaselineValue: 1e6 / objstore.MaxListLimit,
				Ratio: lists / (float64(c.n) / objstore.MaxListLimit), Note: "LISTs among them"})
	}
	return all, nil
}

// recoveryDelay is put on each request of the far case.
const recoveryDelay = 30 * time.Millisecond

// storeAt says for a note where the store is, near or far.
func storeAt(far bool) string {
	const near = "the embedded store over HTTP on the same machine"
	if !far {
		return near
	}
	return fmt.Sprintf("%s, each request %v later", near, recoveryDelay)
}

// recover3 fills three buckets, starts a coordinator over them and waits until it answers: how long that took, its requests, and
// the LISTs among them.
func recover3(ctx context.Context, e *env, n, each int, folded, delay bool) (took time.Duration, requests, lists float64, _ error) {
	r, err := newRig(e)
	if err != nil {
		return 0, 0, 0, err
	}
	defer r.close()
	if err := r.startStore(ctx); err != nil {
		return 0, 0, 0, err
	}
	names := cluster.RegionNames
	stores := make([]*s3.Store, len(names))
	folder := folds.Folder{Homes: func(claims.Region) (retired, known bool) { return false, true }}
	for i, name := range names {
		if stores[i], err = r.client(ctx, "", name+"/"); err != nil {
			return 0, 0, 0, err
		}
		defer stores[i].Close()
		folder.Regions = append(folder.Regions, folds.Region{Name: claims.Region(name), Store: stores[i]})
	}
	fill, fctx := errgroup.WithContext(ctx)
	fill.SetLimit(16)
	for boot := range n / each {
		fill.Go(func() error { return fillBoot(fctx, folder, stores, boot, each, folded) })
	}
	if err := fill.Wait(); err != nil {
		return 0, 0, 0, err
	}
	endpoint := "http://" + r.storeAddr
	if delay {
		far, stop, err := startDelaying(r.storeAddr, func() time.Duration { return recoveryDelay })
		if err != nil {
			return 0, 0, 0, err
		}
		defer stop()
		endpoint = far
	}
	var regions []section
	for _, name := range names {
		regions = append(regions, section{"name": name, "store": section{"endpoint": endpoint, "bucket": bucket, "prefix": name + "/", "path_style": true,
			"access_key_id": r.accessKey, "secret_access_key": r.secret}})
	}
	http, err := proc.FreePort(0)
	if err != nil {
		return 0, 0, 0, err
	}
	grpc, err := proc.FreePort(0)
	if err != nil {
		return 0, 0, 0, err
	}
	before, err := scrape(ctx, r.storeAdmin)
	if err != nil {
		return 0, 0, 0, err
	}
	began := time.Now()
	p, err := r.start(ctx, "coordinator", "http://"+http+"/-/ready", section{
		"http": section{"listen": http}, "grpc": section{"listen": grpc}, "pprof": true, "identity": section{"regions": regions},
		"etcd": section{"embedded": section{"data_dir": filepath.Join(r.dir, "etcd"), "quota": "4GiB"}},
	})
	if err != nil {
		return 0, 0, 0, err
	}
	defer p.Kill()
	for {
		s, err := scrape(ctx, http)
		if err != nil {
			return 0, 0, 0, err
		}
		if s.sum("lightmetrics_coordinator_identity_open") == 1 {
			took := time.Since(began)
			if got := s.sum("lightmetrics_coordinator_identity_recovery_claims"); !folded && int(got) != n {
				return 0, 0, 0, fmt.Errorf("%v of %d identities became claims", got, n)
			}
			after, err := scrape(ctx, r.storeAdmin)
			const total, op = "lightmetrics_objectstore_requests_total", `op="ListObjectsV2"`
			return took, after.sum(total) - before.sum(total), after.sum(total, op) - before.sum(total, op), err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return 0, 0, 0, ctx.Err()
		}
	}
}

// fillBoot writes the manifests of a boot, each into the bucket of one region, and their fold into all, if they are folded.
func fillBoot(ctx context.Context, f folds.Folder, stores []*s3.Store, boot, each int, folded bool) error {
	of := identity.Boot{Agent: fmt.Sprintf("host-%05d", boot), Boot: "0190b5a2-7f3e-7c41-9d6a-2f1c8e5b7a90"}
	known := claims.Folds{}
	var add []folds.Entry
	for i := range each {
		id := identity.Batch{Agent: of.Agent, Boot: of.Boot, SeqStart: uint64(i)*100 + 1, SeqEnd: uint64(i)*100 + 100}
		home := i % len(stores)
		sum := identity.Sum([]byte(id.String()))
		m := accept.Manifest{
			AuthorityID: authority, Identity: id, FrameSHA256: sum, FrameBytes: 1, RawBlobKey: layout.Blob(sum, 0), AcceptedAt: 1,
			CollectorID: "c", AttemptID: strings.Repeat("0", 32), RecordCount: id.Count(), HomeRegion: string(f.Regions[home].Name), ClaimEpoch: 1, ClaimFence: uint64(i) + 1,
		}
		if _, err := stores[home].Create(ctx, layout.Accepted(id), m.Marshal(), objstore.PutOptions{}); err != nil {
			return err
		}
		add = append(add, folds.Entry{Start: id.SeqStart, End: id.SeqEnd, Home: f.Regions[home].Name, Digest: folds.DigestOf(sum)})
		if folded && (len(add) == folds.MaxAdd || i == each-1) {
			moved, err := f.Fold(ctx, of, known, add)
			if err != nil {
				return err
			}
			known, add = claims.Folds{Heads: moved.Heads, Above: moved.Head.Above(), Modified: 1, At: 1, Epoch: 1}, nil
		}
	}
	return nil
}
