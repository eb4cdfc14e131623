package sigv4

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A signing key that was used before signs like a new one.
func TestAKeyThatIsKeptSignsLikeANewOne(t *testing.T) {
	v := New(nil, time.Now)
	c := claim{access: "AK", date: "20260701", region: "r", service: "s3", scope: "20260701/r/s3/aws4_request"}
	for _, text := range []string{"", "one", strings.Repeat("a longer text ", 100), "one"} {
		k := v.signingKey(c, "secret")
		if got, want := k.sign([]byte(text)), sign(k.bytes, []byte(text)); string(got[:]) != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if len(v.keys) != 1 {
		t.Errorf("%d keys of one credential", len(v.keys))
	}
	other := c
	other.date, other.scope = "20260702", "20260702/r/s3/aws4_request"
	if v.signingKey(other, "secret").sign(nil) == v.signingKey(c, "secret").sign(nil) {
		t.Error("the key of another day signs alike")
	}
}

func TestCanonicalNames(t *testing.T) {
	for low, name := range canonicalNames {
		if name != http.CanonicalHeaderKey(low) || !isLowerOf(low, name) {
			t.Errorf("%q: %q", low, name)
		}
		if isLowerOf(name, name) || isLowerOf(low+"x", name) || isLowerOf("x"+low[1:], name) != (low[0] == 'x') {
			t.Errorf("%q passes for another name", low)
		}
	}
}

// What Sign signs is what Verify takes, and nothing in it can be changed.
func TestSignedRequestsAreTaken(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	v := New(func(key string) (string, bool) { return "a secret", key == "AK" }, func() time.Time { return now })
	body := []byte("some bytes")
	make := func() *http.Request {
		r, err := http.NewRequest(http.MethodPut, "http://store:9000/bucket/a/b.c-d?partNumber=3&uploadId=x%2Fy%20z", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("If-None-Match", "*")
		Credentials{"AK", "a secret", "eu-1"}.Sign(r, sha256.Sum256(body), now)
		return r
	}
	if a, err := v.Verify(make()); err != nil || a.Payload != Hashed {
		t.Errorf("%+v, %v", a, err)
	}
	for name, change := range map[string]func(*http.Request){
		"path":      func(r *http.Request) { r.URL.Path += "x" },
		"query":     func(r *http.Request) { r.URL.RawQuery += "0" },
		"header":    func(r *http.Request) { r.Header.Set("If-None-Match", "x") },
		"no header": func(r *http.Request) { r.Header.Del("If-None-Match") },
		"body":      func(r *http.Request) { r.Header.Set("X-Amz-Content-Sha256", strings.Repeat("0", 64)) },
		"host":      func(r *http.Request) { r.Host = "other" },
		"method":    func(r *http.Request) { r.Method = http.MethodGet },
	} {
		r := make()
		change(r)
		if _, err := v.Verify(r); err == nil {
			t.Errorf("a change of the %s is taken", name)
		}
	}
}
