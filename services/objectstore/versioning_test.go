package objectstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/transport/http"
	"pgregory.net/rapid"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

func setVersioning(t testing.TB, c *s3.Client, status types.BucketVersioningStatus) {
	t.Helper()
	_, err := c.PutBucketVersioning(ctx, &s3.PutBucketVersioningInput{Bucket: aws.String(bucket), VersioningConfiguration: &types.VersioningConfiguration{Status: status}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: aws.String(bucket)})
	if err != nil || out.Status != status {
		t.Fatalf("versioning is %q, %v, want %q", out.Status, err, status)
	}
}

// remove deletes a key, or a version; it gives the ids of the answer.
func remove(t testing.TB, c *s3.Client, key, version string) (id string, marker bool) {
	t.Helper()
	in := &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: &key}
	if version != "" {
		in.VersionId = &version
	}
	out, err := c.DeleteObject(ctx, in)
	if err != nil {
		t.Fatalf("delete %q %q: %v", key, version, err)
	}
	return aws.ToString(out.VersionId), aws.ToBool(out.DeleteMarker)
}

// wantVersions compares the history of a key, the newest first: "id body" of versions, "id" of delete markers.
func wantVersions(t testing.TB, c *s3.Client, key string, want ...string) {
	t.Helper()
	out, err := c.ListObjectVersions(ctx, &s3.ListObjectVersionsInput{Bucket: aws.String(bucket), Prefix: &key})
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		latest bool
		text   string
	}
	got := map[string]entry{}
	for _, v := range out.Versions {
		in := &s3.GetObjectInput{Bucket: aws.String(bucket), Key: v.Key, VersionId: v.VersionId}
		o, err := c.GetObject(ctx, in)
		if err != nil {
			t.Fatalf("version %s of %q: %v", *v.VersionId, key, err)
		}
		b, err := io.ReadAll(o.Body)
		if err != nil || aws.ToString(o.VersionId) != *v.VersionId || aws.ToString(o.ETag) != *v.ETag || int64(len(b)) != *v.Size {
			t.Errorf("version %s of %q: GET has %s, %s, %d bytes, %v", *v.VersionId, key, aws.ToString(o.VersionId), aws.ToString(o.ETag), len(b), err)
		}
		got[*v.VersionId] = entry{*v.IsLatest, *v.VersionId + " " + string(b)}
	}
	for _, m := range out.DeleteMarkers {
		got[*m.VersionId] = entry{*m.IsLatest, *m.VersionId}
	}
	if len(got) != len(want) {
		t.Errorf("%q has the versions %v, want %v", key, got, want)
		return
	}
	for i, w := range want {
		id, _, _ := strings.Cut(w, " ")
		if g := got[id]; g.text != w || g.latest != (i == 0) {
			t.Errorf("version %d of %q is %+v, want %q", i, key, g, w)
		}
	}
}

