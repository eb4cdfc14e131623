package frames

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestArrivedFramesAreBounded: ten times what fits is put in, and what came last is there, each frame once.
func TestArrivedFramesAreBounded(t *testing.T) {
	size := 0.0
	a := NewArrived(1000, func(n float64) { size = n })
	var sums []identity.Digest
	for i := range 100 {
		raw := fmt.Appendf(nil, "%0100d", i)
		sums = append(sums, identity.Sum(raw))
		a.Put(sums[i], raw)
		a.Put(sums[i], raw)
		if size > 1000 || size != float64(100*len(a.kept)) || len(a.order) != len(a.kept) {
			t.Fatalf("%v bytes of %d frames", size, len(a.kept))
		}
	}
	for i, sum := range sums {
		if a.Has(sum) != (i >= 90) {
			t.Errorf("frame %d: %v", i, a.Has(sum))
		}
	}
	a.Put(identity.Digest{1}, make([]byte, 1001))
	if a.Has(identity.Digest{1}) || !a.Has(sums[99]) {
		t.Error("a frame that does not fit pushes out others")
	}
}

// TestArrivedBeforeBlobs: a frame that arrived costs no request, also where its blob is lost; one that did not comes from
// its blob; and a frame over the limit is refused wherever it is.
func TestArrivedBeforeBlobs(t *testing.T) {
	store := storetest.Count(mem.New(time.Now))
	r := &Reader{Store: store, MaxFrame: 100, AtOnce: 1, Arrived: NewArrived(1000, func(float64) {})}
	entry := func(raw string) accepted.Batch {
		sum := identity.Sum([]byte(raw))
		return accepted.Batch{FrameSHA256: sum, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(sum, 0)}
	}
	here, blob, large := entry("here"), entry("blob"), entry(fmt.Sprintf("%0101d", 1))
	r.Arrived.Put(here.FrameSHA256, []byte("here"))
	r.Arrived.Put(large.FrameSHA256, fmt.Appendf(nil, "%0101d", 1))
	if _, err := store.Put(t.Context(), blob.RawBlobKey, []byte("blob"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	store.Reset()
	if raw, err := r.Get(t.Context(), here); err != nil || string(raw) != "here" {
		t.Errorf("%q, %v", raw, err)
	}
	if got := store.All(); len(got) != 0 {
		t.Errorf("requests: %v", got)
	}
	if raw, err := r.Get(t.Context(), blob); err != nil || string(raw) != "blob" {
		t.Errorf("%q, %v", raw, err)
	}
	var bad *UnreadableError
	if _, err := r.Get(t.Context(), large); !errors.As(err, &bad) {
		t.Errorf("a frame over the limit: %v", err)
	}
}

// TestArrivedBeforePacks: whoever reads many frames takes from memory what is there, and asks for packs of the rest only.
func TestArrivedBeforePacks(t *testing.T) {
	store := storetest.Count(mem.New(time.Now))
	var entries, asked []accepted.Batch
	arrived := NewArrived(1000, func(float64) {})
	for i := range 6 {
		raw := fmt.Appendf(nil, "frame %d", i)
		sum := identity.Sum(raw)
		entries = append(entries, accepted.Batch{FrameSHA256: sum, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(sum, 0)})
		switch {
		case i%2 == 0:
			arrived.Put(sum, raw)
		case i == 5:
			if _, err := store.Put(t.Context(), layout.Blob(sum, 0), raw, objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	store.Reset()
	r := &Reader{Store: store, MaxFrame: 100, AtOnce: 2, Arrived: arrived, Packs: func(_ context.Context, of []accepted.Batch) []Pack {
		asked = of
		return []Pack{{Entries: []int{0, 1}, Failed: func(err error) { t.Error(err) }, Read: func(context.Context) ([][]byte, error) {
			return [][]byte{[]byte("frame 1"), []byte("frame 3")}, nil
		}}}
	}}
	got := map[int]string{}
	err := r.Each(t.Context(), entries, func(i int, raw []byte) error { got[i] += string(raw); return nil })
	if err != nil || len(asked) != 3 || store.Of("", "") != 1 {
		t.Errorf("%v, packs of %d entries, requests %v", err, len(asked), store.All())
	}
	for i := range entries {
		if got[i] != fmt.Sprintf("frame %d", i) {
			t.Errorf("entry %d: %q", i, got[i])
		}
	}
}
