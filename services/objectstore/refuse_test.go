package objectstore_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// What asks for a promise that the store does not make is refused, and changes nothing.
func TestWhatIsNotImplementedIsRefused(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	put(t, s.client(), "kept", []byte("one"))
	object, other := s.url()+"/"+bucket+"/kept", s.url()+"/bucket-two"
	g := newSigner
	configuration := func(inner string) []byte {
		return []byte("<CreateBucketConfiguration>" + inner + "</CreateBucketConfiguration>")
	}
	cases := []struct {
		name   string
		req    *http.Request
		status int
		code   string
	}{
		{"PUT if modified since", g().request("PUT", object, []byte("two"), "If-Modified-Since", time.Now().UTC().Format(http.TimeFormat)), 501, "NotImplemented"},
		{"PUT if unmodified since", g().request("PUT", object, []byte("two"), "If-Unmodified-Since", time.Now().UTC().Format(http.TimeFormat)), 501, "NotImplemented"},
		{"DELETE if unmodified since", g().request("DELETE", object, nil, "If-Unmodified-Since", time.Now().UTC().Format(http.TimeFormat)), 501, "NotImplemented"},
		{"PUT if the size matches", g().request("PUT", object, []byte("two"), "X-Amz-If-Match-Size", "7"), 501, "NotImplemented"},
		{"DELETE if of another size", g().request("DELETE", object, nil, "X-Amz-If-Match-Size", "7"), 412, "PreconditionFailed"},
		{"DELETE if of the beginning of time", g().request("DELETE", object, nil, "X-Amz-If-Match-Last-Modified-Time", "Thu, 01 Jan 1970 00:00:00 GMT"), 412, "PreconditionFailed"},
		{"a policy of nothing but a space", g().request("PUT", s.url()+"/"+bucket+"?policy=", []byte(" ")), 400, "MalformedPolicy"},
		{"bucket owner on PUT", g().request("PUT", object, []byte("two"), "X-Amz-Expected-Bucket-Owner", "123456789012"), 403, "AccessDenied"},
		{"bucket owner on GET", g().request("GET", object, nil, "X-Amz-Expected-Bucket-Owner", "123456789012"), 403, "AccessDenied"},
		{"bucket owner on listing", g().request("GET", s.url()+"/"+bucket+"?list-type=2", nil, "X-Amz-Expected-Bucket-Owner", "123456789012"), 403, "AccessDenied"},
		{"source bucket owner", g().request("PUT", object+"2", nil, "X-Amz-Copy-Source", "/"+bucket+"/kept", "X-Amz-Source-Expected-Bucket-Owner", "123456789012"), 403, "AccessDenied"},
		{"MFA on multi-delete", g().request("POST", s.url()+"/"+bucket+"?delete=", []byte("<Delete><Object><Key>kept</Key></Object></Delete>"), "X-Amz-Mfa", "a 1"), 501, "NotImplemented"},
		{"encryption", g().request("PUT", object, []byte("two"), "X-Amz-Server-Side-Encryption", "AES256"), 501, "NotImplemented"},
		{"empty Content-MD5", g().request("PUT", object, []byte("two"), "Content-Md5", ""), 400, "InvalidDigest"},
		{"x-amz parameter of an unsigned kind", g().request("GET", object+"?x-amz-checksum-mode=ENABLED", nil), 501, "NotImplemented"},
		{"location of another region", g().request("PUT", other, configuration("<LocationConstraint>mars-1</LocationConstraint>")), 400, "InvalidLocationConstraint"},
		{"directory bucket", g().request("PUT", other, configuration("<Location><Type>AvailabilityZone</Type></Location>")), 501, "NotImplemented"},
		{"public bucket", g().request("PUT", other, nil, "X-Amz-Acl", "public-read"), 400, "InvalidBucketAclWithObjectOwnership"},
		{"public object", g().request("PUT", object, []byte("two"), "X-Amz-Acl", "public-read"), 400, "AccessControlListNotSupported"},
		{"ACL of an object", g().request("PUT", object+"?acl=", nil, "X-Amz-Acl", "public-read"), 400, "AccessControlListNotSupported"},
		{"ACL of a bucket", g().request("PUT", s.url()+"/"+bucket+"?acl=", nil, "X-Amz-Acl", "public-read"), 400, "AccessControlListNotSupported"},
		{"public access by a grant", g().request("PUT", object, []byte("two"), "X-Amz-Grant-Read", `uri="http://acs.amazonaws.com/groups/global/AllUsers"`), 400, "AccessControlListNotSupported"},
	}
	for _, c := range cases {
		if status, code, b := send(t, c.req); status != c.status || code != c.code {
			t.Errorf("%s: got %d %s, want %d %s: %s", c.name, status, code, c.status, c.code, b)
		}
	}
	if got := get(t, s.client(), "kept"); string(got) != "one" {
		t.Errorf("a refused request wrote %q", got)
	}
	if status, _, _ := send(t, g().request("HEAD", other, nil)); status != 404 {
		t.Errorf("a refused request made the bucket: %d", status)
	}
	// What asks for no more than what is there is not refused.
	if status, code, b := send(t, g().request("PUT", other, configuration("<LocationConstraint>us-east-1</LocationConstraint>"),
		"X-Amz-Bucket-Object-Lock-Enabled", "false", "X-Amz-Object-Ownership", "BucketOwnerEnforced")); status != 200 {
		t.Errorf("a bucket in the store's own region: %d %s: %s", status, code, b)
	}
}