// TestVersions goes through the life of a key, and asks after a restart and with the index lost.
func TestVersions(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	c := s.client()
	write := func(body string) string { return aws.ToString(put(t, c, "k", []byte(body)).VersionId) }
	if id := write("first"); id != "" {
		t.Errorf("a bucket without versions gave the id %s", id)
	}
	setVersioning(t, c, "Enabled")
	wantVersions(t, c, "k", "null first")
	v1, v2 := write("one"), write("two")
	marker, isMarker := remove(t, c, "k", "")
	if v1 == "" || v1 == v2 || marker == "" || !isMarker {
		t.Fatalf("ids %q, %q, marker %q %t", v1, v2, marker, isMarker)
	}
	wantVersions(t, c, "k", marker, v2+" two", v1+" one", "null first")

	_, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")})
	wantCode(t, err, "NoSuchKey", 404)
	wantMarker(t, err, marker)
	_, err = c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), VersionId: &marker})
	wantCode(t, err, "MethodNotAllowed", 405)
	wantMarker(t, err, marker)
	_, err = c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), VersionId: aws.String("01G65Z755AFWAKHE12NY0CQ9FH")})
	wantCode(t, err, "NoSuchVersion", 404)
	_, err = c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), VersionId: aws.String("no_id")})
	wantCode(t, err, "InvalidArgument", 400)
	_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), IfMatch: aws.String("*")})
	wantCode(t, err, "NoSuchKey", 404)

	// A delete marker is absence: exactly one of those that create on that condition does.
	created := put(t, c, "k", []byte("three"), func(in *s3.PutObjectInput) { in.IfNoneMatch = aws.String("*") })
	v3 := aws.ToString(created.VersionId)
	_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), IfNoneMatch: aws.String("*")})
	wantCode(t, err, "PreconditionFailed", 412)
	wantVersions(t, c, "k", v3+" three", marker, v2+" two", v1+" one", "null first")

	setVersioning(t, c, "Suspended")
	if id := write("null again"); id != "" {
		t.Errorf("while versioning is suspended a PUT gave the id %s", id)
	}
	wantVersions(t, c, "k", "null null again", v3+" three", marker, v2+" two", v1+" one")
	// An old version is tagged, and stays old.
	_, err = c.PutObjectTagging(ctx, &s3.PutObjectTaggingInput{Bucket: aws.String(bucket), Key: aws.String("k"), VersionId: &v1,
		Tagging: &types.Tagging{TagSet: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")}}}})
	if err != nil {
		t.Fatal(err)
	}
	wantVersions(t, c, "k", "null null again", v3+" three", marker, v2+" two", v1+" one")

	s.stop()
	if err := os.RemoveAll(filepath.Join(cfg.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	s = start(t, cfg)
	c = s.client()
	wantVersions(t, c, "k", "null null again", v3+" three", marker, v2+" two", v1+" one")
	tags, err := c.GetObjectTagging(ctx, &s3.GetObjectTaggingInput{Bucket: aws.String(bucket), Key: aws.String("k"), VersionId: &v1})
	if err != nil || len(tags.TagSet) != 1 || aws.ToString(tags.VersionId) != v1 {
		t.Errorf("tags of %s: %+v, %v", v1, tags, err)
	}
	if id, m := remove(t, c, "k", ""); id != "null" || !m {
		t.Errorf("delete gave %q, marker %t, want the null delete marker", id, m)
	}
	wantVersions(t, c, "k", "null", v3+" three", marker, v2+" two", v1+" one")
	// Deleting the newest version makes the one before it current.
	if id, m := remove(t, c, "k", "null"); id != "null" || !m {
		t.Errorf("delete of the null marker gave %q, marker %t", id, m)
	}
	if b := get(t, c, "k"); string(b) != "three" {
		t.Errorf("the current version is %q", b)
	}
	remove(t, c, "k", v3)
	_, err = c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")})
	wantMarker(t, err, marker)
	remove(t, c, "k", marker)
	if b := get(t, c, "k"); string(b) != "two" {
		t.Errorf("the current version is %q", b)
	}
	if id, m := remove(t, c, "k", v3); id != v3 || m { // it is gone
		t.Errorf("delete of an absent version gave %q, marker %t", id, m)
	}
	_, err = c.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: aws.String(bucket)})
	wantCode(t, err, "BucketNotEmpty", 409)
	remove(t, c, "k", v1)
	remove(t, c, "k", "")
	_, err = c.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: aws.String(bucket)})
	wantCode(t, err, "BucketNotEmpty", 409) // it has v2 and a delete marker, and no object
	many, err := c.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: aws.String(bucket), Delete: &types.Delete{Objects: []types.ObjectIdentifier{
		{Key: aws.String("k"), VersionId: &v2}, {Key: aws.String("k"), VersionId: aws.String("null")}, {Key: aws.String("k"), VersionId: aws.String("no_id")}}}})
	if err != nil || len(many.Deleted) != 2 || aws.ToBool(many.Deleted[0].DeleteMarker) || !aws.ToBool(many.Deleted[1].DeleteMarker) ||
		len(many.Errors) != 1 || aws.ToString(many.Errors[0].Code) != "InvalidArgument" {
		t.Errorf("DeleteObjects: %+v, %v", many, err)
	}
	wantVersions(t, c, "k")
	if _, err := c.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: aws.String(bucket)}); err != nil {
		t.Error(err)
	}
}

