package engine

import (
	"context"
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
)

// TestPartsOfEndedUploadsMakeNoRoom: the bytes of an upload's parts leave the bucket with the upload. That its parts are
// removed behind it makes no room for a write in the same batch.
func TestPartsOfEndedUploadsMakeNoRoom(t *testing.T) {
	ctx := context.Background()
	s, err := openSession(crashfs.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	id := ""
	do := func(fn func(e *Engine) error) call { return call{fn, nil} }
	for _, c := range []call{
		bucketCall(),
		do(func(e *Engine) error { return e.SetQuota(ctx, "bkt", Quota{Bytes: 1000}) }),
		do(func(e *Engine) (err error) {
			id, err = e.CreateUpload(ctx, Object{Bucket: "bkt", Key: "up", Modified: epoch})
			return err
		}),
		do(func(e *Engine) error { return putPart(e, "up", id, 1, pattern(600, 1), "p") }),
		// What a crash leaves of an abort, or a client's that is at work.
		do(func(e *Engine) error {
			up := uploadKey("up", id)
			return e.submit(ctx, &op{rec: record{kind: kindDelete, flags: flagQuiet, bucket: "bkt", key: up}, upload: up})
		}),
		putCall("a", pattern(900, 1), "a", Cond{}),
	} {
		if err := s.together(c)[0]; err != nil {
			t.Fatal(err)
		}
	}
	errs := s.together(do(func(e *Engine) error { return e.removeParts(ctx, "bkt", id) }), putCall("b", pattern(500, 1), "b", Cond{}))
	if errs[0] != nil || !errors.Is(errs[1], ErrQuota) {
		t.Errorf("parts removed: %v; a write beside it: %v", errs[0], errs[1])
	}
	if u := s.e.Usage()[0]; u.Bytes != 900 {
		t.Errorf("the bucket has %d bytes of 1000", u.Bytes)
	}
	s.e.abandon()
}
