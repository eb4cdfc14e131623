package publish_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// An hour is over for readers from the decision on, whatever is removed; blocks that were
// removed without one take the hour with them; rows of older generations are not all of it.
func TestViewOfAnHourThatExpires(t *testing.T) {
	w := newWorld(t)
	view := func() *catalog.View {
		t.Helper()
		c, err := catalog.New(catalog.Config{Reader: w.store, AuthorityID: "a"})
		if err != nil {
			t.Fatal(err)
		}
		v, err := c.Refresh(t.Context(), hour0, hour0)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	put := func(res timegrid.Resolution, gen, before uint64) catalog.Name {
		t.Helper()
		p := publication(gen, before, "x")
		p.Name.Resolution = res
		if _, err := w.publisher().Publish(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		return p.Name
	}
	putPlan(t, w.store, 1)
	putPlan(t, w.store, 2)
	raw := put(timegrid.Raw, 1, 0)
	put(timegrid.OneMinute, 1, 0)
	if v := view(); v.Expired(hour0, timegrid.Raw) || len(v.Blocks(hour0, timegrid.Raw)) != 1 {
		t.Fatal("expired")
	}
	retain := func(s publish.Store, to timegrid.Hour) error {
		r, err := compact.NewExpirer(compact.ExpirerConfig{Store: s, Publisher: w.publisher(), AuthorityID: "a", WorkerID: "w", Now: newClock().Now})
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Expire(t.Context(), timegrid.Raw, to, to)
		return err
	}
	// It is decided, and the worker stops before it has removed anything.
	stopped := fault.New(w.store, 1, fault.Rule{Op: "list", Prefix: layout.ManifestsPrefix, Kind: fault.Before})
	if err := retain(stopped, hour0); err == nil {
		t.Fatal("it was not stopped")
	}
	if v := view(); !v.Expired(hour0, timegrid.Raw) || v.Block(hour0, raw.Shard, timegrid.Raw) != nil {
		t.Error("decided: readers take the hour's blocks")
	} else if _, ok := v.StandIns(hour0, timegrid.OneMinute); !ok {
		t.Error("no 1m rows stand in")
	}
	put(timegrid.Raw, 2, 1)
	if _, ok := view().StandIns(hour0, timegrid.OneMinute); ok {
		t.Error("rows of an older generation stand in")
	}
	put(timegrid.OneMinute, 2, 1)
	if _, ok := view().StandIns(hour0, timegrid.OneMinute); !ok {
		t.Error("rows of the same generation do not stand in")
	}
	// An older decision changes nothing.
	if err := retain(w.store, hour0-1); err != nil {
		t.Fatal(err)
	}
	if !view().Expired(hour0, timegrid.Raw) {
		t.Error("the hour is there again")
	}
	// Without a decision: the record says that it expired.
	if err := w.store.Delete(t.Context(), layout.RollupExpiryKey); err != nil {
		t.Fatal(err)
	}
	if view().Expired(hour0, timegrid.Raw) {
		t.Fatal("expired without a decision or a removed block")
	}
	name := raw
	name.Generation = 2
	if removed, err := w.publisher().Expire(t.Context(), name); err != nil || !removed {
		t.Fatal(removed, err)
	}
	if !view().Expired(hour0, timegrid.Raw) {
		t.Error("an expired block is no loss")
	}
}
