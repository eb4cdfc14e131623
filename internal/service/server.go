// Package service has what all services share: settings, the command, listeners, gRPC, the JSON API,
// admin paths, readiness, and the order of a shutdown. A service embeds Base in its settings, makes
// a Server, and registers its APIs with roles and errors. Nothing in here knows a service by name.
package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// Options are what few services need.
type Options struct {
	// GRPC are further options of the gRPC server.
	GRPC []grpc.ServerOption
	// GRPCListener wraps the listener of gRPC.
	GRPCListener func(net.Listener) net.Listener
	// OnCaller is called with the principal of a gRPC call before a byte of the call's messages is
	// read. It must not block.
	OnCaller func(context.Context, rpc.Principal)
	// HTTP wraps every HTTP handler but those of the admin listener.
	HTTP func(http.Handler) http.Handler
	// JSON are further options of the JSON API.
	JSON []runtime.ServeMuxOption
	// Prepare makes what gRPC and the JSON API need, and may take long. HTTP is served
	// meanwhile, so that /-/ready says why, but the JSON API answers 503 and gRPC does not
	// listen. It may register implementations of APIs that were registered without one.
	Prepare func(context.Context) error
}

// Server is the part of a service that is the same in all: a service makes one, registers
// what it serves and the loops that it runs, and calls Run. Nothing listens before.
type Server struct {
	name string
	base Base
	opt  Options
	tel  *telemetry.Telemetry

	auth      *rpc.Authenticator
	access    rpc.Access
	grpc      *rpc.Server
	api       *api
	mux       *web.Mux
	admin     *web.Mux // nil: its paths are in mux
	readiness *run.Readiness
	probes    []loop // begin at once
	loops     []loop
	listening []func(context.Context) error
	stopping  []func()

	ready                         chan struct{}
	httpAddr, grpcAddr, adminAddr string
}

type loop struct {
	name string
	run  func(context.Context) error
}

// New makes the server of the service called name. settings is what GET /config shows.
func New(name string, base Base, settings any, tel *telemetry.Telemetry, opt Options) (*Server, error) {
	if tel == nil {
		return nil, fmt.Errorf("%s: needs telemetry", name)
	}
	if err := base.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	// Two processes must never write under one id, so none of them has a fixed default.
	if base.ID == "" {
		base.ID = RandomID(name)
	}
	auth, err := rpc.NewAuthenticator(base.Auth)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s := &Server{
		name: name, base: base, opt: opt, tel: tel, auth: auth, access: rpc.Access{},
		mux:       web.NewMux("lightmetrics "+name, telemetry.Version(), auth.Guard),
		readiness: run.NewReadiness(tel.Log), ready: make(chan struct{}),
	}
	s.api = newAPI(s)
	options := append([]grpc.ServerOption{
		grpc.ChainUnaryInterceptor(s.api.unary), grpc.ChainStreamInterceptor(s.api.stream),
	}, opt.GRPC...)
	if opt.OnCaller != nil {
		options = append(options, grpc.InTapHandle(auth.Tap(opt.OnCaller)))
	}
	if s.grpc, err = rpc.NewServer(base.TLS, auth, s.access, tel, options...); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	// Not serving until readiness says otherwise.
	s.grpc.SetServing(false)
	admin := s.mux
	if base.Admin.Listen != "" {
		s.admin = web.NewMux("lightmetrics "+name+", admin paths", telemetry.Version(), auth.Guard)
		admin = s.admin
	}
	telemetry.Admin{Telemetry: tel, Ready: s.readiness, Config: settings, Pprof: base.Pprof}.Register(admin)
	return s, nil
}

// RandomID names a process of a service whose settings give it no id.
func RandomID(name string) string { return name + "-" + run.RandomID() }

// ID is the configured name of this process, or a random one.
func (s *Server) ID() string { return s.base.ID }

// Log is the service's.
func (s *Server) Log() *slog.Logger { return s.tel.Log }

// Readiness has the parts that /-/ready and the health of gRPC report.
func (s *Server) Readiness() *run.Readiness { return s.readiness }

// Handle adds an HTTP route, before Run.
func (s *Server) Handle(r web.Route) { s.mux.Handle(r) }

// Go adds a loop that begins once the service listens and Prepare is done, which may add some
// too. The first one that fails ends the service.
func (s *Server) Go(name string, fn func(context.Context) error) {
	s.loops = append(s.loops, loop{name, fn})
}

// Probe makes a part of readiness of what fn says, which is asked from the start on.
func (s *Server) Probe(part string, fn func(context.Context) error) {
	p := s.readiness.Probed(part)
	s.probes = append(s.probes, loop{"probe of the " + part, func(ctx context.Context) error { return p.Probe(ctx, fn) }})
}

// OnListening has fn called when the addresses are known and nothing is served yet. Its
// error ends Run.
func (s *Server) OnListening(fn func(context.Context) error) { s.listening = append(s.listening, fn) }

// OnStop calls fn when the service is asked to stop, before it waits for calls to end. fn ends
// streams that would otherwise never end.
func (s *Server) OnStop(fn func()) { s.stopping = append(s.stopping, fn) }

// UpdateHealth has the health of gRPC follow readiness at once, and not within a second.
func (s *Server) UpdateHealth() { s.grpc.SetServing(s.readiness.Err() == nil) }

// Ready is closed when the service listens and its addresses are known. Whether it can do
// its work is what /-/ready says.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// HTTPAddr is the host:port of HTTP; valid after Ready.
func (s *Server) HTTPAddr() string { return s.httpAddr }

