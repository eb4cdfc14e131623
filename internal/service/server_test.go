package service

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; no test measures time.
const patience = 20 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// greeter is a QueryService whose methods do what the expression says.
type greeter struct {
	queryv1.UnimplementedQueryServiceServer
	greeting string
	ended    chan error // how streams ended
}

var errFull = errors.New("no room")

func (g *greeter) Query(_ context.Context, r *queryv1.QueryRequest) (*queryv1.QueryResponse, error) {
	switch r.GetExpression() {
	case "full":
		return nil, fmt.Errorf("query: %w", errFull)
	case "absent":
		return nil, &objstore.Error{Op: "get", Key: "k", Err: objstore.ErrNotFound}
	case "panic":
		panic("as asked")
	case "status":
		return nil, status.Error(codes.OutOfRange, "as it is")
	}
	return &queryv1.QueryResponse{StringValue: g.greeting + " " + r.GetExpression()}, nil
}

func (g *greeter) QueryRange(r *queryv1.QueryRangeRequest, st grpc.ServerStreamingServer[queryv1.QueryRangeResponse]) (err error) {
	if g.ended != nil {
		defer func() { g.ended <- err }()
	}
	for i := range 1_000_000 {
		if r.GetExpression() == "three" && i == 3 {
			return nil
		}
		if r.GetExpression() == "fails" && i == 1 {
			return errFull
		}
		if err := st.Send(&queryv1.QueryRangeResponse{Series: &queryv1.Series{Points: []*queryv1.Point{{TimeUnixMs: int64(i + 1)}}}}); err != nil {
			return err
		}
	}
	return nil
}

var greeterAccess = rpc.Access{
	queryv1.QueryService_Query_FullMethodName:         {web.RoleReader},
	queryv1.QueryService_QueryRange_FullMethodName:    {web.RoleReader},
	queryv1.QueryService_ListAgents_FullMethodName:    {web.RoleOperator},
	queryv1.QueryService_ListConflicts_FullMethodName: {web.RoleOperator},
}

func greeterAPI(impl queryv1.QueryServiceServer) API {
	a := API{
		Desc: &queryv1.QueryService_ServiceDesc, Access: greeterAccess,
		JSON: JSON(queryv1.NewQueryServiceClient, queryv1.RegisterQueryServiceHandlerClient),
		Errors: func(err error) (rpc.Failure, bool) {
			return rpc.Failure{Code: codes.ResourceExhausted, Reason: "FULL", Message: err.Error(), RetryAfter: 1500 * time.Millisecond,
				Metadata: map[string]string{"limit": "7"}}, errors.Is(err, errFull)
		},
		Statuses: map[string]int{"FULL": http.StatusInsufficientStorage},
	}
	if impl != nil {
		a.Impl = impl
	}
	return a
}

// withTokens has principals called by their roles, whose tokens are their names.
func withTokens(t testing.TB, b Base) Base {
	t.Helper()
	text := "principals:\n"
	for _, role := range []string{"reader", "operator"} {
		h := sha256.Sum256([]byte(role))
		text += fmt.Sprintf("- {name: %s, token_sha256: %s, roles: [%s]}\n", role, hex.EncodeToString(h[:]), role)
	}
	file := filepath.Join(t.TempDir(), "principals.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	b.Auth = rpc.AuthConfig{Mode: rpc.AuthToken, PrincipalsFile: file}
	return b
}

// up runs a server until the test or stop ends it.
func up(t testing.TB, s run.Service) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }() // ends with ctx
	ended := false
	stop = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-done:
		ended = true
		cancel()
		t.Fatal(err)
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	return stop
}

func base() Base { return DefaultBase("127.0.0.1:0", "127.0.0.1:0") }

func newServer(t testing.TB, b Base, opt Options) *Server {
	t.Helper()
	s, err := New("tiny", b, b, telemetry.Discard(), opt)
	must(t, err)
	return s
}

type answer struct {
	code   int
	header http.Header
	body   string
	fields map[string]any
}

func get(t testing.TB, url, token string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	a := answer{code: resp.StatusCode, header: resp.Header, body: string(b)}
	_ = json.Unmarshal(b, &a.fields) // some are no objects
	return a
}

