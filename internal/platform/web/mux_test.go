package web

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func testMux() *Mux {
	// The guard takes the token for the role.
	m := NewMux("lightmetrics test", "v1", func(rt Route, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, role := range rt.Roles {
				if r.Header.Get("Authorization") == string(role) {
					next.ServeHTTP(w, r)
					return
				}
			}
			WriteError(w, http.StatusForbidden, "permission_denied", "no", nil)
		})
	})
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %q", r.PathValue("id"), b)
	})
	m.Handle(Route{Pattern: "GET /open", About: "for <everybody>", Open: true, Handler: echo})
	m.Handle(Route{Pattern: "GET /things/{id}", About: "a thing", Roles: []Role{RoleReader}, Handler: echo})
	m.Handle(Route{Pattern: "POST /things/{id}", About: "make it", Roles: []Role{RoleOperator}, MaxBody: 8, Handler: echo})
	m.Handle(Route{Pattern: "GET /nobodys", About: "has no roles", Handler: echo})
	return m
}

func TestMuxAnswers(t *testing.T) {
	m := testMux()
	for _, c := range []struct {
		method, path, token, body string
		code                      int
		want                      string
	}{
		{"GET", "/open", "", "", 200, ` ""`},
		{"GET", "/open", "", "not asked for", 200, ` ""`},
		{"HEAD", "/open", "", "", 200, ""},
		{"GET", "/things/7", "reader", "", 200, `7 ""`},
		{"GET", "/things/7", "operator", "", 403, `"error":"permission_denied"`},
		{"POST", "/things/7", "operator", "12345678", 200, `7 "12345678"`},
		{"POST", "/things/7", "operator", "123456789", 413, `"error":"body_too_large"`},
		{"GET", "/nobodys", "operator", "", 403, "permission_denied"},
		{"GET", "/nothing", "", "", 404, `"error":"not_found"`},
		{"POST", "/nothing", "", "{}", 404, `"error":"not_found"`},
		{"GET", "/things/", "reader", "", 404, `"error":"not_found"`},
		{"DELETE", "/things/7", "operator", "", 405, `"allow":["GET","HEAD","POST"]`},
		{"POST", "/open", "", "{}", 405, `"error":"method_not_allowed"`},
		{"POST", "/", "", "", 404, `"error":"not_found"`},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		r.Header.Set("Authorization", c.token)
		w := httptest.NewRecorder()
		m.ServeHTTP(w, r)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s as %q: %d %s", c.method, c.path, c.token, w.Code, w.Body)
		}
		if c.code >= 400 && (w.Header().Get("Content-Type") != "application/json" || !json.Valid(w.Body.Bytes())) {
			t.Errorf("%s %s: %q: %s", c.method, c.path, w.Header().Get("Content-Type"), w.Body)
		}
		if c.code == 405 && w.Header().Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", c.method, c.path)
		}
	}
}

func TestIndexListsRoutes(t *testing.T) {
	get := func(accept string) string {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		testMux().ServeHTTP(w, r)
		if w.Code != 200 {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
		return w.Body.String()
	}
	for _, want := range []string{"lightmetrics test", "v1", `<a href="/open">`, "for &lt;everybody&gt;", "/things/{id}", "reader"} {
		if page := get("text/html,*/*"); !strings.Contains(page, want) {
			t.Errorf("no %s in %s", want, page)
		}
	}
	if page := get("text/html"); strings.Contains(page, `href="/things`) {
		t.Errorf("a link to a pattern: %s", page)
	}
	if page := get("*/*"); !strings.Contains(page, `{"method":"POST","path":"/things/{id}","about":"make it","roles":["operator"]}`) {
		t.Error(page)
	}
	m := NewMux("x", "v", nil)
	m.Handle(Route{Pattern: "GET /{$}", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "own") })})
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Body.String() != "own" {
		t.Errorf("a service's own page: %s", w.Body)
	}
}

// pipe is a listener whose only connection is one end of a net.Pipe.
type pipe struct{ conns chan net.Conn }

func (p pipe) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipe) Close() error { return nil }
func (pipe) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// TestTrickledBodiesEnd: a body that comes a byte at a time is answered 408, whoever would
// have read it, and a slow handler after a quick body is not cut off.
func TestTrickledBodiesEnd(t *testing.T) {
	for name, c := range map[string]struct {
		line, token string
		want        string
	}{
		"taken":     {"POST /things/7", "operator", "408"},
		"refused":   {"POST /things/7", "sender", "403"},
		"not taken": {"GET /open", "", "200"},
		"not there": {"POST /nothing", "", "404"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				l := pipe{conns: make(chan net.Conn, 1)}
				l.conns <- server
				s := NewHTTPServer(testMux())
				go func() { _ = s.Serve(l) }() // until the listener is closed
				start := time.Now()
				answer := make(chan string, 1)
				go func() {
					line, _ := bufio.NewReader(client).ReadString('\n')
					answer <- line
					_, _ = io.Copy(io.Discard, client) // until the server closes
				}()
				fmt.Fprintf(client, "%s HTTP/1.1\r\nHost: c\r\nAuthorization: %s\r\nContent-Length: 8\r\n\r\n", c.line, c.token)
				closed := time.Duration(0)
				for range 7 {
					if _, err := client.Write([]byte("x")); err != nil {
						break
					}
					time.Sleep(10 * time.Second)
					closed = time.Since(start)
				}
				if line := <-answer; !strings.Contains(line, c.want) {
					t.Errorf("answered %q", line)
				}
				if closed > 3*bodyTimeout {
					t.Errorf("the connection took bytes for %v", closed)
				}
				close(l.conns)
				_, _ = client.Close(), s.Close()
			})
		})
	}
}

func TestSlowHandlersOutliveTheBodysDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		l := pipe{conns: make(chan net.Conn, 1)}
		l.conns <- server
		m := NewMux("x", "v", nil)
		m.Handle(Route{Pattern: "POST /slow", MaxBody: 8, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				w.WriteHeader(http.StatusTeapot)
			case <-time.After(10 * bodyTimeout):
				w.WriteHeader(http.StatusAccepted)
			}
		})})
		s := NewHTTPServer(m)
		go func() { _ = s.Serve(l) }() // until the listener is closed
		fmt.Fprint(client, "POST /slow HTTP/1.1\r\nHost: c\r\nContent-Length: 2\r\n\r\nab")
		line, err := bufio.NewReader(client).ReadString('\n')
		if err != nil || !strings.Contains(line, "202") {
			t.Errorf("%q, %v", line, err)
		}
		close(l.conns)
		_, _ = client.Close(), s.Close()
	})
}
