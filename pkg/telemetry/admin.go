package telemetry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lightmetrics.dev/lightmetrics/pkg/config"
)

// Admin is what the admin paths of a service show.
type Admin struct {
	Telemetry *Telemetry
	// Ready says why the service is not ready; nil when it is.
	Ready func() error
	// Config is the service's settings struct; secrets are redacted.
	Config any
	// Pprof turns /debug/pprof/ on.
	Pprof bool
}

// Register adds /metrics, /-/healthy, /-/ready, /config and, on request, /debug/pprof/.
func (a Admin) Register(mux *http.ServeMux) {
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.Telemetry.Registry,
		promhttp.HandlerOpts{Registry: a.Telemetry.Registry, EnableOpenMetrics: true, MaxRequestsInFlight: 8}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if a.Ready != nil {
			if err := a.Ready(); err != nil {
				http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(config.Redacted(a.Config)) // the client went away: nothing to do
	})
	if a.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
}
