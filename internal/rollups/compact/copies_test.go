package compact_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// asked counts what a copier asks of a store; its requests from fails on fail.
type asked struct {
	compact.CopierStore
	gets, lists, puts int
	fails             int // 0 for none
}

var errAsked = errors.New("no answer")

func (a *asked) next() error {
	if a.fails > 0 && a.gets+a.lists+a.puts >= a.fails {
		return errAsked
	}
	return nil
}

func (a *asked) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	a.gets++
	if err := a.next(); err != nil {
		return nil, objstore.Info{}, err
	}
	return a.CopierStore.Get(ctx, key, o)
}

func (a *asked) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	a.lists++
	if err := a.next(); err != nil {
		return objstore.Page{}, err
	}
	return a.CopierStore.List(ctx, o)
}

func (a *asked) Put(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	a.puts++
	if err := a.next(); err != nil {
		return objstore.Info{}, err
	}
	return a.CopierStore.Put(ctx, key, b, o)
}

// TestCopierFollowsTheRecords: copies have the records that count, before and after compactions; what has not changed
// is not read again; a copier that begins reads the copies that there are in place of the records.
func TestCopierFollowsTheRecords(t *testing.T) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(8 * time.Hour)
	w.rollAll(hour0, 6, timegrid.Raw, timegrid.OneMinute)
	day, last := layout.DayOf(hour0), hour0+23
	store := &asked{CopierStore: w.store}
	c := compact.NewCopier(store, authority, gc.OneByOne)
	copyDay := func(c *compact.Copier, wantWritten bool, least, most int) {
		t.Helper()
		*store = asked{CopierStore: w.store}
		written, err := c.Copy(t.Context(), day, last)
		if err != nil || written != wantWritten || store.gets < least || store.gets > most || store.lists != 1 {
			t.Fatalf("written %t, %+v, %v", written, store, err)
		}
	}
	agree := func() {
		t.Helper()
		copies, err := catalog.ReadCopies(t.Context(), w.store, authority, day)
		w.must(err)
		v := w.view()
		n := 0
		for _, res := range timegrid.Resolutions() {
			for h := hour0; h <= last; h++ {
				for _, b := range v.Blocks(h, res) {
					n++
					x := copies.Find(b.Name)
					if x == nil || x.Record.Block == nil || (x.Record.Block.Redirect == nil) != (b.Redirect == nil) {
						t.Fatalf("%s: %+v", b.Name.Key(), x)
					}
					if b.Redirect != nil && copies.Find(b.Redirect.Name) == nil {
						t.Fatalf("%s is not copied", b.Redirect.Name.Key())
					}
				}
			}
		}
		if n == 0 {
			t.Fatal("no blocks")
		}
	}
	records := len(w.keys(layout.ManifestsPrefix))
	copyDay(c, true, records, records+1) // and the copies, which are not there
	agree()
	copyDay(c, false, 0, 0)
	copyDay(compact.NewCopier(store, authority, gc.OneByOne), false, 1, 1)
	w.compactAll(settings())
	copyDay(c, true, 2, 2*records)
	agree()
	copyDay(c, false, 0, 0)
	w.roll(hour0+2, 1, timegrid.Raw, timegrid.OneMinute) // a late batch
	copyDay(c, true, 2, 6)
	agree()
}

// TestCopiesAfterACrash: whichever request of a copier is its last, views are the same, and the next copier finishes.
func TestCopiesAfterACrash(t *testing.T) {
	w := newWorld(t)
	w.clock.now = hour0.Start().Add(8 * time.Hour)
	w.rollAll(hour0, 3, timegrid.Raw, timegrid.OneMinute)
	day := layout.DayOf(hour0)
	for n := 1; ; n++ {
		if n == 4 {
			w.compactAll(settings())
		}
		_, err := compact.NewCopier(&asked{CopierStore: w.store, fails: n}, authority, gc.OneByOne).Copy(t.Context(), day, hour0+23)
		if err != nil && !errors.Is(err, errAsked) {
			t.Fatal(err)
		}
		cat, cerr := catalog.New(catalog.Config{Reader: w.store, AuthorityID: authority, Copies: true})
		w.must(cerr)
		v, cerr := cat.Refresh(t.Context(), hour0-1, hour0+24)
		w.must(cerr)
		if !slices.Equal(v.Hours(), w.view().Hours()) || len(v.Problems(hour0)) > 0 {
			t.Fatalf("after %d requests: %v, %v", n, v.Hours(), v.Problems(hour0))
		}
		if err == nil {
			return
		}
	}
}
