package regions_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
)

// A region that is there is retired, without --forget, and whoever does so dies when the records say it. Then etcd is lost. The region's bucket is there all
// the time, and has what was decided: no other frame gets its identity, or nobody opens before an operator has said that it may be forgotten.
func TestEtcdIsLostWhileARegionThatIsThereIsRetired(t *testing.T) {
	all := []claims.Region{"asia", "eu", "us"}
	for name, lose := range map[string]func(w *world, older *kv.Store){
		"an older copy": func(w *world, older *kv.Store) { w.kv.Restore(older, 2) },
		"nothing":       func(w *world, older *kv.Store) { w.kv.Restore(kv.New(), 2) },
	} {
		w := newWorld(t, all...)
		o := w.open(all...)
		older := w.kv.Copy()
		id := batch("boot", 1, 5)
		w.claim(o, id, "us", "a", claims.Settled, false)
		w.manifest("us", id, "a", accepted.Stamp{Epoch: 1, Fence: 5})
		w.diesBehind("eu", 2)
		if err := w.retires("us", all...)(); !errors.Is(err, errDead) {
			t.Fatal(err)
		}
		w.after = nil
		lose(w, older)
		k := w.keeper(all...)
		o, err := k.Open(t.Context(), true)
		if err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		if got := w.asked(k, o.Epoch, id, "z"); !strings.HasPrefix(got, "CONFLICT") && !slices.Contains(w.claims(), line(id, "us", "a")) {
			t.Errorf("%s: epoch %d is open with %v, and what us had decided is %s for another frame", name, o.Epoch.Number, o.Epoch.Regions, got)
		}
	}
}
