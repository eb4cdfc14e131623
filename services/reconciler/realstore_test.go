package reconciler

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/objectstore/objectstoretest"
)

// realStore runs the embedded object store over HTTP, with fsync, and gives a client
// of a bucket whose events go to hook.
func realStore(t testing.TB, hook string) objstore.Store {
	t.Helper()
	c := objectstoretest.Config(t, "authority")
	if hook != "" {
		c.Webhooks = []objectstore.Webhook{{Name: "reconciler", URL: config.URL(hook), Bucket: "authority", Prefix: "team/accepted/v1/"}}
	}
	svc := objectstoretest.Start(t, c)
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.Prefix, cfg.PathStyle = "http://"+svc.Addr(), "authority", "team/", true
	cfg.AccessKeyID, cfg.SecretAccessKey = objectstoretest.Key, config.Secret(objectstoretest.Secret)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	s, err := s3.New(bg, cfg, s3.Options{Transport: transport})
	must(t, err)
	return s
}

// Over a real server every batch is indexed, and a reconciler that starts later finds the same from the checkpoint.
func TestOverTheEmbeddedStore(t *testing.T) {
	store := realStore(t, "")
	cfg := quiet()
	r := start(t, cfg, store)

	const agents, each = 4, 25
	var mu sync.Mutex
	var ms []accept.Manifest
	var wg sync.WaitGroup
	for a := range agents {
		wg.Go(func() {
			for i := range uint64(each) {
				m := acceptBatch(t, store, batch(fmt.Sprint("agent", a), i*10, i*10+9))
				mu.Lock()
				ms = append(ms, m)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	check := func(r *running) {
		c := r.client()
		for a := range agents {
			eventually(t, "ledger", func() bool {
				l := r.ledgerOf(c, fmt.Sprint("agent", a))
				return l.BatchCount == each && l.AcceptedThrough == each*10-1
			})
		}
	}
	check(r)
	must(t, r.stop())
	// The derived keys come after the ledgers. Whatever the first one had not written, the next one writes.
	again := start(t, cfg, store)
	check(again)
	want := wanted(ms...)
	eventually(t, "derived keys", func() bool { return len(derived(t, store)) >= len(want) })
	if diff := cmp.Diff(want, derived(t, store)); diff != "" {
		t.Error(diff)
	}
}

// Reconciling next to the bare requests, over the embedded store: go test -bench RealStore.
func BenchmarkRealStore(b *testing.B) {
	const workers = 16
	pool := func(keys []string, fn func(string)) {
		ch := make(chan string, len(keys))
		for _, k := range keys {
			ch <- k
		}
		close(ch)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for k := range ch {
					fn(k)
				}
			})
		}
		wg.Wait()
	}
	store := realStore(b, "")
	core := &reconcile.Reconciler{Store: store, AuthorityID: testAuthority, Now: time.Now}
	const n = 400
	var ids []uint64
	for i := range uint64(n) {
		ids = append(ids, i)
	}
	keys := make([]string, n)
	blobs := make([]string, n)
	for _, i := range ids {
		m := acceptBatch(b, store, batch("a", i*10, i*10+9))
		keys[i], blobs[i] = layout.Accepted(m.Identity), m.RawBlobKey
	}
	head := func(k string) { _, err := store.Head(bg, k); must(b, err) }
	list := func() {
		must(b, storetest.Each(bg, store, layout.AcceptedPrefix, func(objstore.Info) error { return nil }))
	}
	first := true
	var bare, known, fresh time.Duration
	for b.Loop() {
		at := time.Now()
		list()
		pool(blobs, head)
		bare += time.Since(at)
		if first {
			at = time.Now()
			list()
			pool(keys, func(k string) { _, err := core.Reconcile(bg, k, reconcile.Options{}); must(b, err) })
			fresh += time.Since(at)
			first = false
		}
		at = time.Now()
		list()
		pool(keys, func(k string) { _, err := core.Reconcile(bg, k, reconcile.Options{HeadFirst: true}); must(b, err) })
		known += time.Since(at)
	}
	rate := func(d time.Duration, times int) float64 { return float64(n*times) / d.Seconds() }
	b.ReportMetric(rate(bare, b.N), "bare/s")
	b.ReportMetric(rate(known, b.N), "known/s")
	b.ReportMetric(rate(fresh, 1), "new/s")
	b.ReportMetric(float64(bare)/float64(known), "known/bare")
}
