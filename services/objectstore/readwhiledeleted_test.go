package objectstore_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// TestReadWhileDeleted: who reads an object that is deleted meanwhile reads it to its end, however often its body is looked at
// until then, and the files of the body go with the last reader.
func TestReadWhileDeleted(t *testing.T) {
	cfg := coded(t, t.TempDir(), 3)
	cfg.BodyIdle = 10 * patience // the reader waits in the middle
	s := start(t, cfg)
	c := s.client()
	b := large(64) // more than the buffers of a connection
	put(t, c, "k", b)
	settled(t, s.AdminAddr(), 3)
	out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Body.Close()
	if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")}); err != nil {
		t.Fatal(err)
	}
	if got := admin(t, s.AdminAddr(), http.MethodPost, "/redundancy/heal", "application/json", "{}", nil); got != 200 {
		t.Fatal(got)
	}
	waits := func() bool {
		var q objectstore.RedundancyLetters
		admin(t, s.AdminAddr(), http.MethodGet, "/redundancy/queue", "", "", &q)
		return len(q.Bodies) == 1 && strings.Contains(q.Bodies[0].Error, "is being written or read")
	}
	for end := time.Now().Add(patience); !waits(); time.Sleep(20 * time.Millisecond) {
		if n := onPlaces(t, cfg); n != 3 || time.Now().After(end) {
			t.Fatalf("%d files of a body that is being read", n)
		}
	}
	got, err := io.ReadAll(out.Body)
	if err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes of %d, %v", len(got), len(b), err)
	}
	settled(t, s.AdminAddr(), 0)
	for end := time.Now().Add(patience); onPlaces(t, cfg) != 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d files of a body that nobody names", onPlaces(t, cfg))
		}
	}
}