// wantMarker checks that an error says that the object is a delete marker.
func wantMarker(t testing.TB, err error, id string) {
	t.Helper()
	var resp *http.ResponseError
	if !errors.As(err, &resp) {
		t.Fatalf("no answer: %v", err)
	}
	h := resp.Response.Header
	if h.Get("x-amz-delete-marker") != "true" || h.Get("x-amz-version-id") != id {
		t.Errorf("the answer has %v, want the delete marker %s", h, id)
	}
}

// TestVersionsOfCopiesAndUploads: every way to write makes a version, and every way to read takes one.
func TestVersionsOfCopiesAndUploads(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	setVersioning(t, c, "Enabled")
	large := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	v1 := aws.ToString(put(t, c, "k", large).VersionId)
	put(t, c, "k", []byte("small"))
	// An old version is restored by copying it over the key.
	out, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), CopySource: aws.String(bucket + "/k?versionId=" + v1)})
	if err != nil || aws.ToString(out.CopySourceVersionId) != v1 || aws.ToString(out.VersionId) == "" || aws.ToString(out.VersionId) == v1 {
		t.Fatalf("copy: %+v, %v", out, err)
	}
	if !bytes.Equal(get(t, c, "k"), large) {
		t.Error("the copy of an old version has other bytes")
	}
	remove(t, c, "k", v1)
	if !bytes.Equal(get(t, c, "k"), large) {
		t.Error("the copy has lost its bytes with its source")
	}
	_, err = c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: aws.String("k2"), CopySource: aws.String(bucket + "/k?versionId=" + v1)})
	wantCode(t, err, "NoSuchVersion", 404)

	part := bytes.Repeat([]byte("p"), 5<<20)
	id, parts := upload(t, c, "k", part, []byte("end"))
	done, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: &id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}})
	if err != nil || aws.ToString(done.VersionId) == "" {
		t.Fatalf("complete: %+v, %v", done, err)
	}
	marker, _ := remove(t, c, "k", "")
	again, err := complete(c, "k", id, parts) // as by a client that did not get the answer, and was overtaken
	if err != nil || *again.VersionId != *done.VersionId || *again.ETag != *done.ETag {
		t.Errorf("completed again below a delete marker: %+v, %v", again, err)
	}
	_, err = complete(c, "k2", id, parts)
	wantCode(t, err, "NoSuchUpload", 404)
	_, err = c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: aws.String("k2"), CopySource: aws.String(bucket + "/k?versionId=" + marker)})
	wantCode(t, err, "InvalidRequest", 400)
	head, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), VersionId: done.VersionId, PartNumber: aws.Int32(2)})
	if err != nil || *head.ContentLength != 3 {
		t.Errorf("part 2 of the version: %+v, %v", head, err)
	}
	attr, err := c.GetObjectAttributes(ctx, &s3.GetObjectAttributesInput{Bucket: aws.String(bucket), Key: aws.String("k"), VersionId: done.VersionId,
		ObjectAttributes: []types.ObjectAttributes{"ObjectSize"}})
	if err != nil || *attr.ObjectSize != 5<<20+3 || aws.ToString(attr.VersionId) != *done.VersionId {
		t.Errorf("attributes of the version: %+v, %v", attr, err)
	}
	remove(t, c, "k", marker)
	if b := get(t, c, "k"); len(b) != 5<<20+3 {
		t.Errorf("the completed version has %d bytes", len(b))
	}
}

