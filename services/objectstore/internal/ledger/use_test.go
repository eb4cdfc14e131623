package ledger

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

// TestRecount: counts that are wrong are corrected, also while rows change.
func TestRecount(t *testing.T) {
	fsys := pebblevfs.NewMem()
	l := open(t, fsys)
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	row := func(n int) Row {
		return Row{Key: Key{Body: body(n)}, K: 1, Place: "p", Size: 100, State: Uploaded}
	}
	for i := range 300 {
		must[Row](t)(l.Insert(row(i), t0))
	}
	wrong := Use{-7, 5_000}
	if err := l.update(func(c *change) error {
		c.uses["p"] = wrong
		return c.setUse("p", l.uses["p"].plus(wrong))
	}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 300; i < 600; i++ {
			r, err := l.Insert(row(i), t0)
			if err == nil && i%3 == 0 {
				err = l.Forget(r)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	off, err := l.Recount("p")
	if err != nil || off != wrong {
		t.Errorf("%+v, %v", off, err)
	}
	wg.Wait()
	if got := l.Use("p"); got != (Use{500, 50_000}) {
		t.Errorf("%+v", got)
	}
	if off, err := l.Recount("p"); err != nil || off != (Use{}) {
		t.Errorf("%+v, %v", off, err)
	}
	if off, err := l.Recount("nobody"); err != nil || off != (Use{}) {
		t.Errorf("%+v, %v", off, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, fsys)
	if got := l.Use("p"); got != (Use{500, 50_000}) {
		t.Errorf("%+v after it was opened again", got)
	}
}

// TestMessagesAreReadInPages: however many wait, one page of them is in memory, and each is seen once.
func TestMessagesAreReadInPages(t *testing.T) {
	l := open(t, pebblevfs.NewMem())
	defer func() { _ = l.Close() }()
	const n = 2*page + 7
	for i := range n {
		send(t, l, i, t0.Add(time.Hour))
	}
	first, err := l.queuedBehind("")
	if err != nil || len(first) != page {
		t.Fatalf("%d, %v", len(first), err)
	}
	var seen []string
	if err := l.eachMessage(func(m Message) error {
		seen = append(seen, m.Body)
		if m.Due != t0.Add(time.Hour).UnixNano() {
			return fmt.Errorf("%+v", m)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(seen) != n || !slices.IsSorted(seen) || len(slices.Compact(seen)) != n {
		t.Errorf("%d of %d", len(seen), n)
	}
	if moved, err := l.Hasten(t0); err != nil || moved != n {
		t.Errorf("%d, %v", moved, err)
	}
}
