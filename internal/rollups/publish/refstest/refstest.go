// Package refstest is the conformance suite of metadata stores of reference sets.
package refstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const timeout = 20 * time.Second

var (
	one = publish.Epoch{Number: 0, ID: "0000000000000000000000000000000a"}
	two = publish.Epoch{Number: 1, ID: "0000000000000000000000000000000b"}
)

// Run plays the suite; open makes an empty store.
func Run(t *testing.T, open func(t *testing.T) publish.Refs) {
	tests := map[string]func(*testing.T, publish.Refs){
		"epoch": epoch, "sets": sets, "batch": batch, "several": several, "condemned": condemned, "condemn many": condemnMany, "swap": swap, "delete": drop, "eras": eras, "list": list,
		"full": full, "invalid": invalid, "context": canceled,
		"race of adds and condemnations": race, "race of epochs": raceEpochs,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// Txn is the n-th of distinct transactions.
func Txn(n uint64) publish.Txn {
	return publish.NewTxn(layout.BlockManifest(timegrid.Hour(498_000), 1, timegrid.Raw, n), identity.Sum([]byte("plan")))
}

// Key is the n-th of distinct keys; they ascend.
func Key(n int) string { return fmt.Sprintf("index/v1/%06d", n) }

func keys(n int) []string {
	ks := make([]string, n)
	for i := range ks {
		ks[i] = Key(i)
	}
	return ks
}

// add puts one transaction into the sets of keys, in the first epoch.
func add(ctx context.Context, r publish.Refs, t publish.Txn, keys []string) error {
	return r.Add(ctx, one.ID, publish.Addition{Txn: t, Keys: keys})
}

// remove drops one record, in the first epoch.
func remove(ctx context.Context, r publish.Refs, read publish.Record) error {
	changed, err := r.Delete(ctx, one.ID, read)
	if len(changed) > 0 {
		err = publish.ErrChanged
	}
	return err
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}

func want(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v, want %v", err, target)
	}
}

func found(t *testing.T, r publish.Refs) context.Context {
	t.Helper()
	ctx := bounded(t)
	want(t, r.InitEpoch(ctx, nil, one), nil)
	return ctx
}

func get(t *testing.T, r publish.Refs, key string) publish.Record {
	t.Helper()
	recs, err := r.Get(bounded(t), key)
	want(t, err, nil)
	rec := recs[0]
	if rec.Key != key || rec.Version == "" || !slices.IsSorted(rec.Txns) {
		t.Fatalf("record %+v", rec)
	}
	return rec
}

func absent(t *testing.T, r publish.Refs, key string) {
	t.Helper()
	recs, err := r.Get(bounded(t), key)
	want(t, err, nil)
	if len(recs) != 1 || recs[0].Key != key || recs[0].Version != "" || recs[0].Condemned || len(recs[0].Txns) > 0 {
		t.Fatalf("record %+v of an object that has none", recs)
	}
}

func epoch(t *testing.T, r publish.Refs) {
	ctx := bounded(t)
	_, err := r.Epoch(ctx)
	want(t, err, publish.ErrNoRecord)
	want(t, add(ctx, r, Txn(1), keys(1)), publish.ErrEpochMismatch)
	want(t, r.InitEpoch(ctx, &one, two), publish.ErrChanged)
	want(t, r.InitEpoch(ctx, nil, one), nil)
	want(t, r.InitEpoch(ctx, nil, two), publish.ErrChanged)
	decided := one
	decided.Decided = true
	want(t, r.InitEpoch(ctx, &one, decided), nil)
	want(t, r.InitEpoch(ctx, &one, two), publish.ErrChanged)
	want(t, add(ctx, r, Txn(1), keys(1)), nil)
	want(t, r.InitEpoch(ctx, &decided, two), nil)
	if f, err := r.Epoch(ctx); err != nil || f != two {
		t.Fatalf("%+v, %v", f, err)
	}
	// The records stay, and nothing changes them for the former epoch.
	rec := get(t, r, Key(0))
	want(t, add(ctx, r, Txn(2), keys(1)), publish.ErrEpochMismatch)
	want(t, r.Swap(ctx, one.ID, rec, publish.Record{Condemned: true}), publish.ErrEpochMismatch)
	_, err = r.Condemn(ctx, one.ID, rec)
	want(t, err, publish.ErrEpochMismatch)
	want(t, remove(ctx, r, rec), publish.ErrEpochMismatch)
	if now := get(t, r, Key(0)); now.Version != rec.Version || len(now.Txns) != 1 {
		t.Fatalf("%+v", now)
	}
}

func sets(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	absent(t, r, Key(0))
	for _, n := range []uint64{3, 1, 2, 1, 3} { // a retry is no second reference
		want(t, add(ctx, r, Txn(n), keys(1)), nil)
	}
	if rec := get(t, r, Key(0)); !slices.Equal(rec.Txns, []publish.Txn{Txn(1), Txn(2), Txn(3)}) || rec.Condemned {
		t.Fatalf("%+v", rec)
	}
}

func batch(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	want(t, add(ctx, r, Txn(1), keys(publish.MaxAdd)), nil)
	want(t, add(ctx, r, Txn(2), keys(publish.MaxAdd)), nil)
	for _, k := range []string{Key(0), Key(publish.MaxAdd - 1)} {
		if rec := get(t, r, k); len(rec.Txns) != 2 {
			t.Fatalf("%+v", rec)
		}
	}
}

// Several transactions are added together, to objects that they share as well: all or none.
func several(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	add := []publish.Addition{{Txn: Txn(1), Keys: []string{Key(0), Key(1)}}, {Txn: Txn(2), Keys: []string{Key(1), Key(2)}}}
	want(t, r.Add(ctx, one.ID, add...), nil)
	want(t, r.Add(ctx, one.ID, add...), nil)
	for n, txns := range [][]publish.Txn{{Txn(1)}, {Txn(1), Txn(2)}, {Txn(2)}} {
		if rec := get(t, r, Key(n)); !slices.Equal(rec.Txns, txns) {
			t.Fatalf("%+v", rec)
		}
	}
	want(t, r.Swap(ctx, one.ID, get(t, r, Key(1)), publish.Record{Key: Key(1), Condemned: true}), nil)
	err := r.Add(ctx, one.ID, publish.Addition{Txn: Txn(3), Keys: []string{Key(3), Key(1)}}, publish.Addition{Txn: Txn(4), Keys: []string{Key(1)}})
	var c *publish.CondemnedError
	if !errors.As(err, &c) || !slices.Equal(c.Keys, []string{Key(1)}) {
		t.Fatalf("%v, want that %s is condemned", err, Key(1))
	}
	absent(t, r, Key(3))
	var txns []publish.Txn
	for n := range uint64(publish.MaxTxns - 1) {
		txns = append(txns, Txn(n+1))
	}
	want(t, r.Swap(ctx, one.ID, publish.Record{Key: Key(4)}, publish.Record{Key: Key(4), Txns: txns}), nil)
	last := []publish.Addition{{Txn: Txn(publish.MaxTxns), Keys: []string{Key(4)}}, {Txn: Txn(publish.MaxTxns + 1), Keys: []string{Key(4)}}}
	want(t, r.Add(ctx, one.ID, last...), publish.ErrRefsFull)
	want(t, r.Add(ctx, one.ID, last[1], publish.Addition{Txn: Txn(1), Keys: []string{Key(4)}}), nil)
	want(t, r.Add(ctx, one.ID, add[0], add[0]), publish.ErrRefsInvalid)
	want(t, r.Add(ctx, one.ID, publish.Addition{Txn: Txn(1), Keys: keys(publish.MaxAdd)}, publish.Addition{Txn: Txn(2), Keys: keys(1)}), publish.ErrRefsInvalid)
}

// One condemned object refuses the batch, and is named.
func condemned(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	want(t, add(ctx, r, Txn(1), []string{Key(1)}), nil)
	want(t, r.Swap(ctx, one.ID, get(t, r, Key(1)), publish.Record{Key: Key(1), Condemned: true}), nil)
	want(t, r.Swap(ctx, one.ID, publish.Record{Key: Key(3)}, publish.Record{Key: Key(3), Condemned: true}), nil) // was never there
	err := add(ctx, r, Txn(2), keys(5))
	want(t, err, publish.ErrCondemned)
	var c *publish.CondemnedError
	if !errors.As(err, &c) {
		t.Fatalf("%v does not tell which", err)
	}
	slices.Sort(c.Keys)
	if !slices.Equal(c.Keys, []string{Key(1), Key(3)}) {
		t.Fatalf("%q", c.Keys)
	}
	absent(t, r, Key(0)) // all or none
	if rec := get(t, r, Key(1)); !rec.Condemned || len(rec.Txns) != 0 {
		t.Fatalf("%+v", rec)
	}
	want(t, add(ctx, r, Txn(1), []string{Key(1)}), publish.ErrCondemned)
}

// Of many objects those whose records are as they were read are condemned, and the others stay as they are.
func condemnMany(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	all := keys(publish.MaxAdd)
	want(t, add(ctx, r, Txn(1), all[:publish.MaxAdd-1]), nil) // the last one has no record
	read, err := r.Get(ctx, all...)
	want(t, err, nil)
	if got := publish.KeysOf(read); !slices.Equal(got, all) {
		t.Fatalf("records of %q", got)
	}
	want(t, add(ctx, r, Txn(2), []string{Key(3)}), nil)
	want(t, remove(ctx, r, read[5]), nil)
	want(t, r.Swap(ctx, one.ID, read[publish.MaxAdd-2], read[publish.MaxAdd-2]), nil) // another version
	changed, err := r.Condemn(ctx, one.ID, read...)
	want(t, err, nil)
	if slices.Sort(changed); !slices.Equal(changed, []string{Key(3), Key(5), Key(publish.MaxAdd - 2)}) {
		t.Fatalf("changed: %q", changed)
	}
	now, err := r.Get(ctx, all...)
	want(t, err, nil)
	for i, rec := range now {
		switch {
		case slices.Contains(changed, rec.Key) && rec.Condemned:
			t.Errorf("it had changed: %s", rec)
		case !slices.Contains(changed, rec.Key) && (!rec.Condemned || len(rec.Txns) > 0 || rec.Version == read[i].Version):
			t.Errorf("not condemned: %s", rec)
		}
	}
	if len(now[3].Txns) != 2 {
		t.Errorf("%s", now[3])
	}
	absent(t, r, Key(5))
	want(t, add(ctx, r, Txn(3), []string{Key(publish.MaxAdd - 1)}), publish.ErrCondemned)
	if changed, err := r.Condemn(ctx, one.ID, read[0]); err != nil || !slices.Equal(changed, []string{Key(0)}) {
		t.Errorf("by an old version: %q, %v", changed, err)
	}
	// With a base, which Swap writes, as well.
	want(t, r.Swap(ctx, one.ID, publish.Record{Key: Key(5)}, publish.Record{Key: Key(5), Txns: []publish.Txn{Txn(1)}}), nil)
	if changed, err := r.Condemn(ctx, one.ID, get(t, r, Key(5))); err != nil || len(changed) > 0 {
		t.Errorf("%q, %v", changed, err)
	}
	if rec := get(t, r, Key(5)); !rec.Condemned || len(rec.Txns) > 0 {
		t.Errorf("%s", rec)
	}
}

func swap(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	want(t, add(ctx, r, Txn(1), keys(1)), nil)
	old := get(t, r, Key(0))
	want(t, add(ctx, r, Txn(2), keys(1)), nil)
	next := publish.Record{Key: Key(0), Condemned: true}
	want(t, r.Swap(ctx, one.ID, old, next), publish.ErrChanged)
	want(t, r.Swap(ctx, one.ID, publish.Record{Key: Key(0)}, next), publish.ErrChanged) // it is there
	absent := old
	absent.Key = Key(7)
	want(t, r.Swap(ctx, one.ID, absent, next), publish.ErrChanged) // it is not
	now := get(t, r, Key(0))
	want(t, r.Swap(ctx, one.ID, now, now.Without([]publish.Txn{Txn(1)})), nil)
	if rec := get(t, r, Key(0)); !slices.Equal(rec.Txns, []publish.Txn{Txn(2)}) || rec.Version == now.Version {
		t.Fatalf("%+v", rec)
	}
	want(t, r.Swap(ctx, one.ID, now, next), publish.ErrChanged)
}

func drop(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	want(t, add(ctx, r, Txn(1), keys(1)), nil)
	old := get(t, r, Key(0))
	want(t, add(ctx, r, Txn(2), keys(1)), nil)
	want(t, remove(ctx, r, old), publish.ErrChanged)
	now := get(t, r, Key(0))
	want(t, remove(ctx, r, now), nil)
	absent(t, r, Key(0))
	want(t, remove(ctx, r, now), publish.ErrChanged)
	// Of many those go that are as they were read.
	all := keys(publish.MaxAdd)
	want(t, add(ctx, r, Txn(1), all), nil)
	read, err := r.Get(ctx, all...)
	want(t, err, nil)
	want(t, add(ctx, r, Txn(2), []string{Key(3)}), nil)
	changed, err := r.Delete(ctx, one.ID, read...)
	want(t, err, nil)
	left, _, err := r.List(ctx, "", 1000)
	want(t, err, nil)
	if !slices.Equal(changed, []string{Key(3)}) || !slices.Equal(publish.KeysOf(left), changed) || len(left[0].Txns) != 2 {
		t.Fatalf("changed %q, left %v", changed, left)
	}
}

// The next era of an epoch refuses what has the token of an earlier one, keeps all records, and says which condemnations
// are its own.
func eras(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	want(t, add(ctx, r, Txn(1), keys(4)), nil)
	condemn := func(token, key string) {
		t.Helper()
		changed, err := r.Condemn(ctx, token, get(t, r, key))
		want(t, err, nil)
		if len(changed) > 0 {
			t.Fatalf("changed: %q", changed)
		}
	}
	condemn(one.Token(), Key(0))
	second := one
	second.Era = 1
	want(t, r.InitEpoch(ctx, &second, one), publish.ErrChanged)
	want(t, r.InitEpoch(ctx, &one, second), nil)
	want(t, r.InitEpoch(ctx, &one, second), publish.ErrChanged)
	if f, err := r.Epoch(ctx); err != nil || f != second {
		t.Fatalf("%+v, %v", f, err)
	}
	rec := get(t, r, Key(1))
	want(t, add(ctx, r, Txn(2), []string{Key(1)}), publish.ErrEpochMismatch)
	_, err := r.Condemn(ctx, one.Token(), rec)
	want(t, err, publish.ErrEpochMismatch)
	want(t, r.Swap(ctx, one.Token(), rec, rec), publish.ErrEpochMismatch)
	want(t, remove(ctx, r, rec), publish.ErrEpochMismatch)
	want(t, r.Add(ctx, second.Token(), publish.Addition{Txn: Txn(2), Keys: []string{Key(0)}}), publish.ErrCondemned)
	want(t, r.Add(ctx, second.Token(), publish.Addition{Txn: Txn(2), Keys: []string{Key(1)}}), nil)
	condemn(second.Token(), Key(2))
	want(t, r.Swap(ctx, second.Token(), get(t, r, Key(3)), publish.Record{Key: Key(3), Condemned: true}), nil)
	records, _, err := r.List(ctx, "", 1000)
	want(t, err, nil)
	for i, since := range []uint32{0, 0, second.FirstGeneration(), second.FirstGeneration()} {
		if rec := records[i]; rec.Key != Key(i) || rec.Condemned != (i != 1) || rec.Since != since || get(t, r, Key(i)).Since != since {
			t.Errorf("%+v, want that it is condemned since %d", rec, since)
		}
	}
	if rec := get(t, r, Key(1)); len(rec.Txns) != 2 {
		t.Errorf("%+v", rec)
	}
}

func list(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	want(t, add(ctx, r, Txn(1), keys(7)), nil)
	var got []string
	after, pages := "", 0
	for ; pages < 10; pages++ {
		recs, next, err := r.List(ctx, after, 3)
		want(t, err, nil)
		if len(recs) > 3 {
			t.Fatalf("%d records on a page of 3", len(recs))
		}
		for _, rec := range recs {
			if !slices.Equal(rec.Txns, []publish.Txn{Txn(1)}) || rec.Version == "" {
				t.Fatalf("%+v", rec)
			}
			got = append(got, rec.Key)
		}
		if after = next; next == "" {
			break
		}
	}
	if !slices.Equal(got, keys(7)) {
		t.Fatalf("%q on %d pages", got, pages+1)
	}
}

func full(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	var txns []publish.Txn
	for n := range uint64(publish.MaxTxns) {
		txns = append(txns, Txn(n+1))
	}
	want(t, r.Swap(ctx, one.ID, publish.Record{Key: Key(0)}, publish.Record{Key: Key(0), Txns: txns}), nil)
	want(t, add(ctx, r, Txn(publish.MaxTxns+1), keys(2)), publish.ErrRefsFull)
	absent(t, r, Key(1))
	want(t, add(ctx, r, Txn(1), keys(2)), nil)
	if rec := get(t, r, Key(0)); len(rec.Txns) != publish.MaxTxns {
		t.Fatalf("%d transactions", len(rec.Txns))
	}
}

func invalid(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	want(t, add(ctx, r, Txn(1), nil), publish.ErrRefsInvalid)
	want(t, add(ctx, r, Txn(1), keys(publish.MaxAdd+1)), publish.ErrRefsInvalid)
	want(t, add(ctx, r, Txn(1), []string{Key(1), Key(1)}), publish.ErrRefsInvalid)
	want(t, add(ctx, r, "x", keys(1)), publish.ErrRefsInvalid)
	for _, bad := range [][]string{nil, {Key(1), Key(1)}, {""}, keys(publish.MaxAdd + 1)} {
		_, err := r.Get(ctx, bad...)
		want(t, err, publish.ErrRefsInvalid)
		var recs []publish.Record
		for _, k := range bad {
			recs = append(recs, publish.Record{Key: k})
		}
		_, err = r.Condemn(ctx, one.ID, recs...)
		want(t, err, publish.ErrRefsInvalid)
		_, err = r.Delete(ctx, one.ID, recs...)
		want(t, err, publish.ErrRefsInvalid)
	}
}

func canceled(t *testing.T, r publish.Refs) {
	found(t, r)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := add(ctx, r, Txn(1), keys(1))
	want(t, err, publish.ErrRefsUnknown)
	want(t, err, context.Canceled)
	_, err = r.Get(ctx, Key(0))
	want(t, err, publish.ErrRefsUnknown)
}

// Either the reference is in the set, and the record is not condemned, or it is refused.
func race(t *testing.T, r publish.Refs) {
	ctx := found(t, r)
	const rounds, adders = 8, 4
	for round := range rounds {
		key := Key(round)
		added := make([]error, adders)
		condemned := 0
		var wg sync.WaitGroup
		for i := range adders {
			wg.Go(func() { added[i] = add(ctx, r, Txn(uint64(i+1)), []string{key, Key(1000 + i)}) })
		}
		wg.Go(func() {
			recs, err := r.Get(ctx, key)
			var changed []string
			if err == nil {
				changed, err = r.Condemn(ctx, one.ID, recs...)
			}
			if err != nil {
				t.Error(err)
			} else if len(changed) == 0 {
				condemned = len(recs[0].Txns) + 1
			}
		})
		wg.Wait()
		rec := get(t, r, key)
		in := 0
		for i, err := range added {
			switch {
			case err == nil:
				in++
				if condemned == 0 && !slices.Contains(rec.Txns, Txn(uint64(i+1))) {
					t.Errorf("round %d: reference %d is lost", round, i)
				}
			case !errors.Is(err, publish.ErrCondemned):
				t.Error(err)
			}
		}
		// Those that were in the set when it was condemned are those that were added.
		if rec.Condemned != (condemned > 0) || condemned > 0 && in != condemned-1 {
			t.Errorf("round %d: %d added, %d in the set when it was condemned: %+v", round, in, condemned-1, rec)
		}
	}
}

func raceEpochs(t *testing.T, r publish.Refs) {
	ctx := bounded(t)
	errs := make([]error, 6)
	var wg sync.WaitGroup
	for i := range errs {
		f := one
		f.ID = fmt.Sprintf("%032x", i)
		wg.Go(func() { errs[i] = r.InitEpoch(ctx, nil, f) })
	}
	wg.Wait()
	winner := -1
	for i, err := range errs {
		if err == nil && winner < 0 {
			winner = i
		} else if !errors.Is(err, publish.ErrChanged) {
			t.Errorf("epoch %d: %v", i, err)
		}
	}
	if f, err := r.Epoch(ctx); err != nil || winner < 0 || f.ID != fmt.Sprintf("%032x", winner) {
		t.Errorf("%+v, %v, winner %d", f, err, winner)
	}
}