// TestListVersionsAgainstAModel: pages of versions, with prefixes, delimiters and markers.
func TestListVersionsAgainstAModel(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	type version struct{ key, id string }
	var all []version // in the order of the listing
	keys := []string{"a", "a/", "a/b", "a/b/c", "a-b", "b//c", "ü/x", "ü/y", "z z", "~"}
	for i, k := range keys {
		if i%3 == 0 {
			put(t, c, k, []byte("null"))
		}
	}
	setVersioning(t, c, "Enabled")
	history := map[string][]version{}
	for i, k := range keys {
		if i%3 == 0 {
			history[k] = []version{{k, "null"}}
		}
		for n := range i % 4 {
			id := aws.ToString(put(t, c, k, []byte{byte(n)}).VersionId)
			if n == 2 {
				id2, _ := remove(t, c, k, "")
				history[k] = append([]version{{k, id}}, history[k]...)
				id = id2
			}
			history[k] = append([]version{{k, id}}, history[k]...)
		}
	}
	setVersioning(t, c, "Suspended")
	for i, k := range keys {
		if i%5 == 1 { // the null version becomes the newest
			put(t, c, k, []byte("suspended"))
			list := slices.DeleteFunc(history[k], func(v version) bool { return v.id == "null" })
			history[k] = append([]version{{k, "null"}}, list...)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		all = append(all, history[k]...)
	}
	model := func(prefix, delimiter, afterKey, afterID string) (out []string) {
		behind := afterKey == ""
		last := ""
		for _, v := range all {
			if !behind {
				behind = v.key > afterKey
				if v.key == afterKey && v.id == afterID {
					behind = true
					continue
				}
				if !behind {
					continue
				}
			}
			if !strings.HasPrefix(v.key, prefix) {
				continue
			}
			if i := strings.Index(v.key[len(prefix):], delimiter); delimiter != "" && i >= 0 {
				group := v.key[:len(prefix)+i+len(delimiter)]
				if group != last && group != afterKey {
					out = append(out, "P:"+group)
				}
				last = group
				continue
			}
			out = append(out, "V:"+v.key+" "+v.id)
		}
		return out
	}
	rapid.Check(t, func(rt *rapid.T) {
		prefix := rapid.SampledFrom([]string{"", "a", "a/", "b/", "\u00fc", "z", "no"}).Draw(rt, "prefix")
		delimiter := rapid.SampledFrom([]string{"", "/", "b"}).Draw(rt, "delimiter")
		page := rapid.Int32Range(1, 9).Draw(rt, "max-keys")
		in := &s3.ListObjectVersionsInput{Bucket: aws.String(bucket), Prefix: &prefix, Delimiter: &delimiter, MaxKeys: &page}
		var afterKey, afterID string
		switch rapid.IntRange(0, 2).Draw(rt, "after") {
		case 1:
			afterKey = rapid.SampledFrom(append([]string{"0", "a/b/", "m"}, keys...)).Draw(rt, "key")
			in.KeyMarker = &afterKey
		case 2:
			v := rapid.SampledFrom(all).Draw(rt, "version")
			afterKey, afterID = v.key, v.id
			in.KeyMarker, in.VersionIdMarker = &afterKey, &afterID
		}
		var got []string
		for {
			out, err := c.ListObjectVersions(ctx, in)
			if err != nil {
				rt.Fatal(err)
			}
			if n := len(out.Versions) + len(out.DeleteMarkers) + len(out.CommonPrefixes); n > int(page) {
				rt.Fatalf("%d entries of at most %d", n, page)
			}
			for _, v := range out.Versions {
				got = append(got, "V:"+*v.Key+" "+*v.VersionId)
				if latest := history[*v.Key][0].id == *v.VersionId; latest != *v.IsLatest {
					rt.Fatalf("%s %s is latest: %t", *v.Key, *v.VersionId, *v.IsLatest)
				}
			}
			for _, v := range out.DeleteMarkers {
				got = append(got, "V:"+*v.Key+" "+*v.VersionId)
			}
			for _, p := range out.CommonPrefixes {
				got = append(got, "P:"+*p.Prefix)
			}
			if !*out.IsTruncated {
				break
			}
			in.KeyMarker, in.VersionIdMarker = out.NextKeyMarker, out.NextVersionIdMarker
		}
		want := model(prefix, delimiter, afterKey, afterID)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			rt.Fatalf("got  %q\nwant %q", got, want)
		}
	})
	page, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket)})
	if err != nil {
		t.Fatal(err)
	}
	var current []string
	for _, o := range page.Contents {
		current = append(current, *o.Key)
	}
	want := slices.DeleteFunc(slices.Clone(keys), func(k string) bool {
		_, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: &k})
		return err != nil
	})
	if !slices.Equal(current, want) || len(current) == len(keys) {
		t.Errorf("listed %q, HEAD knows %q", current, want)
	}
}

