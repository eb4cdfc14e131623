package service

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// maxJSONBody bounds the body of a JSON request.
const maxJSONBody = 1 << 20

// API is a gRPC service as it is offered: who may call what, how its errors read, and its
// JSON form.
type API struct {
	// Desc and Impl are those of grpc.ServiceRegistrar. Impl may be nil until Options.Prepare.
	Desc *grpc.ServiceDesc
	Impl any
	// Access has every method of Desc, with the roles of which one is enough.
	Access rpc.Access
	// Errors make statuses of errors that are none yet.
	Errors rpc.Table
	// JSON serves the methods that have a google.api.http annotation; nil: gRPC only.
	JSON Gateway
	// Statuses are the HTTP statuses of reasons that differ from those of their codes.
	Statuses map[string]int
	// Route may change each JSON route before it is added.
	Route func(web.Route) web.Route
}

// Gateway registers the generated gateway of a gRPC service with mux; its calls go to conn.
type Gateway func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error

// JSON makes a Gateway of two generated functions: NewXClient and RegisterXHandlerClient.
func JSON[C any](client func(grpc.ClientConnInterface) C, register func(context.Context, *runtime.ServeMux, C) error) Gateway {
	return func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
		return register(context.Background(), mux, client(conn))
	}
}

// api is all that a server offers over gRPC and JSON.
type api struct {
	s       *Server
	local   *local
	gateway *runtime.ServeMux
	errors  map[string]rpc.Table // by service name
	http    map[string]int       // statuses by reason
	missing map[string]bool      // services that have no implementation yet
	opened  atomic.Bool
}

func newAPI(s *Server) *api {
	a := &api{s: s, errors: map[string]rpc.Table{}, http: map[string]int{}, missing: map[string]bool{}}
	a.local = &local{api: a}
	a.gateway = runtime.NewServeMux(append([]runtime.ServeMuxOption{
		marshaler(),
		runtime.WithErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
			s.WriteFailure(w, rpc.FailureOf(err))
		}),
		runtime.WithRoutingErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, code int) {
			text := http.StatusText(code)
			web.WriteError(w, code, strings.ReplaceAll(strings.ToLower(text), " ", "_"), text, nil)
		}),
	}, s.opt.JSON...)...)
	return a
}

// marshaler is how JSON is written: names as in the proto files, all fields. Unknown fields
// of requests are passed over.
func marshaler() runtime.ServeMuxOption {
	return runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.JSONPb{
		MarshalOptions:   protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true},
		UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: true},
	})
}

// Register adds a gRPC service with its JSON form, before Run.
func (s *Server) Register(a API) error {
	name := a.Desc.ServiceName
	for _, m := range methods(a.Desc) {
		// A new method must not be open, or closed, by accident: its roles are required here.
		roles, ok := a.Access[m]
		if !ok {
			return fmt.Errorf("%s: nobody may call %s: give its roles", s.name, m)
		}
		s.access[m] = roles
	}
	s.api.errors[name] = a.Errors
	for reason, code := range a.Statuses {
		s.api.http[reason] = code
	}
	// A service without an implementation is remembered, so that the start fails with its name and its
	// methods do not answer UNIMPLEMENTED for ever.
	s.api.missing[name] = true
	if a.Impl != nil {
		s.RegisterService(a.Desc, a.Impl)
	}
	if a.JSON == nil {
		return nil
	}
	if err := a.JSON(s.api.gateway, s.api.local); err != nil {
		return fmt.Errorf("%s: JSON API of %s: %w", s.name, name, err)
	}
	routes, err := s.api.routes(name)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	for _, r := range routes {
		if a.Route != nil {
			r = a.Route(r)
		}
		// The span covers the handler only; refused callers make no traces.
		r.Handler = otelhttp.NewHandler(r.Handler, r.Pattern, otelhttp.WithTracerProvider(s.tel.Tracer), otelhttp.WithPropagators(propagation.TraceContext{}))
		s.Handle(r)
	}
	return nil
}

// RegisterService implements grpc.ServiceRegistrar for services that were registered with
// Register and without an implementation; Options.Prepare calls it.
func (s *Server) RegisterService(d *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(d, impl)
	s.api.local.register(d, impl)
	delete(s.api.missing, d.ServiceName)
}

// methods are the full names of a service's methods.
func methods(d *grpc.ServiceDesc) []string {
	var out []string
	for _, m := range d.Methods {
		out = append(out, "/"+d.ServiceName+"/"+m.MethodName)
	}
	for _, m := range d.Streams {
		out = append(out, "/"+d.ServiceName+"/"+m.StreamName)
	}
	return out
}