// GRPCAddr is the host:port of gRPC, "" where it is not served; valid after Ready.
func (s *Server) GRPCAddr() string { return s.grpcAddr }

// AdminAddr is the host:port of the admin paths; valid after Ready.
func (s *Server) AdminAddr() string {
	if s.admin == nil {
		return s.httpAddr
	}
	return s.adminAddr
}

// Run serves until ctx ends or a loop fails. Then it waits for calls and requests to end, at most
// drain_timeout. Nothing that it started runs when it returns.
func (s *Server) Run(ctx context.Context) error {
	ls, err := s.listen(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	for _, fn := range s.listening {
		if err := fn(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, errors.Join(err, ls.close()))
		}
	}
	g := run.NewGroup(ctx)
	g.Go("http", func(ctx context.Context) error {
		return web.ServeHTTP(ctx, ls.httpServer, ls.http, s.base.DrainTimeout)
	})
	if ls.admin != nil {
		g.Go("admin", func(ctx context.Context) error {
			return web.ServeHTTP(ctx, ls.adminServer, ls.admin, s.base.DrainTimeout)
		})
	}
	g.Go("stop", func(ctx context.Context) error {
		<-ctx.Done()
		// These end streams that would hold up the graceful stop of gRPC, which begins at the same moment,
		// for all of drain_timeout.
		for _, fn := range s.stopping {
			fn()
		}
		return nil
	})
	for _, l := range s.probes {
		g.Go(l.name, l.run)
	}
	g.Go("serve", func(ctx context.Context) error { return s.serve(ctx, ls.grpc) })
	err = g.Wait()
	// Handlers of the JSON API run in this process without a connection that a server would wait for.
	s.api.wait()
	return err
}

// serve is everything behind Prepare.
func (s *Server) serve(ctx context.Context, gl net.Listener) error {
	if s.opt.Prepare != nil {
		if err := s.opt.Prepare(ctx); err != nil {
			return err
		}
		var err error
		// Only now: a client that can connect would take the service for one that answers.
		if gl, err = s.listenGRPC(ctx); err != nil {
			return fmt.Errorf("grpc: %w", err)
		}
	}
	if err := s.api.open(); err != nil {
		return err
	}
	g := run.NewGroup(ctx)
	if gl != nil {
		g.Go("grpc", func(ctx context.Context) error { return s.grpc.Serve(ctx, gl, s.base.DrainTimeout) })
	}
	g.Go("health", func(ctx context.Context) error { return s.readiness.Watch(ctx, s.grpc.SetServing) })
	for _, l := range s.loops {
		g.Go(l.name, l.run)
	}
	s.tel.Log.Info("the service listens", "id", s.base.ID, "http", s.HTTPAddr(), "grpc", s.GRPCAddr(), "admin", s.AdminAddr(), "auth", s.base.Auth.Mode)
	// The addresses were set before: closing publishes them to those who wait for Ready.
	close(s.ready)
	return g.Wait()
}

// listeners of one Run.
type listeners struct {
	http, admin, grpc       net.Listener // admin and grpc may be nil
	httpServer, adminServer *http.Server
}

func (ls listeners) close() error {
	var errs []error
	for _, l := range []net.Listener{ls.http, ls.admin, ls.grpc} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// listen opens every listener, or none; gRPC's comes later where Prepare is to come first.
func (s *Server) listen(ctx context.Context) (ls listeners, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, ls.close())
		}
	}()
	var h http.Handler = s.mux
	if s.opt.HTTP != nil {
		h = s.opt.HTTP(h)
	}
	ls.httpServer = s.base.HTTP.Server(h)
	ls.httpServer.ErrorLog = slog.NewLogLogger(s.tel.Log.Handler(), slog.LevelDebug)
	if ls.httpServer.TLSConfig, err = s.base.TLS.Config(); err != nil {
		return ls, err
	}
	if ls.http, err = s.base.HTTP.Open(ctx); err != nil {
		return ls, fmt.Errorf("http: %w", err)
	}
	s.httpAddr = ls.http.Addr().String()
	if s.admin != nil {
		// The admin listener protects against the same attacks as the HTTP port.
		c := s.base.HTTP // the same names and bounds
		c.Listen = s.base.Admin.Listen
		ls.adminServer = c.Server(s.admin)
		if ls.adminServer.TLSConfig, err = s.base.TLS.ProbeConfig(); err != nil {
			return ls, err
		}
		if ls.admin, err = c.Open(ctx); err != nil {
			return ls, fmt.Errorf("admin: %w", err)
		}
		s.adminAddr = ls.admin.Addr().String()
	}
	// With Prepare gRPC listens later: a client that can connect would expect answers.
	if s.opt.Prepare == nil {
		if ls.grpc, err = s.listenGRPC(ctx); err != nil {
			return ls, fmt.Errorf("grpc: %w", err)
		}
	}
	return ls, nil
}

// listenGRPC gives nil where gRPC is not served.
func (s *Server) listenGRPC(ctx context.Context) (net.Listener, error) {
	if s.base.GRPC.Listen == "" {
		return nil, nil
	}
	l, err := s.base.GRPC.Open(ctx)
	if err != nil {
		return nil, err
	}
	s.grpcAddr = l.Addr().String()
	if s.opt.GRPCListener != nil {
		l = s.opt.GRPCListener(l)
	}
	return l, nil
}

// ReloadPrincipals reads the principals now, and not within the next seconds. An error leaves those
// before in force.
func (s *Server) ReloadPrincipals() error { return s.auth.Reload() }
