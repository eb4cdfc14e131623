package objectstore_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// With as many connections with requests as there may be, further ones are told to slow down, and counted.
func TestMaxConnections(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.MaxConnections = 1
	s := start(t, cfg)
	busy, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	r := newSigner().request("PUT", s.url()+"/"+bucket+"/k", []byte("body"))
	head := fmt.Sprintf("PUT /%s/k HTTP/1.1\r\nHost: %s\r\nContent-Length: 4\r\n", bucket, s.Addr())
	for name, v := range r.Header {
		head += name + ": " + v[0] + "\r\n"
	}
	if _, err := io.WriteString(busy, head+"Expect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(busy)
	for _, want := range []string{"HTTP/1.1 100 Continue\r\n", "\r\n"} { // the store waits for the body, which does not come
		if line, err := in.ReadString('\n'); err != nil || line != want {
			t.Fatalf("%q, %v", line, err)
		}
	}
	answer := ""
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(answer, "<Code>SlowDown</Code>"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a second connection: %q", answer)
		}
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		b, _ := io.ReadAll(c)
		_ = c.Close()
		answer = string(b)
	}
	if !strings.HasPrefix(answer, "HTTP/1.1 503 Service Unavailable\r\n") || !strings.Contains(answer, "Retry-After: 1\r\n") {
		t.Errorf("%q", answer)
	}
	_, metrics := adminGet(t, s, "/metrics")
	for _, want := range []string{"lightmetrics_objectstore_connections 1\n", "lightmetrics_objectstore_connections_displaced_total"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	if strings.Contains(metrics, "lightmetrics_objectstore_connections_refused_total 0\n") {
		t.Error("the refused connection is not counted")
	}
	if _, err := io.WriteString(busy, "body"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(in, r)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("the first connection: %v %v", resp, err)
	}
}

// What comes before anybody is known to have sent it has a time in all, and not only for each piece.
func TestFormsThatTrickle(t *testing.T) {
	t.Parallel() // most of it is waiting
	cfg := testConfig(t.TempDir())
	cfg.BodyIdle = 2 * time.Second
	s := start(t, cfg)
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "POST /%s HTTP/1.1\r\nHost: %s\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 10000\r\n\r\n--b\r\nContent-Disposition: form-data; name=key\r\n\r\n", bucket, s.Addr()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(c)
		ended <- string(b)
	}()
	for range 1000 { // for as long as the test has patience; a piece comes in far less than body_idle_timeout
		select {
		case answer := <-ended:
			if !strings.Contains(answer, "HTTP/1.1 400") {
				t.Errorf("%q", answer)
			}
			return
		case <-time.After(100 * time.Millisecond):
			_, _ = io.WriteString(c, "k") // until the store closes it
		}
	}
	t.Error("a form that nobody has signed trickles on")
}
