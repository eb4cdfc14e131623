package reconciler

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
)

// One manifest that is new costs five requests: read it, head the blob, create three
// keys. One whose keys are all there costs five too, none of them a write.
func TestRequestsPerManifest(t *testing.T) {
	const n = 100
	inner := newStore()
	s := storetest.Count(inner)
	core := &reconcile.Reconciler{Store: s, AuthorityID: testAuthority, Now: time.Now}
	var keys []string
	for i := range uint64(n) {
		keys = append(keys, layout.Accepted(acceptBatch(t, inner, batch("a", i*10, i*10+9)).Identity))
	}
	for _, c := range []struct {
		name           string
		look           bool
		gets, heads, w int
	}{{"new", false, 1, 1, 3}, {"known", true, 1, 4, 0}} {
		s.Reset()
		for _, k := range keys {
			_, err := core.Reconcile(bg, k, reconcile.Options{HeadFirst: c.look})
			must(t, err)
		}
		if s.Of("get", "") != c.gets*n || s.Of("head", "") != c.heads*n || s.Of("create", "") != c.w*n || s.Of("", "") != 5*n {
			t.Errorf("%s: %v for %d manifests", c.name, s.All(), n)
		}
	}
}

func filled(b *testing.B, n int) (objstore.Store, []string) {
	s := newStore()
	keys := make([]string, 0, n)
	for i := range uint64(n) {
		keys = append(keys, layout.Accepted(acceptBatch(b, s, batch("a", i*10, i*10+9)).Identity))
	}
	b.ResetTimer()
	b.ReportAllocs()
	return s, keys
}

// The baseline: list the manifests and head each blob, over the same store in memory.
func BenchmarkBareListAndHead(b *testing.B) {
	s, keys := filled(b, b.N)
	n := 0
	must(b, storetest.Each(bg, s, layout.AcceptedPrefix, func(o objstore.Info) error {
		_, err := s.Head(bg, o.Key)
		n++
		return err
	}))
	if n != len(keys) {
		b.Fatal(n)
	}
}

func BenchmarkReconcileNew(b *testing.B) { benchReconcile(b, reconcile.Options{}, false) }
func BenchmarkReconcileKnown(b *testing.B) {
	benchReconcile(b, reconcile.Options{HeadFirst: true}, true)
}

func benchReconcile(b *testing.B, o reconcile.Options, before bool) {
	s, keys := filled(b, b.N)
	core := &reconcile.Reconciler{Store: s, AuthorityID: testAuthority, Now: time.Now}
	if before {
		b.StopTimer()
		for _, k := range keys {
			_, err := core.Reconcile(bg, k, reconcile.Options{})
			must(b, err)
		}
		b.StartTimer()
	}
	for _, k := range keys {
		_, err := core.Reconcile(bg, k, o)
		must(b, err)
	}
}

// The whole service over new batches of the journal, derived keys and ledgers included.
func BenchmarkServiceJournal(b *testing.B) {
	inner, _ := filled(b, b.N)
	s := storetest.Count(inner)
	r := start(b, quiet(), s)
	eventually(b, "all are reconciled", func() bool { return r.reconciled.Load() >= uint64(b.N) })
	b.StopTimer()
	must(b, r.stop())
	b.ReportMetric(float64(s.Of("", ""))/float64(b.N), "requests/batch")
}
