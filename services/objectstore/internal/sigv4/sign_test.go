package sigv4

import (
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
