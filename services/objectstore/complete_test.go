package objectstore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// TestCompletedAgain: a complete that is repeated has the answer of the first one, whatever became of the object. After a
// start it has it while the version that it has made is there, with or without an id, whatever stands above it.
func TestCompletedAgain(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := startWith(t, cfg, objectstore.Deps{LeastPart: 1})
	c := s.client()
	once := func() (id string, parts []types.CompletedPart, version, etag string) {
		t.Helper()
		id, parts = upload(t, c, "k", []byte("one"), []byte("two"))
		out, err := complete(c, "k", id, parts)
		if err != nil {
			t.Fatal(err)
		}
		return id, parts, aws.ToString(out.VersionId), *out.ETag
	}
	same := func(what, id string, parts []types.CompletedPart, version, etag string) {
		t.Helper()
		out, err := complete(c, "k", id, parts)
		if err != nil || aws.ToString(out.VersionId) != version || *out.ETag != etag {
			t.Errorf("%s: %+v, %v; want version %q", what, out, err, version)
		}
	}
	gone := func(key, id string, parts []types.CompletedPart) {
		t.Helper()
		_, err := complete(c, key, id, parts)
		wantCode(t, err, "NoSuchUpload", 404)
	}
	plain, plainParts, _, plainTag := once()
	put(t, c, "k", []byte("in its place"))
	same("replaced", plain, plainParts, "", plainTag)
	remove(t, c, "k", "")
	same("deleted", plain, plainParts, "", plainTag)
	gone("other", plain, plainParts)
	gone("k", plain, plainParts[:1])
	gone("k", strings.Repeat("0", 32), plainParts)
	null, nullParts, _, nullTag := once()
	setVersioning(t, c, "Enabled")
	first, firstParts, firstVersion, firstTag := once()
	second, secondParts, secondVersion, secondTag := once()
	put(t, c, "k", []byte("above"))
	for _, again := range []bool{false, true} {
		if again {
			s.stop()
			s = startWith(t, cfg, objectstore.Deps{LeastPart: 1})
			c = s.client()
			gone("k", plain, plainParts)
		}
		same("the null version", null, nullParts, "", nullTag)
		same("the first", first, firstParts, firstVersion, firstTag)
		same("the second", second, secondParts, secondVersion, secondTag)
		gone("k", second, secondParts[1:])
	}
	remove(t, c, "k", "")
	same("below a delete marker", second, secondParts, secondVersion, secondTag)
	remove(t, c, "k", firstVersion)
	gone("k", first, firstParts)
	setVersioning(t, c, "Suspended")
	put(t, c, "k", []byte("in place of the null version"))
	gone("k", null, nullParts)
	same("under another null version", second, secondParts, secondVersion, secondTag)
}

// TestCompletesOfOneUpload: of completes at the same moment each has the answer of the one that has made the object, also
// while its parts go away and others write and delete the key.
func TestCompletesOfOneUpload(t *testing.T) {
	s := startWith(t, testConfig(t.TempDir()), objectstore.Deps{LeastPart: 1})
	c := s.client()
	const racers = 8
	for round := range 20 {
		bodies := make([][]byte, 24)
		for i := range bodies {
			bodies[i] = fmt.Appendf(nil, "%d %d", round, i)
		}
		id, parts := upload(t, c, "k", bodies...)
		var tags [racers]string
		var errs [racers]error
		var all sync.WaitGroup
		for i := range racers {
			all.Go(func() {
				out, err := complete(c, "k", id, parts)
				if errs[i] = err; err == nil {
					tags[i] = *out.ETag
				}
				// One write of the key stands above the object before the last of the others look for it.
				_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), Body: strings.NewReader("above")})
				errs[i] = errors.Join(errs[i], err)
			})
		}
		all.Wait()
		for i := range racers {
			if errs[i] != nil || tags[i] != tags[0] || tags[i] == "" {
				t.Errorf("round %d, racer %d: %q %v", round, i, tags[i], errs[i])
			}
		}
	}
}
