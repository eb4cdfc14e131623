package promapi

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

// TestFormsThatCannotBeRead are answered by how they came: too slow, too long or cut. What
// a connection's error says of addresses is not for the caller.
func TestFormsThatCannotBeRead(t *testing.T) {
	mux := http.NewServeMux()
	New(nil, "test", slog.New(slog.DiscardHandler), prometheus.NewRegistry()).Register(mux)
	late := &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 4760}, Err: os.ErrDeadlineExceeded}
	for _, c := range []struct {
		name string
		body io.Reader
		code int
		says string
	}{
		{"slow", failingReader{late}, http.StatusRequestTimeout, `"errorType":"timeout"`},
		{"long", strings.NewReader("query=" + strings.Repeat("1", maxBody)), http.StatusRequestEntityTooLarge, `"errorType":"bad_data"`},
		{"cut", failingReader{errors.New("unexpected EOF")}, http.StatusBadRequest, `"errorType":"bad_data"`},
		{"no form", strings.NewReader("query=%zz"), http.StatusBadRequest, `"errorType":"bad_data"`},
	} {
		r := httptest.NewRequest(http.MethodPost, "/api/v1/query", c.body)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.says) || strings.Contains(w.Body.String(), "10.1.2.3") {
			t.Errorf("%s: %d %s, want %d", c.name, w.Code, w.Body, c.code)
		}
	}
}
