package s3

import (
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go/encoding/httpbinding"
)

// FuzzSign compares our signatures with those of the SDK.
func FuzzSign(f *testing.F) {
	f.Add("PUT", "accepted/v1/agent=6869/boot=00/1-2.json", "", "127.0.0.1:9000", "If-None-Match", "*", "", "AK", "secret", int64(2000), int64(1780000000))
	f.Add("GET", "a b/ü+%/~", "", "s3.example", "Range", "bytes=0-1", "token", "AK", "s", int64(0), int64(1780000001))
	f.Add("PUT", "", "", "s3.example:443", "X-Amz-Tagging", "a%20b=c", "", "AK2", "s", int64(1), int64(0))
	f.Add("PUT", "k", "", "h", "Content-Type", " two  spaces ", "", "AK", "s", int64(300000), int64(1780000000))
	f.Add("PUT", "k", "", "h:80", "Expect", "100-continue", "t", "AK", "s", int64(300000), int64(1780000000))
	f.Add("GET", "", "prefix=a%2Fb&list-type=2&a=+", "h", "X-Amz-Meta-Ünicode", "v", "", "AK", "s", int64(0), int64(1780000000))
	g := newSigner("eu-test-1") // kept, so that a cached key of other credentials would show
	f.Fuzz(func(t *testing.T, method, key, query, host, name, value, token, id, secret string, length, unix int64) {
		if unix < 0 || unix > 1<<33 || strings.Contains(key, "\x00") {
			return
		}
		u := url.URL{Scheme: "http", Host: host, Path: "/bucket", RawQuery: query}
		if key != "" {
			u.RawPath = u.EscapedPath() + "/" + httpbinding.EscapePath(key, false)
			u.Path += "/" + key
		}
		make := func() *http.Request {
			own := u
			r := &http.Request{Method: method, URL: &own, Host: host, ContentLength: length, Header: emptyHeader(2)}
			if name != "" {
				r.Header[http.CanonicalHeaderKey(name)] = []string{value}
			}
			r.Header["X-Amz-Content-Sha256"] = []string{emptyPayload}
			return r
		}
		creds := aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, SessionToken: token}
		ours, sdks := make(), make()
		now := time.Unix(unix, 0)
		// A new one each time: the SDK's keeps its key while the secret of an access key changes.
		g.sdk = newSigner(g.region).sdk
		err1 := g.sign(t.Context(), creds, ours, now)
		err2 := g.sdk.SignHTTP(t.Context(), creds, sdks, emptyPayload, "s3", g.region, now)
		if (err1 == nil) != (err2 == nil) {
			t.Fatalf("%v and %v", err1, err2)
		}
		if err1 == nil && (!maps.EqualFunc(ours.Header, sdks.Header, func(a, b []string) bool { return strings.Join(a, "\x00") == strings.Join(b, "\x00") }) ||
			ours.Host != sdks.Host || ours.URL.String() != sdks.URL.String()) {
			t.Fatalf("%v\n%v", ours.Header, sdks.Header)
		}
	})
}

// The requests of every batch are those that we sign ourselves.
func TestHotRequestsAreSignedHere(t *testing.T) {
	for low, want := range lowerNames {
		if strings.ToLower(low) != want || http.CanonicalHeaderKey(low) != low {
			t.Errorf("%q: %q", low, want)
		}
	}
	r := &http.Request{Method: "PUT", Host: "127.0.0.1:9000", URL: &url.URL{Path: "/b/k"}, Header: http.Header{"If-None-Match": {"*"}, "Expect": {"100-continue"}}}
	if !signsItself(r) {
		t.Error("a conditional create is left to the SDK")
	}
	r.URL.RawQuery = "list-type=2"
	if signsItself(r) {
		t.Error("a listing is not left to the SDK")
	}
}
