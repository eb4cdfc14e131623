package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

var ctx = context.Background()

func TestConditionalCreateRace(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	const racers, keys = 64, 30
	c := s.client()
	for k := range keys {
		size := 100 // every tenth key races bodies that go to files
		if k%10 == 9 {
			size = 1<<20 + 100
		}
		key := fmt.Sprintf("race/%d", k)
		var won atomic.Int64
		winner := make([][]byte, racers)
		var wg sync.WaitGroup
		n := racers
		if size > 1000 {
			n = 8
		}
		for i := range n {
			wg.Add(1)
			go func() {
				defer wg.Done()
				body := append([]byte(fmt.Sprintf("%03d", i)), bytes.Repeat([]byte{byte(i)}, size)...)
				_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(body), IfNoneMatch: aws.String("*")})
				if err == nil {
					won.Add(1)
					winner[i] = body
					return
				}
				if name, status := code(err); status != 412 || name != "PreconditionFailed" {
					t.Errorf("a loser got %v", err)
				}
			}()
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%s: %d winners", key, won.Load())
		}
		got := get(t, c, key)
		for i, w := range winner {
			if w != nil && !bytes.Equal(w, got) {
				t.Errorf("%s: %d won, but %q is there", key, i, got[:3])
			}
		}
	}
}

func TestReplaceRaceLosesNoUpdate(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	put(t, c, "counter", []byte("0"))
	const workers, each = 16, 10
	var wg sync.WaitGroup
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for done := 0; done < each; {
				out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("counter")})
				if err != nil {
					t.Error(err)
					return
				}
				var n int
				if _, err := fmt.Fscan(out.Body, &n); err != nil {
					t.Error(err)
				}
				if err := out.Body.Close(); err != nil {
					t.Error(err)
				}
				_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("counter"), Body: bytes.NewReader([]byte(fmt.Sprint(n + 1))), IfMatch: out.ETag})
				if err == nil {
					done++
				} else if _, status := code(err); status != 412 {
					t.Errorf("replace: %v", err)
					return
				}
			}
		}()
	}
	wg.Wait()
	if got := string(get(t, c, "counter")); got != fmt.Sprint(workers*each) {
		t.Errorf("counted %s, want %d", got, workers*each)
	}
}

func TestConditionsOfWrites(t *testing.T) {
	for _, absent412 := range []bool{false, true} {
		cfg := testConfig(t.TempDir())
		cfg.IfMatchAbsent412 = absent412
		c := start(t, cfg).client()
		etag := put(t, c, "k", []byte("one")).ETag
		try := func(key string, match, none *string) error {
			_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader([]byte("two")), IfMatch: match, IfNoneMatch: none})
			return err
		}
		wantCode(t, try("k", nil, aws.String("*")), "PreconditionFailed", 412)
		wantCode(t, try("k", aws.String(`"0123"`), nil), "PreconditionFailed", 412)
		if absent412 {
			wantCode(t, try("absent", etag, nil), "PreconditionFailed", 412)
		} else {
			wantCode(t, try("absent", etag, nil), "NoSuchKey", 404)
		}
		if got := get(t, c, "k"); string(got) != "one" {
			t.Errorf("a failed condition wrote %q", got)
		}
		if err := try("k", etag, nil); err != nil {
			t.Error(err)
		}
		del := func(etag *string) error {
			_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), IfMatch: etag})
			return err
		}
		wantCode(t, del(etag), "PreconditionFailed", 412)
		h, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")})
		if err != nil {
			t.Fatal(err)
		}
		if err := del(h.ETag); err != nil {
			t.Error(err)
		}
		if err := del(nil); err != nil {
			t.Errorf("delete of an absent key: %v", err)
		}
		if err := try("k", nil, aws.String("*")); err != nil {
			t.Errorf("create after delete: %v", err)
		}
	}
}

