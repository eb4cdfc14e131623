package catalog

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// paged lists in short pages, and fails one of them.
type paged struct {
	objstore.Reader
	size int

	mu    sync.Mutex
	fails int // the page that fails, counted from 1; 0 for none
	lists int
}

var errPage = errors.New("no page")

func (p *paged) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	p.mu.Lock()
	p.lists++
	fail := p.lists == p.fails
	p.mu.Unlock()
	if fail {
		return objstore.Page{}, errPage
	}
	o.Limit = p.size
	return p.Reader.List(ctx, o)
}

// atOnce calls all at once.
func atOnce(ctx context.Context, n int, fn func(context.Context, int) error) error {
	errs := make([]error, n)
	var g sync.WaitGroup
	for i := range n {
		g.Go(func() { errs[i] = fn(ctx, i) })
	}
	g.Wait()
	return errors.Join(errs...)
}

// TestHoursAreListedAtOnce: listings of parts of the hours together give the slots that one listing gives, wherever
// pages end and whatever was read of the hours before. After a page that fails the hours before it are whole, and a repeat finds the rest.
func TestHoursAreListedAtOnce(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 0))
		s := mem.New(nil)
		for h := range timegrid.Hour(30) {
			// Hours with many records, with few and with none.
			for sh := range shard.ID(rng.IntN(5)) {
				for gen := range uint64(1 + rng.IntN(6)) {
					n := Name{Hour: testHour + h, Shard: sh, Resolution: timegrid.Raw, Generation: gen + 1}
					put(t, s, Record{Aborted: &Aborted{AuthorityID: "authority-1", Name: n, Reason: "test", WorkerID: "w"}})
				}
			}
			if rng.IntN(4) == 0 {
				if _, err := s.Put(t.Context(), layout.BlockManifestsHour(testHour+h)+"foreign", nil, objstore.PutOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		from := testHour + timegrid.Hour(rng.IntN(10))
		to := from + 1 + timegrid.Hour(rng.IntN(25))
		known := seed%2 == 1
		list := func(r objstore.Reader) ([]Slot, timegrid.Hour, error) {
			c, err := New(Config{Reader: r, AuthorityID: "authority-1", Each: atOnce})
			if err != nil {
				t.Fatal(err)
			}
			c.left.Store(10_000)
			// What an earlier refresh read of some hours may be right or wrong by now.
			rng := rand.New(rand.NewPCG(seed, 1)) // the same for each catalog
			for h := from - 2; known && h <= to; h += timegrid.Hour(1 + rng.IntN(3)) {
				c.wasRead(h, h)
				c.view.hours[h] = &hour{listed: make([]version, rng.IntN(2000))}
			}
			return c.list(t.Context(), from, to)
		}
		var want []Slot
		for of, err := range Slots(t.Context(), s, objstore.ListOptions{Prefix: layout.ManifestsPrefix}) {
			if err != nil {
				t.Fatal(err)
			}
			if of.Name.Hour >= from && of.Name.Hour <= to {
				want = append(want, of)
			}
		}
		pages := &paged{Reader: s, size: 1 + rng.IntN(40)}
		got, end, err := list(pages)
		if err != nil || end != to+1 || len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %v, to %s\ngot %v\nwant %v", seed, err, end, got, want)
		}
		pages = &paged{Reader: s, size: pages.size, fails: 1 + rng.IntN(pages.lists)}
		got, end, err = list(pages)
		n := 0
		for n < len(want) && want[n].Name.Hour < end {
			n++
		}
		if !errors.Is(err, errPage) || end > to || len(got)+n > 0 && !reflect.DeepEqual(got, want[:n]) {
			t.Fatalf("seed %d: with a page that fails: %v, to %s\ngot %v\nwant %v", seed, err, end, got, want[:n])
		}
	}
}
