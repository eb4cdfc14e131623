package client_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/client"
)

// TestTokenFileIsReadAgain: a token that was changed counts without a new Writer, and what
// was queued under the old one is sent once.
func TestTokenFileIsReadAgain(t *testing.T) {
	var mu sync.Mutex
	want, seen := "Bearer one", map[string]bool{}
	check := func(srv any, st grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		md, _ := metadata.FromIncomingContext(st.Context())
		mu.Lock()
		got := append(md.Get("authorization"), "")[0]
		seen[got] = true
		ok := got == want
		mu.Unlock()
		if !ok {
			return status.Error(codes.Unauthenticated, "unknown token")
		}
		return next(srv, st)
	}
	store := sendtest.NewStore()
	serve := func(addr string) (*sendtest.Collector, string) {
		c := &sendtest.Collector{Store: store, Options: []grpc.ServerOption{grpc.StreamInterceptor(check)}}
		addr, err := c.Start(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Stop)
		return c, addr
	}
	first, addr := serve("")
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file+".new", []byte(token+"\n"), 0o600), os.Rename(file+".new", file)); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	w := open(t, t.TempDir(), client.Options{Collectors: []string{addr}, Credentials: client.Credentials{TokenFile: file, TokenOverPlaintext: true}})
	s := &client.Series{Name: "m", Type: client.Gauge}
	if err := errors.Join(w.Append(bound(t), s.Now(1)), w.Flush(bound(t))); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	want = "Bearer two"
	mu.Unlock()
	first.Stop()
	serve(addr)
	if err := w.Append(bound(t), s.Now(2)); err != nil {
		t.Fatal(err)
	}
	write("two")
	if err := w.Flush(bound(t)); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := values(t, store); len(got) != 2 || got[1] != 1 || got[2] != 1 || !seen["Bearer one"] || !seen["Bearer two"] {
		t.Errorf("accepted %v, tokens %v", got, seen)
	}
}