// open lets the JSON API answer.
func (a *api) open() error {
	for name := range a.missing {
		return fmt.Errorf("%s has no implementation", name)
	}
	a.opened.Store(true)
	return nil
}

// wait ends when no handler of a call from the JSON API runs any more.
func (a *api) wait() { a.local.calls.Wait() }

// routes are the HTTP routes of a service's methods, by their google.api.http annotations,
// each for the roles of its method.
func (a *api) routes(service string) ([]web.Route, error) {
	// From the registry of the process: the descriptor of grpc has no annotations.
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, err
	}
	sd, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is no service", service)
	}
	var rs []web.Route
	for i := range sd.Methods().Len() {
		m := sd.Methods().Get(i)
		rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
		verb, path := verbAndPath(rule)
		if path == "" {
			continue
		}
		r := web.Route{
			Pattern: verb + " " + path, Handler: http.HandlerFunc(a.serveJSON), MaxBody: maxJSONBody,
			About: fmt.Sprintf("%s.%s as JSON", sd.Name(), m.Name()),
			Roles: a.s.access[fmt.Sprintf("/%s/%s", service, m.Name())],
		}
		// http.ServeMux has no verbs behind a wildcard; the gateway compares it.
		if at := strings.LastIndex(path, "}:"); at >= 0 {
			r.Pattern, r.About = verb+" "+path[:at+1], r.About+", with "+path[at+1:]+" behind the last segment"
		}
		// With no bound a body is not taken at all, which spares the handler a read that could be slow.
		if verb == http.MethodGet {
			r.MaxBody = 0
		}
		rs = append(rs, r)
	}
	return rs, nil
}

func verbAndPath(r *annotations.HttpRule) (verb, path string) {
	switch p := r.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return http.MethodGet, p.Get
	case *annotations.HttpRule_Post:
		return http.MethodPost, p.Post
	case *annotations.HttpRule_Put:
		return http.MethodPut, p.Put
	case *annotations.HttpRule_Patch:
		return http.MethodPatch, p.Patch
	case *annotations.HttpRule_Delete:
		return http.MethodDelete, p.Delete
	}
	return "", ""
}

func (a *api) serveJSON(w http.ResponseWriter, r *http.Request) {
	// The routes exist from the start, so that a wrong path is 404 and an early call is 503, which clients
	// repeat.
	if !a.opened.Load() {
		why := "it is starting"
		if err := a.s.readiness.Err(); err != nil {
			why = err.Error()
		}
		a.s.WriteFailure(w, rpc.Failure{Code: codes.Unavailable, Reason: rpc.ReasonNotReady, Message: why, RetryAfter: rpc.DefaultRetryAfter})
		return
	}
	a.gateway.ServeHTTP(w, r)
}

// status makes a status of a handler's error, by the tables of its service.
func (a *api) status(method string, err error) error {
	if err == nil {
		return nil
	}
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if t := a.errors[service]; t != nil {
		return rpc.Status(err, t, storeErrors)
	}
	return rpc.Status(err, storeErrors)
}

func (a *api) unary(ctx context.Context, req any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	return resp, a.status(i.FullMethod, err)
}

func (a *api) stream(srv any, ss grpc.ServerStream, i *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return a.status(i.FullMethod, next(srv, ss))
}

// WriteFailure answers an HTTP request with a failure: error is its reason in lower case,
// and the failure's metadata is beside it.
func (s *Server) WriteFailure(w http.ResponseWriter, f rpc.Failure) {
	more := map[string]any{}
	for k, v := range f.Metadata {
		more[k] = v
	}
	if f.RetryAfter > 0 {
		// The body has the exact time. The header takes whole seconds, rounded up: 0 would mean at once.
		more["retry_after_seconds"] = f.RetryAfter.Seconds()
		w.Header().Set("Retry-After", strconv.Itoa(max(int(math.Ceil(f.RetryAfter.Seconds())), 1)))
	}
	code, ok := s.api.http[f.Reason]
	if !ok {
		code = runtime.HTTPStatusFromCode(f.Code)
	}
	// RFC 9110 requires the challenge with every 401.
	if code == http.StatusUnauthorized {
		rpc.Challenge(w)
	}
	web.WriteError(w, code, strings.ToLower(f.Reason), f.Message, more)
}
