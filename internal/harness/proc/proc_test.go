package proc

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestReadyOverTLS: a child with a certificate that nobody here knows is seen to be ready.
func TestReadyOverTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	p, err := Start(Spec{Name: "child", Bin: "sleep", Args: []string{"60"}, Dir: t.TempDir(), ReadyURL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		t.Error(err)
	}
}
