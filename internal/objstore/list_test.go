package objstore_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

func filled(t *testing.T) *fault.Store {
	t.Helper()
	m := mem.New(nil)
	for i := range 25 {
		if _, err := m.Create(t.Context(), fmt.Sprintf("p/%d/%02d", i/10, i), nil, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return fault.New(m, 1)
}

func TestListGoesThroughAllPages(t *testing.T) {
	s := filled(t)
	var keys []string
	for i, err := range objstore.List(t.Context(), s, objstore.ListOptions{Prefix: "p/", StartAfter: "p/0/04", Limit: 6}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, i.Key)
	}
	if len(keys) != 20 || keys[0] != "p/0/05" || keys[19] != "p/2/24" || !slices.IsSorted(keys) || s.Count("list", "") != 4 {
		t.Errorf("%d requests: %q", s.Count("list", ""), keys)
	}
	var groups []string
	for g, err := range objstore.Groups(t.Context(), s, objstore.ListOptions{Prefix: "p/", Delimiter: "/", Limit: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
	}
	if !slices.Equal(groups, []string{"p/0/", "p/1/", "p/2/"}) {
		t.Errorf("groups %q", groups)
	}
}

// Who has seen enough asks for no more pages.
func TestListEndsWithItsReader(t *testing.T) {
	s := filled(t)
	for range objstore.List(t.Context(), s, objstore.ListOptions{Limit: 6}) {
		break
	}
	if n := s.Count("list", ""); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// A page that fails is an error and the last that there is, never the end of the listing.
func TestListThatFails(t *testing.T) {
	s := filled(t)
	s.Add(fault.NotApplied("list", "").Nth(3))
	n, failed := 0, 0
	for i, err := range objstore.List(t.Context(), s, objstore.ListOptions{Limit: 6}) {
		switch {
		case err == nil:
			n++
		case errors.Is(err, objstore.ErrUnavailable) && i == (objstore.Info{}):
			failed++
		default:
			t.Errorf("%+v, %v", i, err)
		}
	}
	if n != 12 || failed != 1 {
		t.Errorf("%d objects and %d errors", n, failed)
	}
	for g, err := range objstore.Groups(t.Context(), fault.New(mem.New(nil), 1, fault.NotApplied("list", "")), objstore.ListOptions{Delimiter: "/"}) {
		if err == nil || g != "" {
			t.Errorf("%q, %v", g, err)
		}
	}
}
