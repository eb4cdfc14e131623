package objectstore_test

import (
	"bytes"
	"fmt"
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
