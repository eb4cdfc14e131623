package catalog

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestADenseHourDoesNotSpendTheBudget: one hour with very many generations does not make a listing of each of a year's hours,
// of which a page has hundreds.
func TestADenseHourDoesNotSpendTheBudget(t *testing.T) {
	s := mem.New(nil)
	const hours = 24 * 365
	for h := range timegrid.Hour(hours) {
		gens := uint64(1)
		if h == 3 {
			gens = 600
		}
		for gen := range gens {
			n := Name{Hour: testHour + h, Shard: 0, Resolution: timegrid.Raw, Generation: gen + 1}
			put(t, s, Record{Aborted: &Aborted{AuthorityID: "authority-1", Name: n, Reason: "test", WorkerID: "w"}})
		}
	}
	list := func(read func(c *Catalog)) int {
		pages := &paged{Reader: s, size: pageKeys}
		c, err := New(Config{Reader: pages, AuthorityID: "authority-1", Each: atOnce})
		if err != nil {
			t.Fatal(err)
		}
		read(c)
		c.left.Store(DefaultMaxRequests)
		slots, end, err := c.list(t.Context(), testHour, testHour+hours-1)
		if err != nil || end != testHour+hours || len(slots) != hours {
			t.Fatalf("%d slots, to %s: %v", len(slots), end, err)
		}
		return pages.lists
	}
	if n := list(func(*Catalog) {}); n > 20 {
		t.Errorf("%d requests for %d keys", n, hours+600)
	}
	// The same where the hours before have been read.
	if n := list(func(c *Catalog) {
		for h := range timegrid.Hour(24) {
			c.wasRead(testHour+h, testHour+h)
			c.view.hours[testHour+h] = &hour{listed: make([]version, 1)}
		}
		c.view.hours[testHour+3] = &hour{listed: make([]version, 600)}
	}); n > 20 {
		t.Errorf("%d requests for %d keys after a day was read", n, hours+600)
	}
}

// TestPartsLeaveRequests: where every hour of the first page is dense and few requests are left, hours are listed in as many
// parts as leave most of these.
func TestPartsLeaveRequests(t *testing.T) {
	s := mem.New(nil)
	for h := range timegrid.Hour(4) {
		for gen := range uint64(300) {
			n := Name{Hour: testHour + h, Shard: 0, Resolution: timegrid.Raw, Generation: gen + 1}
			put(t, s, Record{Aborted: &Aborted{AuthorityID: "authority-1", Name: n, Reason: "test", WorkerID: "w"}})
		}
	}
	pages := &paged{Reader: s, size: pageKeys}
	c, err := New(Config{Reader: pages, AuthorityID: "authority-1", Each: atOnce})
	if err != nil {
		t.Fatal(err)
	}
	c.left.Store(100)
	slots, _, err := c.list(t.Context(), testHour, testHour+5000)
	if err != nil || len(slots) != 4 || pages.lists > 30 {
		t.Errorf("%d slots after %d requests: %v", len(slots), pages.lists, err)
	}
}
