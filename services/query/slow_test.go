package query_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query"
)

// large is an expression whose answer over 10,000 steps is beyond what sockets buffer.
func large() string {
	var terms []string
	for i := range 60 {
		terms = append(terms, fmt.Sprintf(`label_replace(vector(1), "n", "%d", "", "")`, i))
	}
	return strings.Join(terms, " or ")
}

// TestClientsThatDoNotRead hold neither a turn to run nor, for long, memory and connections.
func TestClientsThatDoNotRead(t *testing.T) {
	n := start(t, newAuthority(t), func(c *query.Config) {
		c.Limits.Concurrency, c.WriteTimeout = 2, time.Hour
	})
	body := url.Values{"query": {large()}, "start": {"0"}, "end": {"10000"}, "step": {"1"}}.Encode()
	var conns []net.Conn
	for range 6 {
		c, err := net.Dial("tcp", n.HTTPAddr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST /api/v1/query_range HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		conns = append(conns, c)
	}
	for _, c := range conns { // all of them are being answered
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if e := n.get("/api/v1/query", "query", "1"); e.code != 200 {
		t.Errorf("beside them: %d %s", e.code, e.Error)
	}
	if n.number("lightmetrics_query_memory_bytes") < 6<<20 {
		t.Error("their answers are not in limits.memory")
	}
}

// TestUnreadAnswersAreCut: the connection of a client that does not read is closed, and its
// memory given back.
func TestUnreadAnswersAreCut(t *testing.T) {
	n := start(t, newAuthority(t), func(c *query.Config) { c.WriteTimeout = 50 * time.Millisecond })
	c, err := net.Dial("tcp", n.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	body := url.Values{"query": {large()}, "start": {"0"}, "end": {"10000"}, "step": {"1"}}.Encode()
	for range 2 { // the second is never answered
		fmt.Fprintf(c, "POST /api/v1/query_range HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	status := make([]byte, 12)
	if _, err := io.ReadFull(c, status); err != nil || string(status) != "HTTP/1.1 200" {
		t.Fatalf("%q, %v", status, err)
	}
	eventually(t, "its memory is given back", func() bool { return n.number("lightmetrics_query_memory_bytes") == 0 })
}

// TestStreamsThatAreNotRead end, and give their turn back.
func TestStreamsThatAreNotRead(t *testing.T) {
	n := start(t, newAuthority(t), func(c *query.Config) {
		c.Limits.Concurrency, c.WriteTimeout = 1, 100*time.Millisecond
	})
	c := client(t, n)
	stream, err := c.QueryRange(context.Background(), &queryv1.QueryRangeRequest{Expression: large(), EndUnixMs: 10_000_000, StepMs: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if e := n.get("/api/v1/query", "query", "1"); e.code != 200 { // waits for its turn
		t.Errorf("beside it: %d %s", e.code, e.Error)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.DeadlineExceeded || rpc.Reason(err) != "SLOW_READER" {
		t.Errorf("the stream ended with %v", err)
	}
}