func TestConditionsAndRangesOfReads(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	body := []byte("0123456789")
	etag := *put(t, s.client(), "k", body).ETag
	put(t, s.client(), "empty", nil)
	past, future := time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	for _, c := range []struct {
		headers []string
		status  int
		body    string
	}{
		{[]string{"If-Match", etag}, 200, "0123456789"},
		{[]string{"If-Match", `"x", ` + etag}, 200, "0123456789"},
		{[]string{"If-Match", `"x"`}, 412, ""},
		{[]string{"If-Match", "W/" + etag}, 412, ""},
		{[]string{"If-None-Match", etag}, 304, ""},
		{[]string{"If-None-Match", "W/" + etag}, 304, ""},
		{[]string{"If-None-Match", `"x"`}, 200, "0123456789"},
		{[]string{"If-Modified-Since", future}, 304, ""},
		{[]string{"If-Modified-Since", past}, 200, "0123456789"},
		{[]string{"If-Modified-Since", "not a date"}, 200, "0123456789"},
		{[]string{"If-Unmodified-Since", past}, 412, ""},
		{[]string{"If-Unmodified-Since", future}, 200, "0123456789"},
		{[]string{"If-Match", etag, "If-Unmodified-Since", past}, 200, "0123456789"},
		{[]string{"If-None-Match", `"x"`, "If-Modified-Since", future}, 200, "0123456789"},
		{[]string{"If-None-Match", etag, "If-Modified-Since", past}, 304, ""},
		{[]string{"If-Match", `"x"`, "If-None-Match", etag}, 412, ""},
		{[]string{"Range", "bytes=2-4"}, 206, "234"},
		{[]string{"Range", "bytes=7-"}, 206, "789"},
		{[]string{"Range", "bytes=7-100"}, 206, "789"},
		{[]string{"Range", "bytes=-3"}, 206, "789"},
		{[]string{"Range", "bytes=-100"}, 206, "0123456789"},
		{[]string{"Range", "bytes=10-"}, 416, ""},
		{[]string{"Range", "bytes=-0"}, 416, ""},
		{[]string{"Range", "bytes=4-2"}, 200, "0123456789"},
		{[]string{"Range", "bytes=0-1,3-4"}, 200, "0123456789"},
		{[]string{"Range", "bytes=+1-2"}, 200, "0123456789"},
		{[]string{"Range", "bytes=2-4", "If-Range", etag}, 206, "234"},
		{[]string{"Range", "bytes=2-4", "If-Range", `"x"`}, 200, "0123456789"},
		{[]string{"Range", "bytes=2-4", "If-None-Match", etag}, 304, ""},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			r := newSigner().request(method, s.url()+"/"+bucket+"/k", nil, c.headers...)
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if _, err := b.ReadFrom(resp.Body); err != nil {
				t.Error(err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Error(err)
			}
			if resp.StatusCode != c.status || method == "GET" && c.status < 300 && b.String() != c.body {
				t.Errorf("%s %v: %d %q, want %d %q", method, c.headers, resp.StatusCode, b.String(), c.status, c.body)
			}
			if c.status == 304 && (resp.Header.Get("ETag") != etag || resp.Header.Get("Last-Modified") == "") {
				t.Errorf("%v: a 304 without validators", c.headers)
			}
			if c.status == 416 && resp.Header.Get("Content-Range") != "bytes */10" {
				t.Errorf("%v: Content-Range %q", c.headers, resp.Header.Get("Content-Range"))
			}
		}
	}
	if st, _, b := send(t, newSigner().request("GET", s.url()+"/"+bucket+"/empty", nil, "Range", "bytes=0-")); st != 416 {
		t.Errorf("a range of an empty object: %d %s", st, b)
	}
}