// TestOneJSONAPI: what gRPC serves is served as JSON, with the same roles and errors.
func TestOneJSONAPI(t *testing.T) {
	s := newServer(t, withTokens(t, base()), Options{})
	must(t, s.Register(greeterAPI(&greeter{greeting: "hello"})))
	up(t, s)
	conn, err := rpc.Dial(s.GRPCAddr(), rpc.ClientConfig{Token: "reader", TokenOverPlaintext: true})
	must(t, err)
	defer conn.Close()
	c := queryv1.NewQueryServiceClient(conn)
	for _, k := range []struct {
		path, token string
		code        int
		want        map[string]any
		grpc        codes.Code // of the same call over gRPC as reader; OK is not asked
		reason      string
	}{
		{"/v1/query?expression=you", "reader", 200, map[string]any{"string_value": "hello you"}, 0, ""},
		{"/v1/query?expression=you", "", 401, map[string]any{"error": "unauthenticated"}, 0, ""},
		{"/v1/query?expression=you", "nobody", 401, map[string]any{"error": "unauthenticated"}, 0, ""},
		{"/v1/query?expression=you", "operator", 403, map[string]any{"error": "permission_denied", "role": "reader"}, 0, ""},
		{"/v1/agents", "operator", 501, map[string]any{"error": "unimplemented"}, 0, ""},
		{"/v1/query?expression=full", "reader", 507, map[string]any{"error": "full", "limit": "7", "retry_after_seconds": 1.5, "message": "query: no room"}, codes.ResourceExhausted, "FULL"},
		{"/v1/query?expression=absent", "reader", 404, map[string]any{"error": "not_found"}, codes.NotFound, rpc.ReasonNotFound},
		{"/v1/query?expression=panic", "reader", 500, map[string]any{"error": "internal", "message": "internal error"}, codes.Internal, rpc.ReasonInternal},
		{"/v1/query?expression=status", "reader", 400, map[string]any{"error": "out_of_range", "message": "as it is"}, codes.OutOfRange, ""},
		{"/v1/query?time_unix_ms=many", "reader", 400, map[string]any{"error": "invalid_argument"}, 0, ""},
		{"/v1/nothing", "reader", 404, map[string]any{"error": "not_found"}, 0, ""},
	} {
		a := get(t, s.HTTPURL()+k.path, k.token)
		if a.code != k.code {
			t.Errorf("%s as %q: %d %s, want %d", k.path, k.token, a.code, a.body, k.code)
		}
		for name, want := range k.want {
			if a.fields[name] != want {
				t.Errorf("%s as %q: %s is %v, want %v", k.path, k.token, name, a.fields[name], want)
			}
		}
		if k.want["retry_after_seconds"] != nil && a.header.Get("Retry-After") != "2" {
			t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
		}
		if k.grpc != codes.OK {
			_, expression, _ := strings.Cut(k.path, "=")
			if _, err := c.Query(t.Context(), &queryv1.QueryRequest{Expression: expression}); status.Code(err) != k.grpc || rpc.Reason(err) != k.reason {
				t.Errorf("%s over gRPC: %v", expression, err)
			}
		}
	}
}

// TestLocalAsksForRoles: the JSON API's calls are judged once more below the routes.
func TestLocalAsksForRoles(t *testing.T) {
	s := newServer(t, base(), Options{})
	must(t, s.Register(greeterAPI(&greeter{})))
	c := queryv1.NewQueryServiceClient(s.api.local)
	reader := rpc.WithPrincipal(t.Context(), rpc.Principal{Name: "r", Roles: []web.Role{web.RoleReader}})
	if resp, err := c.Query(reader, &queryv1.QueryRequest{Expression: "x"}); err != nil || resp.GetStringValue() != " x" {
		t.Errorf("%v, %v", resp, err)
	}
	for name, ctx := range map[string]context.Context{"nobody": t.Context(), "no role": rpc.WithPrincipal(t.Context(), rpc.Principal{Name: "n"})} {
		if _, err := c.Query(ctx, &queryv1.QueryRequest{}); rpc.Reason(err) != rpc.ReasonForbidden {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := c.QueryRange(ctx, &queryv1.QueryRangeRequest{}); rpc.Reason(err) != rpc.ReasonForbidden {
			t.Errorf("%s, a stream: %v", name, err)
		}
	}
	if _, err := c.ListAgents(reader, &queryv1.ListAgentsRequest{}); rpc.Reason(err) != rpc.ReasonForbidden {
		t.Errorf("another role's method: %v", err)
	}
	if err := s.api.local.Invoke(reader, "/lightmetrics.query.v1.QueryService/Nothing", nil, nil); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that is not there: %v", err)
	}
}

