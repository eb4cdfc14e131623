package ingest_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// promise sends the head of a request with a body of n bytes, and none of the body.
func promise(t testing.TB, c *collector, n int) *bufio.Reader {
	t.Helper()
	conn, err := net.Dial("tcp", c.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST /v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", frame.MediaType, n)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
	return bufio.NewReader(conn)
}

func answered(t testing.TB, r *bufio.Reader) (int, string) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("Retry-After")
}

// TestPromisedBodiesLeaveRoom: bodies that do not come hold half of the room at most.
func TestPromisedBodiesLeaveRoom(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) {
		c.Limits.InFlightBytes = 2 * c.Limits.FrameBytes
		c.Limits.ShedAfter = 50 * time.Millisecond
	})
	n := ingest.DefaultConfig().Limits.FrameBytes.Int()
	shed := 0
	codes := make(chan int, 4)
	for range 4 {
		r := promise(t, c, n)
		go func() {
			if resp, err := http.ReadResponse(r, nil); err == nil {
				_ = resp.Body.Close()
				codes <- resp.StatusCode
			}
		}()
	}
	for shed < 3 { // the fourth waits for its body
		if code := <-codes; code != http.StatusTooManyRequests {
			t.Fatalf("answered %d", code)
		}
		shed++
	}
	if _, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: bigFrame(t, boot, 0, n)}); err != nil {
		t.Errorf("a frame that is here: %s, %v", status.Code(err), rpc.Reason(err))
	}
}

// TestSlowBodyMayComeAgain: a body that took too long says nothing against its frame.
func TestSlowBodyMayComeAgain(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) { c.Limits.BodyTimeout = 20 * time.Millisecond })
	if code, after := answered(t, promise(t, c, 1000)); code != http.StatusServiceUnavailable || after == "" {
		t.Errorf("status %d, Retry-After %q", code, after)
	}
}
