package repair

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestRequestOverOneThatCannotBeRead: one that is damaged is replaced, also where the store does
// not even give its ETag; one of a newer release is not ours to replace.
func TestRequestOverOneThatCannotBeRead(t *testing.T) {
	ord := catalog.RepairRequest{AuthorityID: "authority-1", Shard: 1, Hour: timegrid.HourStarting(time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)), Above: 2, Reason: "damaged", By: "op", RequestedAt: 5}
	newer := bytes.Replace(ord.Marshal(), []byte("rollup_repair_request.v1"), []byte("rollup_repair_request.v2"), 1)
	field := append(bytes.TrimSuffix(ord.Marshal(), []byte("}")), `,"only":"raw"}`...)
	for name, c := range map[string]struct {
		there []byte
		want  error
	}{
		"damaged":       {there: []byte("{")},
		"too long":      {there: make([]byte, catalog.RepairRequestKind.MaxBytes+1)},
		"newer version": {there: newer, want: record.ErrNewerVersion},
		"newer field":   {there: field, want: record.ErrNewerVersion},
	} {
		store := mem.New(nil)
		if _, err := store.Create(t.Context(), ord.Key(), c.there, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		r, err := New(Config{Store: store, AuthorityID: ord.AuthorityID, Shards: 4, By: "op", Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		var o Requested
		if err := r.createRequest(t.Context(), &o, 2, ord); !errors.Is(err, c.want) || o.Pending {
			t.Errorf("%s: %v, %+v", name, err, o)
		}
		want := ord.Marshal()
		if c.want != nil {
			want = c.there
		}
		if got, _, err := store.Get(t.Context(), ord.Key(), objstore.GetOptions{}); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: there is %.200s, %v", name, got, err)
		}
	}
}
