package rollup

import (
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/storeclock"
)

// What expires is decided by the store's clock, whatever the worker's says: one that is ahead
// by less than is refused removes nothing early, one that is far ahead nothing at all, and
// one that is behind nothing that it does not know to be old.
func TestRetentionGoesByTheStoresClock(t *testing.T) {
	for _, x := range []struct {
		name    string
		wrong   time.Duration // that the worker is ahead
		stored  time.Duration // store's time after the hour's end, beyond the retention
		expired bool
		refused bool
	}{
		{"right", 0, time.Minute, true, false},
		{"right, not yet", 0, -time.Minute, false, false},
		{"ahead", 4 * time.Minute, -2 * time.Minute, false, false},
		{"ahead, over by both", 4 * time.Minute, time.Minute, true, false},
		{"far ahead", 48 * time.Hour, -time.Hour, false, true},
		{"behind", -2 * time.Hour, time.Hour, false, false},
		{"behind, over by both", -2 * time.Hour, 3 * time.Hour, true, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := newWorld(t, newMem())
			cfg := testConfig()
			cfg.Retention.Raw = 24 * time.Hour
			w.some(agentOf(0, 0), hour0, 0, 3, 0)
			w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
			m := w.compactor(cfg)
			w.wrong = x.wrong
			w.clock.Store(hour0.End().Add(24*time.Hour + x.stored + x.wrong).UnixNano())
			err := m.retention.Retain(t.Context())
			var clock *storeclock.AheadError
			if errors.As(err, &clock) != x.refused || err != nil && !x.refused {
				t.Fatalf("%v", err)
			}
			if got := w.view(hour0, false).Expired(hour0, timegrid.Raw); got != x.expired {
				t.Errorf("expired: %v", got)
			}
			e, _, err := catalog.ReadExpiry(t.Context(), w.store, testAuthority)
			must(t, err)
			if through, ok := e.Through[timegrid.Raw]; (ok && through >= hour0) != x.expired {
				t.Errorf("decided through %s", through)
			}
		})
	}
}

// A worker that is killed or paused in the middle of an expiry leaves an hour that is over
// for every reader, and whose rolled rows have all of it.
func TestRetentionThatStopsHalfWay(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Retention.Raw = 24 * time.Hour
	for id := range shard.ID(testShards) {
		w.some(agentOf(id, 0), hour0, 0, 3, 0)
		w.drive(cfg, ownership.Grant{Shard: id, Fence: 1})
	}
	w.clock.Store(hour0.End().Add(25 * time.Hour).UnixNano())
	first := w.view(hour0, true).Block(hour0, 0, timegrid.Raw)
	m := w.compactor(cfg)
	must(t, m.retention.Retain(t.Context()))
	if v := w.view(hour0, false); !v.Expired(hour0, timegrid.Raw) || len(v.Blocks(hour0, timegrid.Raw)) > 0 {
		t.Error("not expired")
	}
	// The set of one shard is back, as if the worker had stopped before it.
	_, err := w.store.Put(t.Context(), first.Name.Key(), first.Marshal(), objstore.PutOptions{})
	must(t, err)
	v := w.view(hour0, false)
	if !v.Expired(hour0, timegrid.Raw) || len(v.Blocks(hour0, timegrid.Raw)) > 0 || v.Block(hour0, 0, timegrid.Raw) != nil {
		t.Error("a part of the hour counts")
	}
	if blocks, ok := v.StandIns(hour0, timegrid.OneMinute); !ok || len(blocks) != testShards {
		t.Errorf("1m rows of %d shards stand in", len(blocks))
	}
}

// Sets of the last hour that is over are removed with the others, and those of the hour
// behind it stay; rolled rows of other resolutions do.
func TestRetentionRemoves(t *testing.T) {
	w := newWorld(t, newMem())
	cfg := testConfig()
	cfg.Retention.Raw = 24 * time.Hour
	seq := uint64(0)
	w.clock.Store((hour0 + 3).End().UnixNano())
	for h := range 3 {
		seq = w.some(agentOf(0, 0), hour0+timegrid.Hour(h), 10*h, 3, seq)
	}
	w.drive(cfg, ownership.Grant{Shard: 0, Fence: 1})
	m := w.compactor(cfg)
	w.clock.Store((hour0 + 1).End().Add(24*time.Hour + time.Minute).UnixNano())
	must(t, m.retention.Retain(t.Context()))
	for h, gone := range []bool{true, true, false} {
		for _, x := range []struct {
			of   timegrid.Resolution
			gone bool
		}{{timegrid.Raw, gone}, {timegrid.OneMinute, false}} {
			key := catalog.Name{Hour: hour0 + timegrid.Hour(h), Resolution: x.of, Generation: 1}.Key()
			r, _, err := catalog.Read(t.Context(), w.store, testAuthority, key)
			if err != nil || (r.Block == nil) != x.gone || (r.Removed != nil) != x.gone {
				t.Errorf("hour %d, %s: set %v, removed %v, %v", h, x.of, r.Block != nil, r.Removed != nil, err)
			}
		}
	}
}