func TestCopyTagsAndDeleteMany(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	large := random(1<<20 + 999)
	etag := put(t, c, "src dir/ü", large, func(in *s3.PutObjectInput) { in.Tagging = aws.String("a=1"); in.ContentType = aws.String("x/y") }).ETag
	cp := func(opts ...func(*s3.CopyObjectInput)) error {
		in := &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: aws.String("dst"), CopySource: aws.String(bucket + "/src%20dir/%C3%BC")}
		for _, o := range opts {
			o(in)
		}
		_, err := c.CopyObject(ctx, in)
		return err
	}
	wantCode(t, cp(func(in *s3.CopyObjectInput) { in.CopySourceIfMatch = aws.String(`"x"`) }), "PreconditionFailed", 412)
	wantCode(t, cp(func(in *s3.CopyObjectInput) { in.CopySourceIfNoneMatch = etag }), "PreconditionFailed", 412)
	if err := cp(func(in *s3.CopyObjectInput) { in.IfNoneMatch = aws.String("*") }); err != nil {
		t.Fatal(err)
	}
	wantCode(t, cp(func(in *s3.CopyObjectInput) { in.IfNoneMatch = aws.String("*") }), "PreconditionFailed", 412)
	if !bytes.Equal(get(t, c, "dst"), large) {
		t.Error("the copy has other bytes")
	}
	h, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("dst")})
	if err != nil || *h.ContentType != "x/y" || *h.ETag != *etag {
		t.Errorf("head of the copy: %+v %v", h, err)
	}
	tags := func() string {
		out, err := c.GetObjectTagging(ctx, &s3.GetObjectTaggingInput{Bucket: aws.String(bucket), Key: aws.String("dst")})
		if err != nil {
			t.Fatal(err)
		}
		s := ""
		for _, x := range out.TagSet {
			s += *x.Key + "=" + *x.Value + ";"
		}
		return s
	}
	if tags() != "a=1;" {
		t.Errorf("tags of the copy: %s", tags())
	}
	if _, err := c.PutObjectTagging(ctx, &s3.PutObjectTaggingInput{Bucket: aws.String(bucket), Key: aws.String("dst"), Tagging: &types.Tagging{TagSet: []types.Tag{{Key: aws.String("z"), Value: aws.String("+-=. ü")}, {Key: aws.String("b"), Value: aws.String("")}}}}); err != nil {
		t.Fatal(err)
	}
	if tags() != "b=;z=+-=. ü;" {
		t.Errorf("tags: %s", tags())
	}
	if after, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("dst")}); err != nil || !after.LastModified.Equal(*h.LastModified) || *after.ETag != *h.ETag {
		t.Errorf("tagging changed the object: %+v %v", after, err)
	}
	if !bytes.Equal(get(t, c, "dst"), large) {
		t.Error("tagging changed the body")
	}
	if _, err := c.DeleteObjectTagging(ctx, &s3.DeleteObjectTaggingInput{Bucket: aws.String(bucket), Key: aws.String("dst")}); err != nil || tags() != "" {
		t.Errorf("delete tags: %v, %s", err, tags())
	}
	out, err := c.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: aws.String(bucket), Delete: &types.Delete{Objects: []types.ObjectIdentifier{
		{Key: aws.String("dst")}, {Key: aws.String("src dir/ü")}, {Key: aws.String("never there")}}}})
	if err != nil || len(out.Deleted) != 3 || len(out.Errors) != 0 {
		t.Errorf("delete many: %+v %v", out, err)
	}
	if _, err := c.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: aws.String(bucket)}); err != nil {
		t.Errorf("delete the empty bucket: %v", err)
	}
	var gone *types.NoSuchBucket
	if _, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket)}); !errors.As(err, &gone) {
		t.Errorf("list a deleted bucket: %v", err)
	}
}

// Conditions on the source of a copy, as AWS documents them: whichever does not hold, the answer is 412, and there is no
// 304; If-Match that holds outweighs If-Unmodified-Since, and If-None-Match that does not hold If-Modified-Since that does.
func TestConditionsOfCopySources(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	etag := *put(t, c, "src", []byte("source")).ETag
	id, _ := upload(t, c, "parts")
	past, future := time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	const match, none, since, unmodified = "X-Amz-Copy-Source-If-Match", "X-Amz-Copy-Source-If-None-Match", "X-Amz-Copy-Source-If-Modified-Since", "X-Amz-Copy-Source-If-Unmodified-Since"
	for _, x := range []struct {
		headers []string
		failed  string
	}{
		{[]string{match, etag}, ""},
		{[]string{match, `"x"`}, "If-Match"},
		{[]string{none, `"x"`}, ""},
		{[]string{none, etag}, "If-None-Match"},
		{[]string{none, "*"}, "If-None-Match"},
		{[]string{since, past}, ""},
		{[]string{since, future}, "If-Modified-Since"},
		{[]string{unmodified, future}, ""},
		{[]string{unmodified, past}, "If-Unmodified-Since"},
		{[]string{match, etag, unmodified, past}, ""},
		{[]string{match, `"x"`, unmodified, future}, "If-Match"},
		{[]string{none, etag, since, past}, "If-None-Match"},
		{[]string{none, `"x"`, since, future}, ""},
		{[]string{unmodified, past, none, etag}, "If-Unmodified-Since"},
		{[]string{since, "no date", unmodified, "no date"}, ""},
	} {
		for what, path := range map[string]string{"copy": "/dst", "copy of a part": "/parts?partNumber=1&uploadId=" + id} {
			st, code, b := send(t, newSigner().request("PUT", s.url()+"/"+bucket+path, nil, append([]string{"X-Amz-Copy-Source", bucket + "/src"}, x.headers...)...))
			switch {
			case x.failed == "" && st != 200:
				t.Errorf("%s %q: %d %s", what, x.headers, st, b)
			case x.failed != "" && (st != 412 || code != "PreconditionFailed" || !strings.Contains(string(b), "<Condition>x-amz-copy-source-"+x.failed+"</Condition>")):
				t.Errorf("%s %q: %d %s", what, x.headers, st, b)
			}
		}
	}
}
