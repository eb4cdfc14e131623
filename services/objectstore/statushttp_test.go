package objectstore_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// TestStatusPage: the page of a running store has its buckets, places and files; one without places has none of those.
func TestStatusPage(t *testing.T) {
	page := func(addr string) string {
		resp, err := http.Get("http://" + addr + "/status")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") || resp.Header.Get("Content-Security-Policy") == "" {
			t.Fatalf("%v, %v\n%s", resp, err, b)
		}
		return string(b)
	}
	cfg := coded(t, t.TempDir(), 3)
	cfg.Quotas = []objectstore.BucketQuota{{Bucket: bucket, Bytes: config.Bytes(30 << 20)}}
	s := start(t, cfg)
	put(t, s.client(), "large", large(3))
	settled(t, s.AdminAddr(), 3)
	got := page(s.AdminAddr())
	for _, want := range []string{`<strong class="ok">Ready</strong>`, "<td>drive0</td><td class=\"ok\">up</td>", "<td>" + bucket + "</td>", "10% of 30 MiB", "3 durable", "2 data and 1 parity shards", "None was found"} {
		if !strings.Contains(got, want) {
			t.Errorf("the page does not say %q\n%s", want, got)
		}
	}
	s.stop()
	plain := start(t, testConfig(t.TempDir()))
	if got := page(plain.AdminAddr()); strings.Contains(got, "<h2>Places") || strings.Contains(got, "<h2>Redundancy") || !strings.Contains(got, "<h2>Buckets") {
		t.Error(got)
	}
}
