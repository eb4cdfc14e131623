package rpc

import (
	"errors"
	"net/http"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// Guard lets HTTP requests through whose principal has one of a route's roles, and puts
// the principal into their context.
func (a *Authenticator) Guard(rt web.Route, next http.Handler) http.Handler {
	// Decided once for the route and not with each request.
	deny := rt.Deny
	if deny == nil {
		deny = Deny
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := a.Authenticate(BearerToken(Authorization(r.Header)), r.TLS)
		if err == nil {
			err = authorize(p, rt.Pattern, rt.Roles)
		}
		if err != nil {
			deny(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), p)))
	})
}

// Deny answers a caller without credentials with 401, one without the role with 403, in JSON.
func Deny(w http.ResponseWriter, _ *http.Request, err error) {
	var denied *DeniedError
	if !errors.As(err, &denied) {
		Challenge(w)
		web.WriteError(w, http.StatusUnauthorized, strings.ToLower(ReasonUnauthenticated), err.Error(), nil)
		return
	}
	more := map[string]any{}
	for k, v := range denied.metadata() {
		more[k] = v
	}
	web.WriteError(w, http.StatusForbidden, strings.ToLower(ReasonForbidden), err.Error(), more)
}

// Challenge says which credentials are asked for; it goes with 401.
func Challenge(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="lightmetrics"`)
}
