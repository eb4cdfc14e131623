package web

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// CORSConfig says which web pages of other origins may read answers.
type CORSConfig struct {
	Origins []string `koanf:"origins" help:"origins of web pages that may read answers, such as https://grafana.example.com; * is every one; empty is none"`
}

// Validate wants origins as browsers send them.
func (c CORSConfig) Validate() error {
	for _, o := range c.Origins {
		u, err := url.Parse(o)
		if o == "*" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && o == strings.ToLower(u.Scheme+"://"+u.Host) {
			continue
		}
		return fmt.Errorf("cors.origins: %q: want scheme://host[:port] in lower case, or *", o)
	}
	return nil
}

// preflightAge is how long browsers may cache the answer to a preflight request, seconds.
const preflightAge = "600"

// Handler answers for the pages of the listed origins; without any it is h. Preflight
// requests carry no credentials and are answered before anybody is asked for them.
// Cookies are never allowed: there are none, and tokens are sent by the page itself.
func (c CORSConfig) Handler(h http.Handler) http.Handler {
	if len(c.Origins) == 0 {
		return h
	}
	all := slices.Contains(c.Origins, "*")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if !all {
			w.Header().Add("Vary", "Origin") // also where there is none: caches keep them apart
		}
		if origin == "" || !all && !slices.Contains(c.Origins, origin) {
			h.ServeHTTP(w, r)
			return
		}
		if all {
			origin = "*"
		}
		// Only for allowed origins: a browser refuses the page without this header, while other clients
		// ignore it.
		w.Header().Set("Access-Control-Allow-Origin", origin)
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			w.Header().Set("Access-Control-Expose-Headers", "Retry-After")
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
		w.Header().Set("Access-Control-Allow-Headers", "Accept, Authorization, Content-Type")
		w.Header().Set("Access-Control-Max-Age", preflightAge)
		w.WriteHeader(http.StatusNoContent)
	})
}
