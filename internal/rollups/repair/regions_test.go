package repair_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestInputsOfARegionAreWhatItCounts: where no plan says what a block was made of, manifests do, and in a region of several the journal
// says which of these count.
func TestInputsOfARegionAreWhatItCounts(t *testing.T) {
	store := mem.New(time.Now)
	put := func(key string, body []byte) {
		t.Helper()
		if _, err := store.Create(t.Context(), key, body, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	first, second := batch(t), batch(t)
	second.Identity.SeqStart, second.Identity.SeqEnd = first.Identity.SeqEnd+1, first.Identity.SeqEnd+first.Identity.Count()
	p := publishedtest.Publisher{Store: store, Authority: "test", Shards: 1}
	if _, err := p.Publish(t.Context(), hour, 1, []publishedtest.Batch{{Frame: first}, {Frame: second}}, timegrid.Resolutions()...); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*frame.Batch{first, second} {
		d := identity.Sum([]byte(b.Identity.String()))
		put(layout.Accepted(b.Identity), accept.Manifest{AuthorityID: "test", Identity: b.Identity, FrameSHA256: d, FrameBytes: 1, RawBlobKey: layout.Blob(d, 0), AcceptedAt: 1,
			CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef", RecordCount: b.Identity.Count(), MinTime: hour.StartMS() * 1e6, MaxTime: hour.StartMS()*1e6 + 1}.Marshal())
	}
	request := func(counted func(context.Context, []accepted.Batch) (map[identity.Batch]bool, error)) (repair.Requested, error) {
		t.Helper()
		r, err := repair.New(repair.Config{Store: store, AuthorityID: "test", Shards: 1, By: "test", Now: func() time.Time { return time.Unix(1, 0) }, Counted: counted})
		if err != nil {
			t.Fatal(err)
		}
		return r.Request(t.Context(), hour, 0, "test", true)
	}
	one := func(_ context.Context, bs []accepted.Batch) (map[identity.Batch]bool, error) {
		if len(bs) != 2 || bs[0].FrameSHA256.IsZero() {
			t.Errorf("asked about %v", bs)
		}
		return map[identity.Batch]bool{second.Identity: true}, nil
	}
	if o, err := request(one); err != nil || o.Source != "manifests" || o.Batches != 2 || o.Uncounted != 0 {
		t.Errorf("without regions: %+v, %v", o, err)
	}
	put(layout.RegionsKey, []byte("{}"))
	if o, err := request(one); err != nil || o.Source != "manifests" || o.Batches != 1 || o.Uncounted != 1 {
		t.Errorf("of a region: %+v, %v", o, err)
	}
	if _, err := request(nil); !errors.Is(err, repair.ErrUnknown) {
		t.Errorf("nobody says what counts: %v", err)
	}
	failed := errors.New("the journal can't be read")
	if _, err := request(func(context.Context, []accepted.Batch) (map[identity.Batch]bool, error) { return nil, failed }); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	if _, err := request(func(context.Context, []accepted.Batch) (map[identity.Batch]bool, error) { return nil, nil }); !errors.Is(err, repair.ErrNothing) {
		t.Errorf("none counts: %v", err)
	}
}
