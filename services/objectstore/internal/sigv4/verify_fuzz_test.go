package sigv4

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// FuzzVerify: no request that was not signed with the secret is let in, and every
// refusal is an S3 error. The fuzzer has the access key, as an attacker may.
func FuzzVerify(f *testing.F) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	const cred = "AK/20260701/us-east-1/s3/aws4_request"
	f.Add("PUT", "/b/k", "", "AWS4-HMAC-SHA256 Credential="+cred+", SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature="+strings.Repeat("0", 64), "20260701T120000Z", "UNSIGNED-PAYLOAD")
	f.Add("GET", "/b/k", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential="+url.QueryEscape(cred)+"&X-Amz-Date=20260701T120000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=00", "", "", "")
	f.Add("PUT", "/b/k", "X-Amz-Signature=", "AWS4-HMAC-SHA256 Credential=////,SignedHeaders=;,Signature=", "20260701T120000Z", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
	f.Add("PUT", "/%2e%2e/k", "a;b&%zz", "AWS4-HMAC-SHA256 ,,,=", "", "E3B0")
	v := New(func(id string) (string, bool) { return "a secret that the fuzzer does not have", id == "AK" }, func() time.Time { return now })
	f.Fuzz(func(t *testing.T, method, path, query, auth, date, sha string) {
		r := &http.Request{Method: method, Host: "h", URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{}}
		for n, val := range map[string]string{"Authorization": auth, "X-Amz-Date": date, "X-Amz-Content-Sha256": sha} {
			if val != "" {
				r.Header[n] = []string{val}
			}
		}
		a, err := v.Verify(r)
		if err == nil {
			t.Fatalf("let in: %+v", a)
		}
		var e *s3err.Error
		if !errors.As(err, &e) || e.Status < 400 || e.Status >= 500 {
			t.Fatalf("%v", err)
		}
	})
}

// FuzzCanonicalQuery: the canonical query is a function of the parameters, whatever their order.
func FuzzCanonicalQuery(f *testing.F) {
	f.Add("a=1&b=2&a=%20")
	f.Add("&&=&a&%41=+&X-Amz-Signature=x")
	f.Add("prefix=a%2Fb&delimiter=%2F&list-type=2")
	f.Fuzz(func(t *testing.T, raw string) {
		ps, err := parseQuery(raw)
		if err != nil {
			return
		}
		once := string(appendQuery(nil, ps))
		for i, j := 0, len(ps)-1; i < j; i, j = i+1, j-1 {
			ps[i], ps[j] = ps[j], ps[i]
		}
		if again := string(appendQuery(nil, ps)); again != once {
			t.Fatalf("%q and %q", once, again)
		}
		back, err := parseQuery(once)
		if err != nil || string(appendQuery(nil, back)) != once {
			t.Fatalf("%q is not canonical: %q, %v", once, appendQuery(nil, back), err)
		}
	})
}
