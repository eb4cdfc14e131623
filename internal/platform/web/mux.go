// Package web has what every process needs to serve HTTP: routes with the roles that may use them,
// and bounds on what a client may send, keep open and leave unread.
package web

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
)

// Route is one path of a service.
type Route struct {
	// Pattern is http.ServeMux's, with its method: "GET /v1/agents". Without a method, or
	// with a slash at the end, everything below is the handler's, wrong paths too.
	Pattern string
	// About says what is there, for the index page.
	About string
	// Roles of which the caller needs one. Open routes need none; a route with neither cannot be
	// used by anybody.
	Roles []Role
	Open  bool
	// MaxBody bounds the request's body, which is read before Handler is called; 0 takes
	// none. OwnBody leaves the body to Handler, with its bounds on length and time.
	MaxBody int64
	OwnBody bool
	Handler http.Handler
	// Deny answers those who may not use the route; nil answers as all routes do.
	Deny func(http.ResponseWriter, *http.Request, error)
}

// Guard lets callers of a route through to next who have one of its roles.
type Guard func(r Route, next http.Handler) http.Handler

// Mux serves the routes of a service. Every route has its roles, wrong paths and methods are
// answered in JSON, and / lists the routes unless it is a route itself.
type Mux struct {
	name, version string
	guard         Guard
	mux           *http.ServeMux
	routes        []Route
}

// NewMux makes a Mux without routes. With a nil guard everybody who reaches the listener may use
// every route.
func NewMux(name, version string, guard Guard) *Mux {
	return &Mux{name: name, version: version, guard: guard, mux: http.NewServeMux()}
}

// Handle adds a route, before the first request.
func (m *Mux) Handle(r Route) {
	h := r.Handler
	switch {
	case r.OwnBody:
	case r.MaxBody > 0:
		h = readBody(h, r.MaxBody)
	default:
		h = withoutBody(h)
	}
	// Around the reading of the body, so that a refused caller cannot make the server read one.
	if m.guard != nil && !r.Open {
		h = m.guard(r, h)
	}
	m.mux.Handle(r.Pattern, h)
	m.routes = append(m.routes, r)
}

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// ServeMux would answer this with 400 in plain text.
	if r.RequestURI == "*" {
		closeAfter(w, r)
		WriteError(w, http.StatusBadRequest, "bad_request", "* is no path", nil)
		return
	}
	r = boundBody(w, r)
	h, pattern := m.mux.Handler(r)
	if pattern != "" {
		m.mux.ServeHTTP(w, r) // not h itself: only the mux sets the values of the path's wildcards
		return
	}
	if r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		m.index(w, r)
		return
	}
	// The standard library knows a wrong path from a wrong method, but answers in plain text: its
	// answer is recorded and written again as JSON.
	var said statusRecorder
	h.ServeHTTP(&said, r)
	if said.code != http.StatusMethodNotAllowed {
		WriteError(w, http.StatusNotFound, "not_found", "no such path: "+r.URL.Path+"; / lists those that there are", nil)
		return
	}
	allow := said.header.Get("Allow")
	w.Header().Set("Allow", allow)
	WriteError(w, http.StatusMethodNotAllowed, "method_not_allowed", fmt.Sprintf("%.32q is not for %s; %s is", r.Method, r.URL.Path, allow),
		map[string]any{"allow": strings.Split(allow, ", ")})
}

// statusRecorder takes the status and the header of an answer, and drops the rest.
type statusRecorder struct {
	header http.Header
	code   int
}

func (f *statusRecorder) Header() http.Header {
	if f.header == nil {
		f.header = http.Header{}
	}
	return f.header
}
func (f *statusRecorder) Write(b []byte) (int, error) { return len(b), nil }
func (f *statusRecorder) WriteHeader(code int)        { f.code = code }

// WriteError answers with a JSON object: error is a reason that callers may branch on,
// message is for people; more goes beside them.
func WriteError(w http.ResponseWriter, code int, reason, message string, more map[string]any) {
	body := map[string]any{}
	// Copied first and not last, so that no caller's key can replace error and message.
	for k, v := range more {
		body[k] = v
	}
	body["error"], body["message"] = reason, message
	WriteJSON(w, code, body)
}

// WriteJSON answers with v, which must be encodable.
func WriteJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		code, b = http.StatusInternalServerError, []byte(`{"error":"internal","message":"the answer can't be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // the client went away: nothing to do
}

//go:embed index.html
var indexText string

var indexPage = template.Must(template.New("index").Parse(indexText))

// indexRoute is a route as the index shows it.
type indexRoute struct {
	Method string `json:"method,omitempty"` // empty: any
	Path   string `json:"path"`
	About  string `json:"about"`
	// Roles of which one is needed; empty where no credentials are needed.
	Roles []Role `json:"roles"`
	// Link is the path where a browser can go.
	Link string `json:"-"`
	Who  string `json:"-"`
}

// index lists the routes: for browsers as a page, for programs as JSON.
func (m *Mux) index(w http.ResponseWriter, r *http.Request) {
	d := struct {
		Service string       `json:"service"`
		Version string       `json:"version"`
		Routes  []indexRoute `json:"routes"`
	}{m.name, m.version, []indexRoute{}}
	for _, rt := range m.routes {
		d.Routes = append(d.Routes, m.describe(rt))
	}
	slices.SortFunc(d.Routes, func(a, b indexRoute) int { return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method) })
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		WriteJSON(w, http.StatusOK, d)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	_ = indexPage.Execute(w, d) // the client went away: nothing to do
}

func (m *Mux) describe(rt Route) indexRoute {
	method, path, ok := strings.Cut(rt.Pattern, " ")
	if !ok {
		method, path = "", rt.Pattern
	}
	i := indexRoute{Method: method, Path: strings.TrimSuffix(path, "{$}"), About: rt.About, Roles: []Role{}, Who: "everybody"}
	if m.guard != nil && !rt.Open {
		i.Roles = rt.Roles
		i.Who = strings.Trim(fmt.Sprint(rt.Roles), "[]")
	}
	if method == http.MethodGet && !strings.Contains(path, "{") {
		i.Link = path
	}
	return i
}
