package rollup

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// A batch that gets another hour takes those that overlap with it there, also when they
// were looked at before; what is apart stays where it is.
func TestRivalsFollowIntoLaterHours(t *testing.T) {
	b := newBacklog()
	entry := func(from, to uint64) accepted.Batch {
		return accepted.Batch{Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: from, SeqEnd: to}}
	}
	x, y, z := entry(0, 9), entry(5, 14), entry(15, 20)
	now := hour0.End()
	b.add("segment", []accepted.Batch{x, y, z}, func(accepted.Batch) []timegrid.Hour { return []timegrid.Hour{hour0} }, now)
	b.rivals(now)
	if n := len(b.inputs(hour0)); n != 3 {
		t.Fatalf("%d inputs", n)
	}
	b.need(b.batches[x.Identity], hour0+1, now)
	b.rivals(now)
	in := b.inputs(hour0 + 1)
	if len(in) != 2 || in[0] != x || in[1] != y {
		t.Errorf("inputs of the later hour: %+v", in)
	}
}

// A record that can't be read holds up its hour, and not the other hours of its shard.
func TestCorruptRecordHoldsUpItsHourOnly(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	a := agentOf(1, 0)
	seq := w.some(a, hour0-5, 0, 2, 0)
	w.drive(cfg, Grant{Shard: 1, Fence: 5})
	key := layout.BlockManifest(hour0-5, 1, timegrid.Raw, 2)
	_, err := w.store.Create(t.Context(), key, []byte("{"), objstore.PutOptions{})
	must(t, err)
	w.some(a, hour0, 0, 2, seq)
	o, err := w.owner(w.worker(cfg, w.store), Grant{Shard: 1, Fence: 6})
	must(t, err)
	must(t, rounds(t.Context(), o))
	w.check(hour0, 1, 1)
}
