package query_test

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/query"
)

// send makes one request that the client does not change.
func (n *node) send(method, path string, header ...string) *http.Response {
	n.t.Helper()
	req, err := http.NewRequest(method, n.url+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	c := &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// TestWrongMethods are 405 with what is allowed, in the envelope of the API.
func TestWrongMethods(t *testing.T) {
	n := start(t, newAuthority(t), nil)
	for path, allow := range map[string]string{
		"/api/v1/query": "HEAD, GET, POST", "/api/v1/label/a/values": "HEAD, GET", "/api/v1/status/buildinfo": "HEAD, GET",
	} {
		resp := n.send(http.MethodDelete, path)
		var e envelope
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != allow || e.Status != "error" || e.ErrorType != "method_not_allowed" {
			t.Errorf("%s: %d, allowed %q, %+v", path, resp.StatusCode, resp.Header.Get("Allow"), e)
		}
	}
	if resp := n.send(http.MethodPost, "/v1/query"); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST of a GET below /v1: %d", resp.StatusCode)
	}
}

// TestAnswersAreCompressed for who asks for it, where it is worth it.
func TestAnswersAreCompressed(t *testing.T) {
	n := start(t, newAuthority(t), nil)
	const path = "/api/v1/query_range?query=vector(1)&start=0&end=5000&step=1"
	plain, err := io.ReadAll(n.send(http.MethodGet, path).Body)
	if err != nil {
		t.Fatal(err)
	}
	resp := n.send(http.MethodGet, path, "Accept-Encoding", "gzip")
	small, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Header.Get("Content-Encoding") != "gzip" || !strings.Contains(resp.Header.Get("Vary"), "Accept-Encoding") || len(small) > len(plain)/3 {
		t.Fatalf("%d of %d bytes, %v", len(small), len(plain), resp.Header)
	}
	r, err := gzip.NewReader(strings.NewReader(string(small)))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	points := func(b []byte) string { s, _, _ := strings.Cut(string(b), "lightmetrics"); return s } // complete_through moves on
	if points(text) != points(plain) || len(points(plain)) < 50_000 {
		t.Error("the compressed answer is another")
	}
	if resp := n.send(http.MethodGet, "/api/v1/query?query=1", "Accept-Encoding", "gzip"); resp.Header.Get("Content-Encoding") != "" {
		t.Error("a small answer is compressed")
	}
}

// TestOrigins: pages of listed origins may read answers, after a preflight without
// credentials; without the setting none may.
func TestOrigins(t *testing.T) {
	const good, bad = "https://grafana.example.com", "https://evil.example.com"
	off := start(t, newAuthority(t), nil)
	on := start(t, newAuthority(t), func(c *query.Config) { c.CORS.Origins = []string{good} })
	every := start(t, newAuthority(t), func(c *query.Config) { c.CORS.Origins = []string{"*"} })
	const path = "/api/v1/query?query=1"
	for _, c := range []struct {
		n            *node
		origin, want string
	}{{off, good, ""}, {on, good, good}, {on, bad, ""}, {on, "", ""}, {every, bad, "*"}} {
		var header []string
		if c.origin != "" {
			header = []string{"Origin", c.origin}
		}
		resp := c.n.send(http.MethodGet, path, header...)
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != c.want || resp.StatusCode != 200 {
			t.Errorf("from %q: %q, want %q; %d", c.origin, got, c.want, resp.StatusCode)
		}
		resp = c.n.send(http.MethodOptions, path, append(header, "Access-Control-Request-Method", "POST")...)
		if ok := resp.StatusCode == http.StatusNoContent && strings.Contains(resp.Header.Get("Access-Control-Allow-Headers"), "Authorization"); ok != (c.want != "") {
			t.Errorf("preflight from %q: %d %v", c.origin, resp.StatusCode, resp.Header)
		}
	}
	if v := on.send(http.MethodGet, path).Header.Values("Vary"); !strings.Contains(strings.Join(v, ","), "Origin") {
		t.Errorf("caches are not reported: %v", v)
	}
	for _, o := range []string{"grafana.example.com", "https://grafana.example.com/", "https://Grafana.example.com", "null", "ftp://x", ""} {
		c := query.DefaultConfig()
		c.CORS.Origins = []string{o}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "cors.origins") {
			t.Errorf("origin %q: %v", o, err)
		}
	}
}

// TestMetadataHasUnits, types and helps, as the frames have them, in the shape and order of
// Prometheus, with its parameters. Of two helps the newest batch's is answered.
func TestMetadataHasUnits(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	for seq, b := range []struct {
		name       string
		typ        series.Type
		unit, help string
	}{
		{"request_duration_seconds", series.Gauge, "seconds", "How long a \"request\" took."},
		{"bare", series.Unknown, "", ""},
		{"changed", series.Counter, "", "Before."},
		{"changed", series.Counter, "", "After."},
	} {
		a.accept(a.buildMeta(host, uint64(1+seq), now.Add(time.Duration(seq)*time.Millisecond), b.name, b.typ, b.unit, b.help))
	}
	// A series is its labels: the same of another agent, with the label agent, has another type.
	a.accept(a.buildMeta(identity.Boot{Agent: "other", Boot: "b"}, 1, now.Add(-time.Second), "changed", series.Gauge, "", "Oldest."))
	n := start(t, a, nil)
	<-n.Complete()
	const (
		bare    = `"bare":[{"type":"unknown","unit":"","help":""}]`
		gauge   = `{"type":"gauge","unit":"","help":"After."}`
		changed = `"changed":[` + gauge + `,{"type":"counter","unit":"","help":"After."}]`
		request = `"request_duration_seconds":[{"type":"gauge","unit":"seconds","help":"How long a \"request\" took."}]`
	)
	for _, c := range []struct {
		params []string
		want   string
	}{
		{nil, `{` + bare + `,` + changed + `,` + request + `}`},
		{[]string{"metric", "request_duration_seconds"}, `{` + request + `}`},
		{[]string{"metric", "none"}, `{}`},
		{[]string{"limit", "2"}, `{` + bare + `,` + changed + `}`},
		{[]string{"limit", "0"}, `{}`},
		{[]string{"limit", "-1", "limit_per_metric", "1"}, `{` + bare + `,"changed":[` + gauge + `],` + request + `}`},
		{[]string{"limit_per_metric", "0", "metric", "changed"}, `{` + changed + `}`},
	} {
		if e := n.get("/api/v1/metadata", c.params...); e.Status != "success" || string(e.Data) != c.want {
			t.Errorf("%v: %s, want %s", c.params, e.Data, c.want)
		}
	}
	if e := n.get("/api/v1/metadata", "limit_per_metric", "x"); e.code != 400 || e.ErrorType != "bad_data" {
		t.Errorf("limit_per_metric=x: %d %+v", e.code, e)
	}
}
