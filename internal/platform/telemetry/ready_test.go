package telemetry

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// TestReadinessIsAMetric: /metrics says of each part what /-/ready says, of the readiness
// that was registered last where a service starts its listeners again.
func TestReadinessIsAMetric(t *testing.T) {
	tel := Discard()
	var away error
	mux := func() http.Handler {
		r := run.NewReadiness(tel.Log)
		r.Check("store", func() error { return away })
		r.Check("coordinator", func() error { return nil })
		m := web.NewMux("test", "1", nil)
		Admin{Telemetry: tel, Ready: r}.Register(m)
		return m
	}
	want := func(m http.Handler, line string) {
		t.Helper()
		w := httptest.NewRecorder()
		m.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if !strings.Contains(w.Body.String(), "\n"+line+"\n") {
			t.Errorf("no %s in\n%s", line, w.Body.String())
		}
	}
	for range 2 {
		away = nil
		m := mux()
		want(m, `lightmetrics_ready{part="store"} 1`)
		away = errors.New("unreachable")
		want(m, `lightmetrics_ready{part="store"} 0`)
		want(m, `lightmetrics_ready{part="coordinator"} 1`)
	}
}
