package objectstore_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestSlowReadersKeepTheirPlace: connections beyond the bound take the places of those that wait, and never that of a client
// that reads its answer slowly.
func TestSlowReadersKeepTheirPlace(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.MaxConnections = 4
	s := start(t, cfg)
	body := bytes.Repeat([]byte("0123456789abcdef"), 2<<20) // 32 MiB, more than the buffers of a socket
	put(t, s.client(), "large", body)
	r := newSigner().request("GET", s.url()+"/"+bucket+"/large", nil)
	resp, err := (&http.Client{Timeout: patience, Transport: &http.Transport{}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var idle []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	// The first of those that wait have lost their places.
	_ = idle[0].SetReadDeadline(time.Now().Add(patience))
	if n, err := idle[0].Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("the oldest that waits has its place: %d %v", n, err)
	}
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, body) {
		t.Errorf("the slow reader has %d of %d bytes: %v", len(got), len(body), err)
	}
}
