package objectstore_test

import (
	"bytes"
	"fmt"
	"net/http/httptrace"
	"net/textproto"
	"testing"
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
