package engine

import (
	"bytes"
	"context"
	"slices"
	"testing"
)

// TestNamesBody: a body is named from its record on and until its object goes, and the list has just those.
func TestNamesBody(t *testing.T) {
	e := openTest(t, Options{Dir: t.TempDir()})
	ids := func() []string {
		t.Helper()
		var all []string
		for after := ""; ; {
			list, err := e.BodiesAfter(after, 2)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) == 0 {
				break
			}
			all, after = append(all, list...), list[len(list)-1]
		}
		for _, id := range all {
			if named, err := e.NamesBody(id); err != nil || !named {
				t.Errorf("%s is listed; named %t, %v", id, named, err)
			}
		}
		return all
	}
	b, err := e.NewBlob("bkt", "k")
	if err != nil {
		t.Fatal(err)
	}
	x, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if named, err := e.NamesBody(x.File); err != nil || named {
		t.Errorf("a body without a record: named %t, %v", named, err)
	}
	b.Discard()
	for _, k := range []string{"a", "b", "c", "d", "e"} {
		e.putFile(k, bytes.Repeat([]byte(k), 100))
	}
	all := ids()
	if len(all) != 5 || !slices.IsSorted(all) {
		t.Fatal(all)
	}
	if _, err := e.Engine.Delete(context.Background(), "bkt", Deletion{Key: "c"}); err != nil {
		t.Fatal(err)
	}
	left := ids()
	if len(left) != 4 {
		t.Fatal(left)
	}
	for _, id := range all {
		named, err := e.NamesBody(id)
		if err != nil || named != slices.Contains(left, id) {
			t.Errorf("%s behind the delete: named %t, %v", id, named, err)
		}
	}
}