// TestStreamsAsJSON: the answers of a stream come line by line, an error ends them, and the
// handler of a client that went away ends before Run does.
func TestStreamsAsJSON(t *testing.T) {
	g := &greeter{ended: make(chan error, 1)}
	s := newServer(t, base(), Options{})
	must(t, s.Register(greeterAPI(g)))
	stop := up(t, s)
	a := get(t, s.HTTPURL()+"/v1/query_range?expression=three", "")
	if n := strings.Count(a.body, `"result"`); a.code != 200 || n != 3 || strings.Contains(a.body, `"error"`) {
		t.Errorf("%d, %d results: %s", a.code, n, a.body)
	}
	must(t, <-g.ended)
	if a := get(t, s.HTTPURL()+"/v1/query_range?expression=fails", ""); strings.Count(a.body, `"result"`) != 1 || !strings.Contains(a.body, `"error"`) || !strings.Contains(a.body, "FULL") {
		t.Errorf("an error behind the first answer: %s", a.body)
	}
	<-g.ended

	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.HTTPURL()+"/v1/query_range?expression=endless", nil)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		t.Error(err)
	}
	cancel()
	_ = resp.Body.Close()
	select {
	case err := <-g.ended:
		if err == nil {
			t.Error("all was sent to nobody")
		}
	case <-time.After(patience):
		t.Fatal("the handler of a client that went away still runs")
	}
	must(t, stop())
}

// TestPrepare: until it is done HTTP says so, and gRPC does not listen.
func TestPrepare(t *testing.T) {
	asked, ready := make(chan string, 1), make(chan struct{})
	var s *Server
	b := base()
	s = newServer(t, b, Options{Prepare: func(context.Context) error {
		asked <- s.HTTPURL()
		<-ready
		queryv1.RegisterQueryServiceServer(s, &greeter{greeting: "late"})
		return nil
	}})
	must(t, s.Register(greeterAPI(nil)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		url := <-asked
		if a := get(t, url+"/v1/query?expression=x", ""); a.code != 503 || a.fields["error"] != "not_ready" || a.header.Get("Retry-After") == "" {
			t.Errorf("before: %d %s", a.code, a.body)
		}
		if a := get(t, url+"/-/healthy", ""); a.code != 200 {
			t.Errorf("health: %d", a.code)
		}
		select {
		case <-s.Ready():
			t.Error("ready before Prepare was done")
		default:
		}
		close(ready)
	}()
	up(t, s)
	<-done
	if a := get(t, s.HTTPURL()+"/v1/query?expression=x", ""); a.fields["string_value"] != "late x" {
		t.Errorf("after: %d %s", a.code, a.body)
	}
	if s.GRPCAddr() == "" {
		t.Error("gRPC does not listen")
	}
}

// TestWhatIsMissingIsRefused: methods without roles, and services without an implementation.
func TestWhatIsMissingIsRefused(t *testing.T) {
	s := newServer(t, base(), Options{})
	a := greeterAPI(&greeter{})
	a.Access = rpc.Access{queryv1.QueryService_Query_FullMethodName: {web.RoleReader}}
	if err := s.Register(a); err == nil || !strings.Contains(err.Error(), "nobody may call") {
		t.Errorf("methods that are nobody's: %v", err)
	}
	s = newServer(t, base(), Options{})
	must(t, s.Register(greeterAPI(nil)))
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no implementation") {
		t.Errorf("nothing implements it: %v", err)
	}
}

// TestListeners: admin paths have their own where it is set, and an empty gRPC address serves none.
func TestListeners(t *testing.T) {
	b := base()
	b.GRPC.Listen, b.Admin.Listen, b.Pprof = "", "127.0.0.1:0", true
	s := newServer(t, b, Options{})
	must(t, s.Register(greeterAPI(&greeter{greeting: "hi"})))
	up(t, s)
	if s.GRPCAddr() != "" || s.AdminAddr() == s.HTTPAddr() {
		t.Errorf("gRPC %q, admin %q, HTTP %q", s.GRPCAddr(), s.AdminAddr(), s.HTTPAddr())
	}
	for _, path := range []string{"/metrics", "/config", "/-/ready", "/debug/pprof/"} {
		if a := get(t, s.HTTPURL()+path, ""); a.code != 404 {
			t.Errorf("%s on the HTTP port: %d", path, a.code)
		}
		if a := get(t, "http://"+s.AdminAddr()+path, ""); a.code != 200 {
			t.Errorf("%s on the admin port: %d %s", path, a.code, a.body)
		}
	}
	if a := get(t, s.HTTPURL()+"/v1/query?expression=x", ""); a.fields["string_value"] != "hi x" {
		t.Errorf("JSON without gRPC: %d %s", a.code, a.body)
	}
}

