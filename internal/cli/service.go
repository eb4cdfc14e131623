// Package cli turns services into commands: settings from file, environment and
// flags, telemetry, signals, the start-up banner and exit codes. Only mains use it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/pkg/config"
	"lightmetrics.dev/lightmetrics/pkg/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
)

// Exit codes of every command.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitFindings    = 3
	ExitUnreachable = 4
)

// ExitError makes a command end with a certain code.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *ExitError) Unwrap() error { return e.Err }

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
	// New builds the service from valid settings.
	New func(C, *telemetry.Telemetry) (run.Service, error)
	// Reload applies settings of which only those with the tag reload:"yes" differ from the
	// ones before. nil: the service takes none while it runs. An error leaves everything as it was.
	Reload func(C, run.Service) error
	// Banner lists what a person wants to know once the service is ready: label, value.
	Banner func(C, run.Service) [][2]string
}

// sections are the names that may stand at the top of a settings file, which services may share.
func sections() []string {
	return []string{"agent", "all", "coordinator", "ingest", "objectstore", "query", "reconciler", "rollup", "telemetry"}
}

// notSettings are variables that other things than settings read: failpoints, and the
// tests, whose environment the processes under test inherit.
var notSettings = []string{failpoint.Env, "LIGHTMETRICS_SOAK", "LIGHTMETRICS_SEED", "LIGHTMETRICS_SCHEDULES", "LIGHTMETRICS_MUTANT",
	"LIGHTMETRICS_TEST_", "LIGHTMETRICS_BENCH_"}

// Environ gives the variables that may be settings. It says on w which others are taken
// for Kubernetes service links.
func Environ(w io.Writer) []string {
	environ, links := config.SplitServiceLinks(config.Environ())
	if len(links) > 0 {
		fmt.Fprintf(w, "these variables are taken for Kubernetes service links, not for settings: %s\n", strings.Join(links, ", "))
	}
	return environ
}

// CheckNames refuses what would be a mistake in the settings of any service: sections of
// the file ("" is none), and variables, that none of them knows.
func CheckNames(file string, environ []string) error {
	return errors.Join(config.CheckSections(file, sections()...), config.CheckEnvironment(environ, sections(), notSettings))
}

// Command builds the command of a service.
func Command[C any](s Spec[C]) *cobra.Command {
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
			return &ExitError{Code: ExitUsage, Err: err}
		}
		if check {
			fmt.Fprintln(cmd.OutOrStdout(), "settings are valid")
			return nil
		}
		again := func() (C, telemetry.Config, error) {
			cfg, tcfg := s.Default(), telemetry.DefaultConfig()
			err := load(&cfg, &tcfg, environ)
			return cfg, tcfg, err
		}
		return serve(cmd.Context(), s, cfg, tcfg, again, file, cmd.ErrOrStderr())
	}
	return cmd
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
	svc, err := s.New(cfg, tel)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	select {
	case <-svc.Ready():
	case err := <-done:
		return ended(ctx, err)
	}
	source := "defaults, environment, flags"
	if file != "" {
		source = file + ", environment, flags"
	}
	rows := append([][2]string{{"version", telemetry.Version()}, {"settings", source}}, s.Banner(cfg, svc)...)
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

// ended: a service that was told to stop and stopped has not failed.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// secondSignal is how long after the first signal another one begins to count: timeout(1)
// and supervisors send the same one twice, to the process and to its group.
const secondSignal = time.Second

// Main runs the command with signals and exits the process. The first signal stops it in
// order, a second one at once.
func Main(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(secondSignal, stop) })
	err := Execute(ctx, cmd)
	stop()
	os.Exit(exitCode(err, os.Stderr))
}

// Execute runs a tree of commands. Unknown commands, flags and arguments are *ExitError
// with ExitUsage.
func Execute(ctx context.Context, cmd *cobra.Command) error {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	strict(cmd)
	return cmd.ExecuteContext(ctx)
}

// strict gives usage errors their exit code, and makes a group of commands refuse the
// names that it does not have, where cobra would print its help and succeed.
func strict(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		strict(c)
	}
	if args := cmd.Args; args != nil {
		cmd.Args = func(c *cobra.Command, a []string) error { return usage(args(c, a)) }
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(c *cobra.Command, a []string) error {
			if len(a) > 0 {
				return usage(fmt.Errorf("unknown command %q for %q", a[0], c.CommandPath()))
			}
			return c.Help()
		}
	}
}

func usage(err error) error {
	if e := (*ExitError)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	return &ExitError{Code: ExitUsage, Err: err}
}

// exitCode prints the error. An interrupted command has failed: whoever asks for a
// verdict must not take none for a good one.
func exitCode(err error, w io.Writer) int {
	if err == nil {
		return ExitOK
	}
	fmt.Fprintln(w, "error:", err)
	var e *ExitError
	if errors.As(err, &e) {
		return e.Code
	}
	return ExitFailed
}
