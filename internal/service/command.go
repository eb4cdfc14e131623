package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// SettingsError: the settings are such that no start can succeed.
type SettingsError struct{ Err error }

func (e *SettingsError) Error() string { return e.Err.Error() }

// Unwrap gives the reasons.
func (e *SettingsError) Unwrap() error { return e.Err }

// shutdownTelemetry bounds the last flush of traces.
const shutdownTelemetry = 3 * time.Second

// Spec describes a service's command. C is its settings struct.
type Spec[C any] struct {
	// Name of the command and of its section in files, variables and flags.
	Name  string
	Short string
	Long  string
	// Default settings.
	Default func() C
	// Register gives a Server what it serves and runs, from valid settings. C embeds Base.
	Register func(C, *Server) error
	// New builds a service that is more than its Server; then Register is not asked.
	New func(C, *telemetry.Telemetry) (run.Service, error)
	// Reload applies settings of which only those with the tag reload:"yes" differ from the
	// ones before. nil: the service takes none while it runs. An error leaves everything as it was.
	Reload func(C, run.Service) error
	// Banner lists what a person wants to know once the service is ready: label, value. It
	// comes behind the addresses of a service that has a Server.
	Banner func(C, run.Service) [][2]string
}

// Command builds the command of a service: settings from file, environment and flags,
// telemetry, reload by SIGHUP, and the start-up banner.
func Command[C any](s Spec[C]) *cobra.Command {
	Sections(s.Name)
	if s.New == nil {
		s.New = s.build
	}
	cfg, tcfg := s.Default(), telemetry.DefaultConfig()
	var file string
	var check bool
	cmd := &cobra.Command{
		Use: s.Name, Short: s.Short, Long: s.Long,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
	}
	fs := cmd.Flags()
	fs.StringVar(&file, "config", "", "settings file (YAML)")
	fs.BoolVar(&check, "config.check", false, "check the settings and exit")
	config.Flags(fs, s.Name, &cfg)
	config.Flags(fs, "telemetry", &tcfg)
	load := func(cfg *C, tcfg *telemetry.Config, environ []string) error {
		// Once, not for each section.
		if err := CheckNames(file, environ); err != nil {
			return err
		}
		return errors.Join(config.Load(fs, file, s.Name, cfg, environ), config.Load(fs, file, "telemetry", tcfg, environ))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		environ := Environ(cmd.ErrOrStderr())
		if err := errors.Join(load(&cfg, &tcfg, environ), failpoint.Arm(os.Getenv(failpoint.Env))); err != nil {
			return &SettingsError{Err: err}
		}
		if check {
			fmt.Fprintln(cmd.OutOrStdout(), "settings are valid")
			return nil
		}
		// A reload begins from the defaults and not from what is in force: a setting that was removed from
		// the file gets its default back.
		again := func() (C, telemetry.Config, error) {
			cfg, tcfg := s.Default(), telemetry.DefaultConfig()
			err := load(&cfg, &tcfg, environ)
			return cfg, tcfg, err
		}
		return serve(cmd.Context(), s, cfg, tcfg, again, file, cmd.ErrOrStderr())
	}
	return cmd
}

// build makes a service that is its Server.
func (s Spec[C]) build(c C, tel *telemetry.Telemetry) (run.Service, error) {
	b, ok := any(c).(interface{ base() Base })
	if !ok {
		return nil, fmt.Errorf("%s: the settings do not embed service.Base", s.Name)
	}
	srv, err := New(s.Name, b.base(), c, tel, Options{})
	if err != nil {
		return nil, err
	}
	if err := s.Register(c, srv); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return srv, nil
}

func serve[C any](ctx context.Context, s Spec[C], cfg C, tcfg telemetry.Config, again func() (C, telemetry.Config, error), file string, w io.Writer) error {
	// From here on a hang-up reads the settings again, and never ends the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	tel, err := telemetry.New(ctx, tcfg, s.Name, w)
	if err != nil {
		return err
	}
	defer func() {
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTelemetry)
		defer cancel()
		_ = tel.Shutdown(sctx) // the process ends; lost spans are all there is to lose
	}()
	tel.Registry.MustRegister(certificateCollector{})
	tlsfile.ReportRefused(func(err error) {
		tel.Log.Error("a file that has changed can't be read; what it had before stays in force", "error", err)
	})
	svc, err := s.New(cfg, tel)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	select {
	case <-svc.Ready():
	// A service that fails before it listens never becomes ready.
	case err := <-done:
		return ended(ctx, err)
	}
	source := "defaults, environment, flags"
	if file != "" {
		source = file + ", environment, flags"
	}
	rows := append([][2]string{{"version", telemetry.Version()}, {"settings", source}}, addresses(svc)...)
	if s.Banner != nil {
		rows = append(rows, s.Banner(cfg, svc)...)
	}
	fmt.Fprintf(w, "lightmetrics %s\n", s.Name)
	for _, r := range rows {
		fmt.Fprintf(w, "  %-10s %s\n", r[0], r[1])
	}
	r := newReloader(s, svc, tel, cfg, tcfg, again)
	for {
		select {
		case <-hangups:
			r.reload()
		case err := <-done:
			return ended(ctx, err)
		}
	}
}

// addresses are the banner's lines of a service that has a Server.
func addresses(svc run.Service) [][2]string {
	s, ok := svc.(interface{ server() *Server })
	if !ok {
		return nil
	}
	return s.server().addresses()
}

// server is how a service that embeds a Server gives it.
func (s *Server) server() *Server { return s }

func (s *Server) addresses() [][2]string {
	rows := [][2]string{{"http", s.HTTPURL()}}
	if s.grpcAddr != "" {
		rows = append(rows, [2]string{"grpc", s.GRPCURL()})
	}
	return append(rows, [2]string{"ready", "curl " + s.base.TLS.HTTPScheme() + "://" + s.AdminAddr() + "/-/ready"})
}

// HTTPURL is where HTTP is served, with its scheme; valid after Ready.
func (s *Server) HTTPURL() string { return s.base.TLS.HTTPScheme() + "://" + s.httpAddr }

// GRPCURL is where gRPC is served, with the scheme that lmctl takes; valid after Ready.
func (s *Server) GRPCURL() string { return s.base.TLS.GRPCScheme() + "://" + s.grpcAddr }

// ended: a service that stopped because it was asked to has not failed.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
