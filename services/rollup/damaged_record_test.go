package rollup

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// A record that can't be read holds up its hour, and not the other hours of its shard.
func TestCorruptRecordHoldsUpItsHourOnly(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	a := agentOf(1, 0)
	seq := w.some(a, hour0-5, 0, 2, 0)
	w.drive(cfg, ownership.Grant{Shard: 1, Fence: 5})
	key := layout.BlockManifest(hour0-5, 1, timegrid.Raw, 2)
	_, err := w.store.Create(t.Context(), key, []byte("{"), objstore.PutOptions{})
	must(t, err)
	w.some(a, hour0, 0, 2, seq)
	o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 1, Fence: 6})
	must(t, err)
	must(t, rounds(t.Context(), o))
	w.check(hour0, 1, 1)
}
