package engine

import (
	"fmt"
	"testing"
)

// The memory of completions keeps the newest, and no more than its bound.
func TestCompletionsAreBounded(t *testing.T) {
	var c completions
	const n = 3*rememberedCompletions + 7
	for i := range n {
		c.add(&Object{Bucket: "b", Key: fmt.Sprint("k", i), Upload: fmt.Sprint(i), ETag: fmt.Sprint("tag", i),
			PartSizes: make([]int64, 3), Extents: make([]Extent, 3)})
		if len(c.made) > rememberedCompletions || len(c.ids) > rememberedCompletions {
			t.Fatalf("%d and %d are kept", len(c.made), len(c.ids))
		}
	}
	for i := range n {
		o, ok := c.find("b", fmt.Sprint("k", i), fmt.Sprint(i))
		if want := i >= n-rememberedCompletions; ok != want {
			t.Fatalf("completion %d of %d is there: %t, want %t", i, n, ok, want)
		}
		if ok && (o.ETag != fmt.Sprint("tag", i) || o.Extents != nil || o.PartSizes != nil) {
			t.Fatalf("completion %d: %+v", i, o)
		}
	}
	last := fmt.Sprint(n - 1)
	if _, ok := c.find("b", "other", last); ok {
		t.Error("it is found by another key")
	}
	if _, ok := c.find("other", "k"+last, last); ok {
		t.Error("it is found by another bucket")
	}
	c.add(&Object{Bucket: "b", Key: "sealed", Upload: "s", Extents: []Extent{{Seal: &Seal{}}, {Seal: &Seal{}}}})
	if o, ok := c.find("b", "sealed", "s"); !ok || !o.Sealed() || len(o.Extents) != 1 {
		t.Errorf("sealed: %+v %t", o, ok)
	}
}
