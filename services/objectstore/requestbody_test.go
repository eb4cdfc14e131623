package objectstore_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Bodies of requests are read whole, though objects of their size would go to a file.
func TestRequestBodiesBeyondInline(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.InlineObject = 64
	s := start(t, cfg)
	c := s.client()
	put(t, c, "a", []byte("x"))
	var body bytes.Buffer
	body.WriteString("<Delete>")
	for i := range 20 {
		fmt.Fprintf(&body, "<Object><Key>nothing-%d</Key></Object>", i)
	}
	body.WriteString("<Object><Key>a</Key></Object></Delete>")
	if status, code, b := send(t, newSigner().request("POST", s.url()+"/"+bucket+"?delete=", body.Bytes())); status != 200 {
		t.Fatalf("%d %s: %s", status, code, b)
	}
	if status, code, _ := send(t, newSigner().request("GET", s.url()+"/"+bucket+"/a", nil)); status != 404 {
		t.Errorf("a is still there: %d %s", status, code)
	}
}

// An empty body that is announced with Expect gets its 100 Continue, as any other: botocore
// (aws-cli, boto3) takes a final answer in its place for that of its next request on the
// connection too, and then waits for ever.
func TestContinueBeforeAnEmptyBody(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	for _, body := range []string{"", "x"} {
		continued := 0
		r := newSigner().request("PUT", s.url()+"/"+bucket+"/empty", []byte(body), "Expect", "100-continue")
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { continued++; return nil },
		}))
		if status, code, b := send(t, r); status != 200 || continued != 1 {
			t.Errorf("body %q: %d %s %s, continued %d times", body, status, code, b, continued)
		}
	}
}

// A client that asks before it sends its body is refused without it, however small the body is.
func TestExpectIsRefusedBeforeTheBody(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	put(t, s.client(), "k", []byte("one"))
	r := newSigner().request("PUT", s.url()+"/"+bucket+"/k", []byte("two"), "Expect", "100-continue", "If-None-Match", "*")
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 3\r\n", r.Method, r.URL.RequestURI(), r.URL.Host)
	if err := r.Header.Write(conn); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "\r\n")
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), r)
	if err != nil || answer.StatusCode != http.StatusPreconditionFailed {
		t.Fatalf("%+v, %v", answer, err)
	}
	if err := answer.Body.Close(); err != nil {
		t.Error(err)
	}
}

// A list of deletions is no longer than its answer may be, and what is longer takes no more memory than its text.
func TestDeletionsAreBounded(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	target := s.url() + "/" + bucket + "?delete="
	list := func(n int) []byte {
		return []byte("<Delete>" + strings.Repeat("<Object><Key>k</Key></Object>", n) + "</Delete>")
	}
	if st, code, b := send(t, newSigner().request("POST", target, list(1000))); st != 200 {
		t.Fatalf("1000: %d %s %s", st, code, b)
	}
	if st, code, _ := send(t, newSigner().request("POST", target, list(1001))); st != 400 || code != "MalformedXML" {
		t.Errorf("1001: %d %s", st, code)
	}
	body := "<Delete>" + strings.Repeat("<Object/>", 230000) + "</Delete>"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if st, code := unsigned(t, "POST", target, body); st != 400 || code != "MalformedXML" {
		t.Errorf("%d %s", st, code)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 24<<20 {
		t.Errorf("%d bytes of objects without keys took %d bytes", len(body), used)
	}
}
