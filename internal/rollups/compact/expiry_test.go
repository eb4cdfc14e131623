package compact_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// reader reads the views of a new reader over s.
func (w *world) reader(s objstore.Reader) (*catalog.View, error) {
	c, err := catalog.New(catalog.Config{Reader: s, AuthorityID: authority})
	w.must(err)
	return c.Refresh(w.t.Context(), hour0, hour0+10)
}

// expired wants an hour to have the blocks of all shards, or none and to say so.
func (w *world) expired(what string, v *catalog.View, h timegrid.Hour) bool {
	w.t.Helper()
	n := len(v.Blocks(h, timegrid.Raw))
	if n != 0 && n != shards || (n == 0) != v.Expired(h, timegrid.Raw) {
		w.t.Fatalf("%s: %d blocks of %d, expired %v", what, n, shards, v.Expired(h, timegrid.Raw))
	}
	return n == 0
}

// However retention gets on, dies or pauses, an hour has the blocks of all shards for every
// reader or of none, and it never has them again.
func TestHoursExpireForAllShardsAtOnce(t *testing.T) {
	base := newWorld(t)
	base.clock.now = hour0.Start().Add(8 * time.Hour)
	base.rollAll(hour0, 3, timegrid.Raw, timegrid.OneMinute)
	base.compactAll(settings())
	base.roll(hour0, 1, timegrid.Raw, timegrid.OneMinute)
	w := base.clone()
	p := w.tap()
	over := map[timegrid.Hour]bool{}
	looked := 0
	p.before = func(n int, write bool) error {
		v, err := w.reader(w.store)
		w.must(err)
		for h := hour0; h < hour0+3; h++ {
			is := w.expired(fmt.Sprintf("before request %d, hour %d", n, h-hour0), v, h)
			if over[h] && !is {
				t.Fatalf("hour %d is there again", h-hour0)
			}
			over[h] = is
		}
		looked++
		return nil
	}
	w.must1(w.expirerOver(p, tapRefs{p}).Expire(t.Context(), timegrid.Raw, hour0, hour0+1))
	if looked < 2*shards || !over[hour0] || !over[hour0+1] || over[hour0+2] {
		t.Fatalf("%d looks, expired %v", looked, over)
	}
	// A late batch does not bring the hour back.
	w.roll(hour0, 2, timegrid.Raw, timegrid.OneMinute)
	v, err := w.reader(w.store)
	w.must(err)
	if !w.expired("after a late batch", v, hour0) {
		t.Error("the hour is there again")
	}
	if blocks, ok := v.StandIns(hour0, timegrid.OneMinute); !ok || len(blocks) != shards {
		t.Errorf("1m rows of %d shards stand in", len(blocks))
	}
}

// A reader that is in the middle of its requests while an hour expires sees all of it, or
// nothing, or that it does not know.
func TestReadersDuringExpiry(t *testing.T) {
	base := newWorld(t)
	base.clock.now = hour0.Start().Add(8 * time.Hour)
	base.rollAll(hour0, 2, timegrid.Raw, timegrid.OneMinute)
	for at := 1; ; at++ {
		w := base.clone()
		p := w.tap()
		p.before = func(n int, write bool) error {
			if n == at {
				w.must1(w.expirer().Expire(t.Context(), timegrid.Raw, hour0, hour0))
			}
			return nil
		}
		v, err := w.reader(p)
		w.must(err)
		if len(v.Problems(hour0)) == 0 {
			w.expired(fmt.Sprintf("expiry before request %d", at), v, hour0)
		}
		if w.expired("an hour that stays", v, hour0+1) {
			t.Fatal("it has expired")
		}
		if at > p.n {
			return
		}
	}
}

// Blocks that were removed without a decision, as workers did before there was one, take
// the hour's others with them.
func TestHalfOfAnHourIsNotTheHour(t *testing.T) {
	w := newWorld(t)
	w.rollAll(hour0, 2, timegrid.Raw, timegrid.OneMinute)
	w.must1(w.publisher().Expire(t.Context(), catalog.Name{Hour: hour0, Shard: 2, Resolution: timegrid.Raw, Generation: 1}))
	v := w.view()
	if !v.Expired(hour0, timegrid.Raw) || len(v.Blocks(hour0, timegrid.Raw)) > 0 || v.Expired(hour0+1, timegrid.Raw) || v.Expired(hour0, timegrid.OneMinute) {
		t.Error("what is left of an hour is taken for the hour")
	}
	if blocks, ok := v.StandIns(hour0, timegrid.OneMinute); !ok || len(blocks) != shards {
		t.Errorf("1m rows of %d shards stand in", len(blocks))
	}
	// One shard's rows of the resolution are older than its samples were.
	w.roll(hour0+1, 1, timegrid.Raw)
	w.must1(w.publisher().Expire(t.Context(), catalog.Name{Hour: hour0 + 1, Shard: 1, Resolution: timegrid.Raw, Generation: 2}))
	if v := w.view(); !v.Expired(hour0+1, timegrid.Raw) {
		t.Error("not expired")
	} else if _, ok := v.StandIns(hour0+1, timegrid.OneMinute); ok {
		t.Error("rows without a late batch stand in for samples with it")
	}
}

