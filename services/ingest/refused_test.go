package ingest_test

import (
	"context"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// shortNames is a store over a file system: a key's elements have 255 bytes at most.
type shortNames struct{ objstore.Store }

func (s shortNames) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	for e := range strings.SplitSeq(key, "/") {
		if len(e) > 255 {
			return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrInvalid}
		}
	}
	return s.Store.Create(ctx, key, body, o)
}

// TestOneSendersRefusalIsNotEverybodys: a sender whose keys the store can't take is
// told to come back; the others are served.
func TestOneSendersRefusalIsNotEverybodys(t *testing.T) {
	c := start(t, &faulty{Store: shortNames{newStore().Store}}, nil)
	long := identity.Boot{Agent: strings.Repeat("a", identity.MaxAgentIDBytes), Boot: "b"}
	if len(layout.AcceptedBoot(long)) < 255 {
		t.Fatal("the key is not long")
	}
	s, _ := c.mustOpen(t, boot, 0)
	for i := range uint64(3) {
		if a := c.post(t, encode(t, long, i, 1, 0), nil); a.code != 503 || a.body["error"] != strings.ToLower(string(accept.ReasonStoreRefused)) {
			t.Errorf("long id: %+v", a)
		}
		if err := c.NotReady(); err != nil {
			t.Errorf("one sender took the collector out of service: %v", err)
		}
		if r := s.ask(encode(t, boot, i, 1, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
			t.Errorf("another sender: %v", r)
		}
	}
	s.done()
}
