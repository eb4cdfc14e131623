package rollup

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	refmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
)

// kind is what an operation is, and the first parts of its key.
func kind(op objstore.Op) string {
	parts := strings.Split(op.Key, "/")
	return op.Name + " " + strings.Join(parts[:min(3, len(parts))], "/")
}

// A worker that owns all of 32 shards and finds nothing to do costs less than ten cents a day.
func TestAnIdleWorkerAsksLittle(t *testing.T) {
	const of, hours = 32, 3
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := storetest.Count(mem.New(time.Now))
		_, err := accept.EnsureAuthority(ctx, store, testAuthority, true)
		must(t, err)
		must(t, shards.Ensure(ctx, store, of))
		must(t, journaltest.Complete(ctx, store, testAuthority))
		cfg := DefaultConfig()
		cfg.AuthorityID, cfg.ID = testAuthority, "worker"
		svc, err := New(cfg, Deps{Store: store, Telemetry: telemetry.Discard(), Refs: refmem.New()})
		must(t, err)
		wk, err := newWorker(cfg, svc.deps, svc.log, svc.m, svc.board)
		must(t, err)
		must(t, wk.collection.InitEpoch(ctx))
		done := make(chan error, 1)
		go func() { done <- wk.run(ctx) }()
		time.Sleep(2 * time.Hour) // all waits are as long as they get
		store.Reset()
		time.Sleep(hours * time.Hour)
		cancel()
		<-done
		var lists, puts, reads int
		asked := map[string]int{}
		for op, n := range store.All() {
			asked[kind(op)] += n
			switch {
			case op.Name == "list":
				lists += n
			case op.Writes():
				puts += n
			default:
				reads += n
			}
		}
		for _, what := range slices.Sorted(maps.Keys(asked)) {
			t.Logf("%8.1f an hour  %s", float64(asked[what])/hours, what)
		}
		day := (float64(lists+puts)*5 + float64(reads)*0.4) / 1e6 / hours * 24
		t.Logf("%d LISTs, %d PUTs, %d GETs an hour: $%.3f a day", lists/hours, puts/hours, reads/hours, day)
		if day > 0.1 {
			t.Errorf("$%.3f a day", day)
		}
	})
}
