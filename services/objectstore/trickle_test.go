package objectstore_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// TestTricklingBodies: a body whose bytes come one by one, each in time, does not hold its request's place for ever, and
// nothing of it is stored. Neither who has signed it nor everybody may.
func TestTricklingBodies(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.BodyIdle, cfg.MaxRequests = time.Second, 1
	s := start(t, cfg)
	body := bytes.Repeat([]byte(" "), 1<<20) // too much for the connection to be kept, so that the answer comes at once
	for name, path := range map[string]string{"signed": "/" + bucket + "/k", "unsigned": "/" + bucket + "?delete="} {
		method := "POST"
		r := newSigner().request("PUT", s.url()+path, body)
		head := ""
		if name == "signed" {
			method = "PUT"
			for name, v := range r.Header {
				head += name + ": " + v[0] + "\r\n"
			}
		}
		answer := ""
		// Where this process was stopped for longer than a byte may take, another answer comes.
		for try := 0; try < 10 && !strings.Contains(answer, "<Code>RequestTimeout</Code>"); try++ {
			answer = drip(t, s.Addr(), fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n", method, path, s.Addr(), len(body), head), body)
		}
		if !strings.HasPrefix(answer, "HTTP/1.1 400 ") || !strings.Contains(answer, "<Message>The body came too slowly.</Message>") {
			t.Errorf("%s: %q", name, answer)
		}
	}
	c := s.client()
	put(t, c, "other", nil) // the place is free
	if out, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket)}); err != nil || len(out.Contents) != 1 {
		t.Errorf("%+v %v", out, err)
	}
}

// drip sends a head, and then byte by byte a body until an answer comes.
func drip(t *testing.T, addr, head string, body []byte) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, head); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(c)
		got <- string(b)
	}()
	for _, b := range body {
		select {
		case answer := <-got:
			return answer
		case <-time.After(20 * time.Millisecond):
		}
		if _, err := c.Write([]byte{b}); err != nil {
			break
		}
	}
	return <-got
}