// DeleteObject and DeleteObjects have conditions of their own: the size and the time of the object.
func TestConditionsOfDelete(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	for _, k := range []string{"a", "b", "c", "d", "e"} {
		put(t, s.client(), k, []byte("x"))
	}
	body := []byte("<Delete><Object><Key>a</Key><Size>7</Size></Object>" +
		"<Object><Key>b</Key><LastModifiedTime>2020-01-01T00:00:00Z</LastModifiedTime></Object><Object><Key>c</Key><Size>1</Size></Object></Delete>")
	status, _, answer := send(t, newSigner().request("POST", s.url()+"/"+bucket+"?delete=", body))
	if status != 200 || strings.Count(string(answer), "<Code>PreconditionFailed</Code>") != 2 || !strings.Contains(string(answer), "<Deleted><Key>c</Key></Deleted>") {
		t.Errorf("%d: %s", status, answer)
	}
	head, err := s.client().HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("e")})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key, header, value string
		want               int
	}{
		{"d", "X-Amz-If-Match-Size", "2", 412},
		{"d", "X-Amz-If-Match-Size", "-1", 400},
		{"d", "X-Amz-If-Match-Last-Modified-Time", "Wed, 01 Jan 2020 00:00:00 GMT", 412},
		{"d", "X-Amz-If-Match-Last-Modified-Time", "yesterday", 400},
		{"absent", "X-Amz-If-Match-Size", "1", 404},
		{"d", "X-Amz-If-Match-Size", "1", 204},
		{"e", "X-Amz-If-Match-Last-Modified-Time", head.LastModified.Format(http.TimeFormat), 204},
	} {
		if got, _, b := send(t, newSigner().request("DELETE", s.url()+"/"+bucket+"/"+c.key, nil, c.header, c.value)); got != c.want {
			t.Errorf("DELETE %s with %s: %s: %d, want %d: %s", c.key, c.header, c.value, got, c.want, b)
		}
	}
	for key, want := range map[string]int{"a": 200, "b": 200, "c": 404, "d": 404, "e": 404} {
		if got, _, _ := send(t, newSigner().request("HEAD", s.url()+"/"+bucket+"/"+key, nil)); got != want {
			t.Errorf("%s: %d, want %d", key, got, want)
		}
	}
}

