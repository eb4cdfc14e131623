package regions_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// deny has the bucket of a region refuse every write of the record of the epoch.
func (w *world) deny(name claims.Region) *regions.Keeper {
	c := regions.Config{KV: etcd{w}, Keys: keys, Rand: w.rand, Now: func() int64 { return 7 }, SealAt: 4}
	for n := range w.buckets {
		s := regions.Region{Name: n, Store: bucket{w, n}}
		if n == name {
			s.Store = readOnly{bucket{w, n}}
		}
		c.Regions = append(c.Regions, s)
	}
	k, err := regions.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

type readOnly struct{ bucket }

func (readOnly) Create(context.Context, string, []byte, objstore.PutOptions) (objstore.Info, error) {
	return objstore.Info{}, objstore.ErrDenied
}

func (readOnly) Replace(context.Context, string, []byte, string, objstore.PutOptions) (objstore.Info, error) {
	return objstore.Info{}, objstore.ErrDenied
}

// record is what a bucket has, for comparison.
func (w *world) record(name claims.Region) string {
	b, _, err := w.buckets[name].Get(w.t.Context(), layout.RegionsKey, objstore.GetOptions{})
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		w.t.Fatal(err)
	}
	return string(b)
}

// TestARegionThatCantBeWrittenChangesNothing: its addition is refused while the others go on in their epoch.
func TestARegionThatCantBeWrittenChangesNothing(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	if _, err := w.deny("us").Open(t.Context(), true); !errors.Is(err, objstore.ErrDenied) || w.record("asia")+w.record("eu") != "" {
		t.Fatalf("the first epoch: %v; asia has %q, eu %q", err, w.record("asia"), w.record("eu"))
	}
	before := w.open("eu", "us")
	eu, us := w.record("eu"), w.record("us")
	if _, err := w.deny("asia").Add(t.Context(), "asia"); !errors.Is(err, objstore.ErrDenied) {
		t.Fatalf("added: %v", err)
	}
	if w.record("eu") != eu || w.record("us") != us || w.record("asia") != "" {
		t.Error("a record was changed")
	}
	if o, err := w.keeper("eu", "us").Open(t.Context(), false); err != nil || o.Epoch.Number != before.Epoch.Number {
		t.Errorf("epoch %d, before %d: %v", o.Epoch.Number, before.Epoch.Number, err)
	}
	if _, err := w.keeper("asia", "eu", "us").Add(t.Context(), "asia"); err != nil {
		t.Errorf("once it can be written: %v", err)
	}
}

// TestExchangedBucketsAreRefused: what is read in a region's bucket is that region's, so settings that have exchanged two of them decide
// nothing, and write nothing.
func TestExchangedBucketsAreRefused(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu", "us")
	w.buckets["eu"], w.buckets["us"] = w.buckets["us"], w.buckets["eu"]
	eu, us := w.record("eu"), w.record("us")
	for _, recover := range []bool{false, true} {
		if _, err := w.keeper("eu", "us").Open(t.Context(), recover); !errors.Is(err, regions.ErrRegionSettings) || !strings.Contains(err.Error(), "its bucket is that of region") {
			t.Errorf("recover %v: %v", recover, err)
		}
	}
	if w.record("eu") != eu || w.record("us") != us {
		t.Error("a record was changed")
	}
}