// A late batch of an hour that one shard had makes all of its rows again: only the decision
// tells that the hour is over, as it does for readers of other nodes and for other shards.
func TestExpiredHourOfOneShardStaysExpired(t *testing.T) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(8 * time.Hour)
	w.roll(hour0, 1, timegrid.Raw, timegrid.OneMinute)
	w.must1(w.expirer().Expire(t.Context(), timegrid.Raw, hour0, hour0))
	w.roll(hour0, 1, timegrid.Raw, timegrid.OneMinute)
	v := w.view()
	if !v.Expired(hour0, timegrid.Raw) || len(v.Blocks(hour0, timegrid.Raw)) > 0 || v.Block(hour0, 1, timegrid.Raw) != nil {
		t.Error("the hour is there again")
	}
	if _, ok := v.StandIns(hour0, timegrid.OneMinute); !ok {
		t.Error("no 1m rows stand in")
	}
	if v.Empty(hour0) || !v.Empty(hour0+1) || v.Expired(hour0-1, timegrid.Raw) {
		t.Error("an hour of which nothing was published is no loss")
	}
}

// The decision goes forward only, each resolution's for itself, and survives lost answers and
// other workers.
func TestExpiryGoesForwardOnly(t *testing.T) {
	w := newWorld(t)
	read := func() catalog.Expiry {
		t.Helper()
		e, _, err := catalog.ReadExpiry(t.Context(), w.store, authority)
		w.must(err)
		return e
	}
	if e := read(); len(e.Through) != 0 {
		t.Fatalf("%+v", e)
	}
	for _, x := range []struct {
		win      timegrid.Resolution
		to, want timegrid.Hour
	}{{timegrid.Raw, 5, 5}, {timegrid.Raw, 3, 5}, {timegrid.OneMinute, 2, 2}, {timegrid.Raw, 6, 6}, {timegrid.OneMinute, 1, 2}} {
		w.must1(w.expirer().Expire(t.Context(), x.win, hour0, hour0+x.to))
		if e := read(); e.Through[x.win] != hour0+x.want {
			t.Errorf("%s through %d: %v", x.win, x.to, e.Through)
		}
	}
	// The answer to the write is lost; another worker writes between the read and the write.
	p := w.tap()
	p.after = func(n int, write bool) error {
		if n == 2 && write {
			return fmt.Errorf("%w (test)", objstore.ErrUnknown)
		}
		if n == 3 && !write {
			w.must1(w.expirer().Expire(t.Context(), timegrid.FiveMinutes, hour0, hour0+1))
		}
		return nil
	}
	w.must1(w.expirerOver(p, tapRefs{p}).Expire(t.Context(), timegrid.Raw, hour0, hour0+8))
	p.n = 2 // the next read is the third request
	w.must1(w.expirerOver(p, tapRefs{p}).Expire(t.Context(), timegrid.Raw, hour0, hour0+9))
	if e := read(); e.Through[timegrid.Raw] != hour0+9 || e.Through[timegrid.FiveMinutes] != hour0+1 || e.Through[timegrid.OneMinute] != hour0+2 {
		t.Errorf("%v", e.Through)
	}
}

// A decision that can't be read is a problem of every hour, and the next one mends it.
func TestDamagedExpiry(t *testing.T) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(8 * time.Hour)
	w.rollAll(hour0, 3, timegrid.Raw)
	w.must1(w.expirer().Expire(t.Context(), timegrid.Raw, hour0, hour0))
	w.must1(w.store.Put(t.Context(), layout.RollupExpiryKey, []byte("{"), objstore.PutOptions{}))
	v, err := w.reader(w.store)
	w.must(err)
	for h := hour0; h < hour0+3; h++ {
		if ps := v.Problems(h); len(ps) != 1 || ps[0].Key != layout.RollupExpiryKey || !errors.Is(ps[0].Err, record.ErrCorrupt) {
			t.Errorf("hour %d: %v", h-hour0, ps)
		}
		w.expired("its blocks are removed", v, h)
	}
	w.must1(w.expirer().Expire(t.Context(), timegrid.Raw, hour0, hour0+1))
	v = w.view()
	for h := hour0; h < hour0+3; h++ {
		if w.expired("mended", v, h) != (h <= hour0+1) {
			t.Errorf("hour %d has expired: %v", h-hour0, v.Expired(h, timegrid.Raw))
		}
	}
}

func TestExpiryRecordsAreCanonical(t *testing.T) {
	e := catalog.Expiry{AuthorityID: "a", Through: map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: hour0, timegrid.OneHour: -5}, DecidedAt: 7, WorkerID: "w"}
	const want = `{"schema":"lightmetrics.rollup_expiry.v1","authority_id":"a","through":{"1h":"1969-12-31T19","raw":"2024-10-04T00"},"decided_at_unix_ns":7,"worker_id":"w"}`
	if got := string(e.Marshal()); got != want {
		t.Errorf("%s", got)
	}
	if got, err := catalog.ParseExpiry([]byte(want)); err != nil || string(got.Marshal()) != want || !got.Covers(hour0, timegrid.Raw) || got.Covers(hour0+1, timegrid.Raw) || got.Covers(hour0, timegrid.OneMinute) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "{}", want + " ", want[:len(want)-1], want[:12] + "x" + want[13:]} {
		if _, err := catalog.ParseExpiry([]byte(bad)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