// TestALoopThatFailsEndsTheService: and what is to end streams is called.
func TestALoopThatFailsEndsTheService(t *testing.T) {
	s := newServer(t, base(), Options{})
	stopped := false
	s.OnStop(func() { stopped = true })
	s.Go("work", func(context.Context) error { return errFull })
	if err := s.Run(t.Context()); !errors.Is(err, errFull) || !stopped {
		t.Errorf("%v, stopped: %v", err, stopped)
	}
	taken := newServer(t, base(), Options{})
	up(t, taken)
	b := base()
	b.HTTP.Listen = taken.HTTPAddr()
	if err := newServer(t, b, Options{}).Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "tiny: http: ") {
		t.Errorf("an address in use: %v", err)
	}
}

// settings of the service that docs/contributing.md shows.
type settings struct {
	Base
	Greeting string `koanf:"greeting" help:"what it says"`
}

// TestANewService: settings that embed Base and a Register function are a command with
// everything that services have.
func TestANewService(t *testing.T) {
	var s *Server
	ticks := make(chan struct{}, 1)
	cmd := Command(Spec[settings]{
		Name: "greeter", Short: "Greet",
		Default: func() settings { return settings{Base: DefaultBase("127.0.0.1:0", "127.0.0.1:0"), Greeting: "hello"} },
		Register: func(c settings, srv *Server) error {
			s = srv
			srv.Readiness().Check("voice", func() error { return nil })
			srv.Go("ticks", func(context.Context) error { ticks <- struct{}{}; return nil })
			srv.Handle(web.Route{Pattern: "GET /greeting", About: "what it says", Roles: []web.Role{web.RoleReader},
				Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.Greeting) })})
			return srv.Register(greeterAPI(&greeter{greeting: c.Greeting}))
		},
	})
	var log lines
	cmd.SetOut(io.Discard)
	cmd.SetErr(&log)
	file := filepath.Join(t.TempDir(), "s.yaml")
	must(t, os.WriteFile(file, []byte("greeter: {greeting: good day, id: one}\n"), 0o600))
	cmd.SetArgs([]string{"--config", file, "--greeter.pprof"})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	log.wait(t, "lightmetrics greeter")
	log.wait(t, "/-/ready")
	<-ticks
	for path, want := range map[string]string{
		"/greeting": "good day", "/v1/query?expression=you": "good day you", "/-/ready": `"part":"voice"`, "/config": `"greeting": "good day"`,
		"/metrics": `lightmetrics_build_info{service="greeter"`, "/debug/pprof/": "goroutine", "/": "/v1/query_range",
	} {
		if a := get(t, s.HTTPURL()+path, ""); a.code != 200 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d, no %q in %.300s", path, a.code, want, a.body)
		}
	}
	conn, err := rpc.Dial(s.GRPCAddr(), rpc.ClientConfig{Token: config.Secret("")})
	must(t, err)
	resp, err := queryv1.NewQueryServiceClient(conn).Query(t.Context(), &queryv1.QueryRequest{Expression: "all"})
	if err != nil || resp.GetStringValue() != "good day all" {
		t.Errorf("%v, %v", resp, err)
	}
	must(t, conn.Close())
	http.DefaultClient.CloseIdleConnections()
	cancel()
	must(t, <-done)

	refused := Command(Spec[settings]{Name: "greeter", Default: func() settings { return settings{Base: DefaultBase("0.0.0.0:0", "")} },
		Register: func(settings, *Server) error { t.Error("registered with settings that are refused"); return nil }})
	refused.SetErr(io.Discard)
	refused.SilenceErrors = true
	var bad *SettingsError
	if err := refused.ExecuteContext(t.Context()); !errors.As(err, &bad) || !strings.Contains(err.Error(), "auth.mode none is for loopback") {
		t.Errorf("open to everybody: %v", err)
	}
}
