package telemetry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// Admin is what the admin paths of a service show.
type Admin struct {
	Telemetry *Telemetry
	// Ready is what the service needs to do its work; nil is nothing.
	Ready *run.Readiness
	// Config is the service's settings struct; secrets are redacted.
	Config any
	// Pprof turns /debug/pprof/ on.
	Pprof bool
}

// Register adds /metrics, /-/healthy, /-/ready, /config and, on request, /debug/pprof/.
func (a Admin) Register(mux *web.Mux) {
	a.Telemetry.ready.of.Store(a.Ready)
	// Profiles and settings show more than a reader of metrics needs, so they are for operators.
	sees, operates := []web.Role{web.RoleReader, web.RoleOperator}, []web.Role{web.RoleOperator}
	mux.Handle(web.Route{Pattern: "GET /metrics", About: "metrics of this process, for Prometheus", Roles: sees,
		Handler: promhttp.HandlerFor(a.Telemetry.Registry,
			promhttp.HandlerOpts{Registry: a.Telemetry.Registry, EnableOpenMetrics: true, MaxRequestsInFlight: 8})})
	mux.Handle(web.Route{Pattern: "GET /-/healthy", About: "200 while the process runs", Open: true,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })})
	mux.Handle(web.Route{Pattern: "GET /-/ready", About: "200 while it can do its work, else 503 and why not", Open: true,
		Handler: a.ready()})
	mux.Handle(web.Route{Pattern: "GET /config", About: "settings in force, secrets left out", Roles: operates,
		Handler: http.HandlerFunc(a.config)})
	if !a.Pprof {
		return
	}
	// Without pprof.Cmdline, which would show secrets that were given as flags.
	for path, h := range map[string]http.HandlerFunc{
		"": pprof.Index, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
	} {
		mux.Handle(web.Route{Pattern: "GET /debug/pprof/" + path, About: "profiles of the Go runtime", Roles: operates, Handler: h})
	}
}

func (a Admin) ready() http.Handler {
	if a.Ready == nil {
		return run.NewReadiness(a.Telemetry.Log)
	}
	return a.Ready
}

func (a Admin) config(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(config.Redacted(a.Config)) // the client went away: nothing to do
}
