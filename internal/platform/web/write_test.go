package web

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"
)

// serve runs a handler until the test ends.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ServeHTTP(ctx, NewHTTPServer(h), l, time.Second) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// TestWritesAreLimited: a client that reads nothing is cut; one that reads has its answer,
// and the next on the same connection after a pause that is longer than the limit.
func TestWritesAreLimited(t *testing.T) {
	const timeout = 100 * time.Millisecond
	wrote := make(chan error, 10)
	answer := bytes.Repeat([]byte("x"), 32<<20)
	addr := serve(t, LimitWrites(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, err := strconv.Atoi(r.URL.Query().Get("n"))
		if err != nil {
			t.Error(err)
		}
		if size == 0 {
			return // without a write
		}
		n, err := w.Write(answer[:size])
		if err == nil && n != size {
			t.Errorf("%d bytes of %d and no error", n, size)
		}
		wrote <- err
	}), timeout))
	slow, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	fmt.Fprintf(slow, "GET /?n=%d HTTP/1.1\r\nHost: x\r\n\r\n", len(answer))
	if err := <-wrote; err == nil {
		t.Error("nobody read the answer, and it was written")
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	br := bufio.NewReader(c)
	for _, size := range []int{1 << 20, 0} {
		fmt.Fprintf(c, "GET /?n=%d HTTP/1.1\r\nHost: x\r\n\r\n", size)
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || n != int64(size) {
			t.Errorf("%d bytes, %v", n, err)
		}
		time.Sleep(2 * timeout)
	}
}
