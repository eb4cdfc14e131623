package rollup

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	refmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
)

// counted counts requests by what they are and by the first two parts of their keys.
type counted struct {
	objstore.Store
	mu sync.Mutex
	of map[string]int
}

func (s *counted) count(op, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[op+" "+strings.Join(strings.SplitN(key, "/", 4)[:min(3, strings.Count(key, "/")+1)], "/")]++
}

func (s *counted) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	s.count("get", key)
	return s.Store.Get(ctx, key, o)
}

func (s *counted) Head(ctx context.Context, key string) (objstore.Info, error) {
	s.count("head", key)
	return s.Store.Head(ctx, key)
}

func (s *counted) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	s.count("list", o.Prefix)
	return s.Store.List(ctx, o)
}

func (s *counted) Put(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	s.count("put", key)
	return s.Store.Put(ctx, key, b, o)
}

func (s *counted) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	s.count("put", key)
	return s.Store.Create(ctx, key, b, o)
}

func (s *counted) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	s.count("put", key)
	return s.Store.Replace(ctx, key, b, etag, o)
}

// A worker that owns all of 32 shards and finds nothing to do costs less than ten cents a day.
func TestAnIdleWorkerAsksLittle(t *testing.T) {
	const of, hours = 32, 3
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := &counted{Store: mem.New(time.Now), of: map[string]int{}}
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
		store.mu.Lock()
		clear(store.of)
		store.mu.Unlock()
		time.Sleep(hours * time.Hour)
		cancel()
		<-done
		var lists, puts, reads int
		for _, what := range slices.Sorted(maps.Keys(store.of)) {
			n := store.of[what]
			t.Logf("%8.1f an hour  %s", float64(n)/hours, what)
			switch {
			case strings.HasPrefix(what, "list"):
				lists += n
			case strings.HasPrefix(what, "put"):
				puts += n
			default:
				reads += n
			}
		}
		day := (float64(lists+puts)*5 + float64(reads)*0.4) / 1e6 / hours * 24
		t.Logf("%d LISTs, %d PUTs, %d GETs an hour: $%.3f a day", lists/hours, puts/hours, reads/hours, day)
		if day > 0.1 {
			t.Errorf("$%.3f a day", day)
		}
	})
}
