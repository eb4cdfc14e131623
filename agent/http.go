package agent

import (
	"crypto/subtle"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

//go:embed status.html
var statusHTML string

var statusPage = template.Must(template.New("status").Funcs(template.FuncMap{
	"bytes": func(n int64) string { return humanBytes(n) },
	"ago":   func(now, t time.Time) string { return now.Sub(t).Round(time.Second).String() },
	"secs":  func(s float64) string { return time.Duration(s * float64(time.Second)).Round(time.Second).String() },
}).Parse(statusHTML))

func humanBytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

func (a *Agent) handler() http.Handler {
	mux := web.NewMux("lightmetrics agent", telemetry.Version(), nil)
	telemetry.Admin{Telemetry: a.tele, Config: a.cfg, Pprof: a.cfg.HTTP.Pprof}.Register(mux)
	for _, r := range []struct {
		pattern, about string
		fn             http.HandlerFunc
	}{
		{"GET /{$}", "status page", a.page},
		{"GET /status", "status as JSON", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, a.Status()) }},
		{"GET /conflicts", "batches whose identity holds other bytes", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, a.Conflicts()) }},
		{"GET /dead-letters", "batches that collectors refuse", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, a.DeadLetters()) }},
		{"POST /conflicts/{id}/accept-existing", "drop ours", a.change(a.ResolveAcceptExisting)},
		{"POST /dead-letters/{id}/requeue", "send it again", a.change(a.Requeue)},
		{"POST /dead-letters/{id}/drop", "drop it", a.change(a.DropDeadLetter)},
	} {
		mux.Handle(web.Route{Pattern: r.pattern, About: r.about, Handler: r.fn})
	}
	return mux
}

func (a *Agent) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	if err := statusPage.Execute(w, struct {
		Status
		Now time.Time
	}{a.Status(), a.now()}); err != nil {
		a.log.Debug("status page", "error", err) // the client went away
	}
}

// change guards a request that changes something. It must come from this machine, must not come
// from a web page that a browser here shows, and must carry the token if one is configured.
func (a *Agent) change(fn func(id string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := allowed(r, a.cfg.HTTP.Token); err != nil {
			writeJSON(w, http.StatusForbidden, map[string]string{"error": err.Error()})
			return
		}
		id := r.PathValue("id")
		switch err := fn(id); {
		case errors.Is(err, queue.ErrNotFound):
			writeJSON(w, http.StatusNotFound, map[string]string{"error": err.Error()})
		case errors.Is(err, queue.ErrFull):
			writeJSON(w, http.StatusInsufficientStorage, map[string]string{"error": err.Error()})
		case err != nil:
			writeJSON(w, http.StatusInternalServerError, map[string]string{"error": err.Error()})
		default:
			a.log.Info("operator request", "path", r.URL.Path, "from", r.RemoteAddr)
			writeJSON(w, http.StatusOK, map[string]string{"id": id, "result": "ok"})
		}
	}
}

func allowed(r *http.Request, token config.Secret) error {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return errors.New("only from this machine")
	}
	// Browsers set these on requests that a page makes, and a page cannot remove them.
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return errors.New("not from a browser")
	}
	// DNS rebinding: an attacker's name may resolve to loopback, so the name itself must be local.
	name := r.Host
	if h, _, err := net.SplitHostPort(r.Host); err == nil {
		name = h
	}
	if ip, err := netip.ParseAddr(strings.Trim(name, "[]")); name != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("host %q is not this machine", name)
	}
	got, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token != "" && subtle.ConstantTimeCompare([]byte(got), []byte(token.Reveal())) != 1 {
		return errors.New("wrong or missing bearer token")
	}
	return nil
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the client went away: nothing to do
}