// TestNamingAVersionIsNoWayAroundAPolicy: in a bucket without versions the null version is the object.
func TestNamingAVersionIsNoWayAroundAPolicy(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	c := s.client()
	put(t, c, "k", []byte("x"))
	deny := func(action string) {
		t.Helper()
		_, err := c.PutBucketPolicy(ctx, &s3.PutBucketPolicyInput{Bucket: aws.String(bucket), Policy: aws.String(fmt.Sprintf(
			`{"Statement":[{"Effect":"Deny","Principal":"*","Action":%q,"Resource":"arn:aws:s3:::%s/*"}]}`, action, bucket))})
		if err != nil {
			t.Fatal(err)
		}
	}
	del := func(version string) error {
		in := &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")}
		if version != "" {
			in.VersionId = &version
		}
		_, err := c.DeleteObject(ctx, in)
		return err
	}
	deny("s3:DeleteObject")
	wantCode(t, del("null"), "AccessDenied", 403)
	deny("s3:DeleteObjectVersion")
	wantCode(t, del("null"), "AccessDenied", 403)
	setVersioning(t, c, "Enabled")
	wantCode(t, del("null"), "AccessDenied", 403)
	if err := del(""); err != nil { // a delete marker destroys nothing
		t.Error(err)
	}
	deny("s3:GetObjectVersion")
	_, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), VersionId: aws.String("null")})
	wantCode(t, err, "AccessDenied", 403)
	if err := del("null"); err != nil {
		t.Error(err)
	}
}

// TestEventsNameTheVersion: what a webhook gets of a bucket with versions.
func TestEventsNameTheVersion(t *testing.T) {
	r := newReceiver(t)
	cfg := testConfig(t.TempDir())
	cfg.Webhooks = []objectstore.Webhook{{Name: "hook", URL: config.URL(r.URL), Events: []string{"s3:ObjectCreated:*", "s3:ObjectRemoved:*"}, Authorization: "Bearer hook"}}
	s := start(t, cfg)
	c := s.client()
	setVersioning(t, c, "Enabled")
	v1 := aws.ToString(put(t, c, "k", []byte("x")).VersionId)
	marker, _ := remove(t, c, "k", "")
	remove(t, c, "k", v1)
	setVersioning(t, c, "Suspended")
	put(t, c, "k", []byte("x"))
	put(t, c, "last", []byte("x"))
	want := []string{"ObjectCreated:Put " + v1, "ObjectRemoved:DeleteMarkerCreated " + marker, "ObjectRemoved:Delete " + v1, "ObjectCreated:Put null"}
	var got []string
	seen := map[string]bool{}
	for _, e := range r.wait(t, []string{"last"}) {
		if o := e.S3.Object; o.Key == "k" && !seen[o.Sequencer] {
			seen[o.Sequencer] = true
			got = append(got, e.EventName+" "+o.VersionID)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

// No key has a zero byte, but the names of the log's records have one: a listing must not look into them.
func TestVersionListingsWithZeroBytes(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	setVersioning(t, c, types.BucketVersioningStatusEnabled)
	for _, key := range []string{"a", "a", "b"} {
		put(t, c, key, []byte(key))
	}
	g := newSigner()
	for query, want := range map[string]int{
		"prefix=a%00": 0, "prefix=a%00&delimiter=/": 0, "prefix=a%000&delimiter=0": 0, "prefix=%00": 0, "prefix=%00v&delimiter=/": 0,
		"key-marker=a%00": 1, "key-marker=a%00%00": 1, "key-marker=a%00f&delimiter=/": 1, "key-marker=%00": 3,
		"key-marker=a%00&version-id-marker=null": 1, "delimiter=%00": 3, "key-marker=a%ff": 1, "prefix=%ff": 0,
	} {
		st, code, body := send(t, g.request("GET", s.url()+"/"+bucket+"?versions&"+query, nil))
		if n := bytes.Count(body, []byte("<Version>")); st != 200 || n != want {
			t.Errorf("%s: %d %s, %d versions, want %d", query, st, code, n, want)
		}
	}
}