// The answers to what SDKs and tools send are those of AWS.
func TestAnswersLikeAWS(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.EncryptedAtRest, cfg.Domain = true, "Store.Test"
	s := start(t, cfg)
	object := s.url() + "/" + bucket + "/dir/a b"
	status, code, b := send(t, newSigner().request("PUT", object, []byte("one"), "X-Amz-Meta-MixedCase", "1", "X-Amz-Server-Side-Encryption", "AES256"))
	if status != 200 {
		t.Fatalf("%d %s: %s", status, code, b)
	}
	resp, err := http.DefaultClient.Do(newSigner().request("HEAD", object, nil))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Header.Get("X-Amz-Server-Side-Encryption") != "AES256" {
		t.Error("HEAD does not name the encryption")
	}
	if status, code, _ := send(t, newSigner().request("PUT", object, []byte("two"), "X-Amz-Server-Side-Encryption", "aws:kms")); status != 501 || code != "NotImplemented" {
		t.Errorf("a key service: %d %s", status, code)
	}
	if h := rawHeaders(t, s, object); !strings.Contains(h, "\r\nx-amz-meta-mixedcase: 1\r\n") {
		t.Errorf("the name of metadata is not lower-case on the wire:\n%s", h)
	}

	// A Date header with the zone -0000 in place of x-amz-date.
	r := newSigner().request("GET", object, nil)
	dated := signedByDate(r, "Mon, 02 Jan 2006 15:04:05 -0000")
	if status, code, b := send(t, dated); status != 200 {
		t.Errorf("Date with -0000: %d %s: %s", status, code, b)
	}

	// Signature Version 2 is named as the reason, in the header and in a URL.
	for name, r := range map[string]*http.Request{
		"header": must(http.NewRequest("GET", object, nil)),
		"URL":    must(http.NewRequest("GET", object+"?AWSAccessKeyId=AKIA&Expires=1&Signature=abc%3D", nil)),
	} {
		if name == "header" {
			r.Header.Set("Authorization", "AWS AKIA:abc=")
		}
		if status, code, b := send(t, r); status != 400 || code != "InvalidRequest" || !bytes.Contains(b, []byte("AWS4-HMAC-SHA256")) {
			t.Errorf("Signature Version 2 in the %s: %d %s: %s", name, status, code, b)
		}
	}

	// Virtual hosts have no case.
	vhost := must(http.NewRequest("GET", "http://BUCKET-ONE.store.TEST/dir/a%20b", nil))
	vhost.Header.Set("X-Amz-Content-Sha256", hash(nil))
	newSigner().sign(vhost)
	vhost.Host, vhost.URL.Host = vhost.URL.Host, s.Addr()
	if status, code, b := send(t, vhost); status != 200 || string(b) != "one" {
		t.Errorf("an upper-case virtual host: %d %s %q", status, code, b)
	}

	// Version 1 of the listing repeats the prefix as it came, version 2 encodes it.
	for query, want := range map[string]string{
		"?encoding-type=url&prefix=dir%2Fa%20":             "<Prefix>dir/a </Prefix>",
		"?encoding-type=url&list-type=2&prefix=dir%2Fa%20": "<Prefix>dir/a%20</Prefix>",
	} {
		_, _, b := send(t, newSigner().request("GET", s.url()+"/"+bucket+query, nil))
		if !bytes.Contains(b, []byte(want)) || !bytes.Contains(b, []byte("<Key>dir/a%20b</Key>")) {
			t.Errorf("%s: no %s in %s", query, want, b)
		}
	}
}

