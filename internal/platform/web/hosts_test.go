package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestLoopback(t *testing.T) {
	for a, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true, "[::ffff:127.0.0.1]:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "localhost.example.org:1": false,
		"127.0.0.1": false, "": false, "127.0.0.1.example.org:1": false,
	} {
		if got := Loopback(a); got != want {
			t.Errorf("Loopback(%q) = %v", a, got)
		}
	}
}

func TestForeignHostsAreRefused(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	own := []string{"metrics.example.org"}
	for _, c := range []struct {
		listen string
		hosts  []string
		host   string
		ok     bool
	}{
		{"127.0.0.1:4760", nil, "127.0.0.1:4760", true},
		{"127.0.0.1:4760", nil, "localhost:4760", true},
		{"127.0.0.1:4760", nil, "LOCALHOST.", true},
		{"127.0.0.1:4760", nil, "[::1]:4760", true},
		{"127.0.0.1:4760", nil, "::1", true},
		{"localhost:4760", nil, "app.localhost:9", true},
		{"127.0.0.1:4760", nil, "10.1.2.3", true},
		{"127.0.0.1:4760", nil, "", true},
		{"127.0.0.1:4760", nil, "evil.example:4760", false},
		{"127.0.0.1:4760", nil, "127.0.0.1.evil.example", false},
		{"127.0.0.1:4760", nil, "localhost.evil.example", false},
		{"127.0.0.1:4760", nil, "metrics.example.org", false},
		{"127.0.0.1:4760", own, "Metrics.Example.Org:80", true},
		{"127.0.0.1:4760", own, "evil.example", false},
		{"[::1]:4760", nil, "evil.example", false},
		{"0.0.0.0:4760", nil, "evil.example", true}, // auth and TLS are there
		{"0.0.0.0:4760", own, "evil.example", false},
		{"0.0.0.0:4760", own, "metrics.example.org", true},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		CheckHosts(c.listen, c.hosts, ok).ServeHTTP(w, r)
		if want := map[bool]int{true: http.StatusNoContent, false: http.StatusMisdirectedRequest}[c.ok]; w.Code != want {
			t.Errorf("host %q on %s with %v: %d %s", c.host, c.listen, c.hosts, w.Code, w.Body)
		}
	}
}
