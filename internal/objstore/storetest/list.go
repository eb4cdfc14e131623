package storetest

import (
	"fmt"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// tree is not sorted, so that a store which lists in order of creation fails.
var tree = []string{"b/2", "a/1", "b/10", "b/1", "c", "a/2/x", "b-", "b0", "b/1.json", "d/e/f"}

func (t *suite) plant() {
	for _, k := range tree {
		t.mustCreate(k, []byte(k))
	}
}

func (t *suite) sameKeys(got []objstore.Info, want []string) {
	t.Helper()
	want = slices.Sorted(slices.Values(want))
	if keys := keysOf(got); !slices.Equal(keys, want) {
		t.Fatalf("listed %q, want %q", keys, want)
	}
	for _, o := range got {
		t.describes(o, o.Key, []byte(o.Key), "")
	}
}

func keysOf(objects []objstore.Info) []string {
	var keys []string
	for _, o := range objects {
		keys = append(keys, o.Key)
	}
	return keys
}

func (t *suite) list() {
	p := t.listed(objstore.ListOptions{})
	if len(p.Objects) != 0 || p.Next != "" {
		t.Fatalf("empty store lists %+v", p)
	}
	// Followers of the journal show the store's time, and must not show one that lies before what was stored.
	if p.Date.IsZero() || p.Date.Nanosecond() != 0 {
		t.Fatalf("a listing without the store's time, to the second: %v", p.Date)
	}
	t.plant()
	t.sameKeys(t.listed(objstore.ListOptions{}).Objects, tree)
	for _, c := range []struct {
		o    objstore.ListOptions
		want []string
	}{
		{objstore.ListOptions{Prefix: "b/"}, []string{"b/1", "b/1.json", "b/10", "b/2"}},
		{objstore.ListOptions{Prefix: "b/1"}, []string{"b/1", "b/1.json", "b/10"}},
		{objstore.ListOptions{Prefix: "b"}, []string{"b-", "b/1", "b/1.json", "b/10", "b/2", "b0"}},
		{objstore.ListOptions{Prefix: "x"}, nil},
		{objstore.ListOptions{Prefix: "b/", StartAfter: "b/1.json"}, []string{"b/10", "b/2"}},
		{objstore.ListOptions{Prefix: "b/", StartAfter: "b/11"}, []string{"b/2"}},
		{objstore.ListOptions{Prefix: "b/", StartAfter: "a"}, []string{"b/1", "b/1.json", "b/10", "b/2"}},
		{objstore.ListOptions{Prefix: "b/", StartAfter: "c"}, nil},
		{objstore.ListOptions{StartAfter: "b/2"}, []string{"b0", "c", "d/e/f"}},
		{objstore.ListOptions{StartAfter: "z"}, nil},
	} {
		p := t.listed(c.o)
		t.sameKeys(p.Objects, c.want)
		if p.Next != "" || len(p.CommonPrefixes) != 0 {
			t.Errorf("list %+v: %+v", c.o, p)
		}
	}
}

func (t *suite) listPages() {
	t.plant()
	for limit := 1; limit <= len(tree); limit++ {
		var got []objstore.Info
		o := objstore.ListOptions{Limit: limit}
		for range len(tree) + 1 {
			p := t.listed(o)
			if len(p.Objects) > limit {
				t.Fatalf("limit %d: page of %d", limit, len(p.Objects))
			}
			got = append(got, p.Objects...)
			if o.StartAfter = p.Next; p.Next == "" {
				break
			}
		}
		t.sameKeys(got, tree)
	}
}

func (t *suite) listGroups() {
	t.plant()
	for _, c := range []struct {
		prefix, after string
		want          []string // keys and groups in order
	}{
		{"", "", []string{"a/", "b-", "b/", "b0", "c", "d/"}},
		{"a/", "", []string{"a/1", "a/2/"}},
		{"b", "", []string{"b-", "b/", "b0"}},
		{"", "a/", []string{"b-", "b/", "b0", "c", "d/"}},
		{"", "b/1", []string{"b0", "c", "d/"}},
		{"a/", "a/1", []string{"a/2/"}},
		{"d/e/f", "", []string{"d/e/f"}},
		{"d/", "d/e/", nil},
	} {
		for limit := 1; limit <= len(c.want)+1; limit++ {
			var got []string
			o := objstore.ListOptions{Prefix: c.prefix, StartAfter: c.after, Delimiter: "/", Limit: limit}
			for range len(tree) + 1 {
				p := t.listed(o)
				page := append(keysOf(p.Objects), p.CommonPrefixes...)
				if len(page) > limit {
					t.Fatalf("limit %d: page of %q", limit, page)
				}
				slices.Sort(page)
				got = append(got, page...)
				if o.StartAfter = p.Next; p.Next == "" {
					break
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("prefix %q after %q by %d: %q, want %q", c.prefix, c.after, limit, got, c.want)
			}
		}
	}
}

// listMany crosses the page limit with more keys than one page holds.
func (t *suite) listMany() {
	const n = objstore.MaxListLimit + 25
	want := make([]string, n)
	var wg sync.WaitGroup
	errs := make([]error, n)
	slots := make(chan struct{}, 16)
	for i := range n {
		want[i] = fmt.Sprintf("many/%05d", i)
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			_, errs[i] = t.s.Create(t.ctx(), want[i], []byte(want[i]), objstore.PutOptions{})
		})
	}
	wg.Wait()
	for _, err := range errs {
		t.want(err, nil, "create")
	}
	p := t.listed(objstore.ListOptions{Prefix: "many/", Limit: 5000})
	if len(p.Objects) > objstore.MaxListLimit || p.Next == "" {
		t.Fatalf("page of %d, next %q", len(p.Objects), p.Next)
	}
	var got []objstore.Info
	for i, err := range objstore.List(t.ctx(), t.s, objstore.ListOptions{Prefix: "many/", Limit: 700}) {
		t.want(err, nil, "list all")
		got = append(got, i)
	}
	t.sameKeys(got, want)
}