// A presigned URL carries headers in its query; they count as if they were sent.
func TestHoistedHeaders(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	object := s.url() + "/" + bucket + "/hoisted"
	do := func(method, target string, body string, headers ...string) (int, string) {
		t.Helper()
		r := must(http.NewRequest(method, target, strings.NewReader(body)))
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		status, code, _ := send(t, r)
		return status, code
	}
	q := url.Values{"x-amz-meta-from": {"query"}, "X-Amz-Tagging": {"a=b"}, "x-amz-checksum-sha256": {"dpLDrTVAu4A8Ag67mpNiIcSMjTqGa54aK6xHtVj1FGA="}}
	if status, code := do("PUT", newSigner().presign("PUT", object+"?"+q.Encode(), time.Minute), "one"); status != 400 || code != "BadDigest" {
		t.Errorf("a hoisted checksum of other bytes: %d %s", status, code)
	}
	q.Del("x-amz-checksum-sha256")
	if status, code := do("PUT", newSigner().presign("PUT", object+"?"+q.Encode(), time.Minute), "one"); status != 200 {
		t.Fatalf("%d %s", status, code)
	}
	h, err := s.client().HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("hoisted")})
	if err != nil {
		t.Fatal(err)
	}
	if h.Metadata["from"] != "query" || *h.TagCount != 1 {
		t.Errorf("metadata %v, tags %v", h.Metadata, h.TagCount)
	}
	// A copy source in the query makes the PUT a copy, and not an empty object.
	if status, code := do("PUT", newSigner().presign("PUT", object+"-copy?x-amz-copy-source="+url.QueryEscape("/"+bucket+"/hoisted"), time.Minute), ""); status != 200 {
		t.Fatalf("copy: %d %s", status, code)
	}
	if got := get(t, s.client(), "hoisted-copy"); string(got) != "one" {
		t.Errorf("the copy is %q", got)
	}
	if status, code := do("PUT", newSigner().presign("PUT", object+"?x-amz-object-lock-legal-hold=ON", time.Minute), "two"); status != 400 || code != "InvalidRequest" {
		t.Errorf("a hoisted object lock: %d %s", status, code)
	}
	if status, code := do("PUT", newSigner().presign("PUT", object+"?x-amz-acl=private", time.Minute), "two", "X-Amz-Acl", "bucket-owner-full-control"); status < 400 {
		t.Errorf("a header against the query: %d %s", status, code)
	}
	if got := get(t, s.client(), "hoisted"); string(got) != "one" {
		t.Errorf("a refused request wrote %q", got)
	}
	// An SDK that does not know the body signs the checksum of none. As a header it is meant.
	const nothing = "?x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32"
	if status, code := do("PUT", newSigner().presign("PUT", object+nothing, time.Minute), "three"); status != 200 {
		t.Errorf("the checksum of nothing in the query: %d %s", status, code)
	}
	if status, code, _ := send(t, newSigner().request("PUT", object, []byte("four"), "X-Amz-Checksum-Crc32", "AAAAAA==")); status != 400 || code != "BadDigest" {
		t.Errorf("the checksum of nothing as a header: %d %s", status, code)
	}
	if got := get(t, s.client(), "hoisted"); string(got) != "three" {
		t.Errorf("it is %q", got)
	}
}

// Senders who declare a body and stall hold up nobody: what they hold is taken back as
// soon as others wait for it.
func TestStalledBodiesStarveNobody(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.MaxInFlight = 4 << 20 // the smallest that is allowed: four bodies of 1 MiB
	s := start(t, cfg)
	const size = 1 << 20
	for _, sent := range []int{0, 100 << 10} { // nothing, or enough to get memory
		var ends []io.Closer
		for i := range 64 {
			body, w := io.Pipe()
			r := newSigner().request("PUT", fmt.Sprintf("%s/%s/stalled-%d", s.url(), bucket, i), make([]byte, size))
			r.Body, r.ContentLength = body, size
			go func() {
				resp, err := (&http.Transport{}).RoundTrip(r)
				if err == nil {
					resp.Body.Close()
				}
			}()
			go func() { _, _ = w.Write(make([]byte, sent)) }()
			ends = append(ends, w)
		}
		time.Sleep(300 * time.Millisecond) // let them arrive; the test holds without it too
		for i := range 8 {
			status, code, b := send(t, newSigner().request("PUT", fmt.Sprintf("%s/%s/honest-%d", s.url(), bucket, i), make([]byte, size)))
			if status != 200 {
				t.Errorf("beside 64 bodies that stalled after %d bytes: %d %s: %s", sent, status, code, b)
			}
		}
		for _, e := range ends {
			_ = e.Close()
		}
	}
}
