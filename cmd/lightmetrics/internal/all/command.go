// Package all runs every service of Lightmetrics on one machine as one group of processes, for
// production: data in one directory, settings in one file, credentials made at the first start. It
// connects the services with each other, starts them in order, restarts those that end, and stops
// them in reverse order.
package all

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/service"
)

// stopGrace is how long a service may take to drain before it is killed: longer than
// every drain_timeout by default. The systemd unit gives the group time for all.
const stopGrace = 45 * time.Second

// checkTimeout bounds the check of one service's settings.
const checkTimeout = time.Minute

// Command is "lightmetrics all".
func Command() *cobra.Command {
	cfg := DefaultConfig()
	var file string
	var check bool
	cmd := &cobra.Command{
		Use:   "all",
		Short: "Run every service on this machine as one group of processes",
		Long: "Runs the embedded object store, coordinator, reconciler, collector, rollup worker, query service and an agent\n" +
			"that reads this host: Lightmetrics on one machine, for production. Everything it keeps is in all.data_dir. The first\n" +
			"start makes the credentials. One settings file has the section \"all\" and, where a default does not fit, the section\n" +
			"of any service. SIGHUP reads it again. A service that ends is started again.",
		Example: "  lightmetrics all --all.data_dir /var/lib/lightmetrics\n" +
			"  lightmetrics all --config /etc/lightmetrics/lightmetrics.yaml --config.check",
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&file, "config", "", "settings file (YAML)")
	fs.BoolVar(&check, "config.check", false, "check the settings of every service and exit")
	config.Flags(fs, "all", &cfg)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		environ := service.Environ(cmd.ErrOrStderr())
		if err := errors.Join(service.CheckNames(file, environ), config.Load(fs, file, "all", &cfg, environ)); err != nil {
			return &cli.ExitError{Code: cli.ExitUsage, Err: err}
		}
		bin, err := os.Executable()
		if err != nil {
			return err
		}
		if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err != nil {
			return err
		}
		if check {
			return checkSettings(cmd.Context(), cfg, bin, file, environ, cmd.OutOrStdout())
		}
		return serve(cmd.Context(), cfg, bin, file, environ, cmd.ErrOrStderr())
	}
	return cmd
}

// serve runs the group until ctx ends.
func serve(ctx context.Context, cfg Config, bin, file string, environ []string, w io.Writer) error {
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return err
	}
	// The lock comes before the credentials: two first starts at the same time would make two sets of
	// them.
	lock, err := lockDir(cfg.DataDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	creds, err := openCredentials(cfg.DataDir)
	if err != nil {
		return err
	}
	p, err := readPlan(cfg, creds, file, environ)
	if err != nil {
		return err
	}
	if err := awaitAddresses(ctx, p.listeners(), addressWait); err != nil {
		return err
	}
	settings, err := p.write(p.dir("settings"))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(w, nil)).With("service", "all")
	var members []member
	for _, s := range cfg.services() {
		members = append(members, member{name: s, grace: stopGrace, spec: proc.Spec{
			Name: s, Bin: bin, Args: []string{s, "--config", settings[s]}, ReadyURL: p.readyURL(s),
		}})
	}
	g := newGroup(members, func(name, what string, err error) {
		if err != nil {
			log.Warn(what, "member", name, "error", err)
			return
		}
		log.Info(what, "member", name)
	})
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	// It ends with this function, also when the group ends by itself, so that the goroutine below does not
	// outlive it.
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			select {
			case <-hup:
				if err := reload(rctx, p, g, bin, file); err != nil {
					log.Error("the settings are not reloaded; those before stay in force", "error", err)
				}
			case <-rctx.Done():
				return
			}
		}
	}()
	err = g.run(ctx, func() {
		banner(w, p, file)
		_, _ = daemon.SdNotify(false, daemon.SdNotifyReady) // does nothing when systemd did not start us
	})
	// A member's exit is an error of run only when it refused its settings.
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	return err
}

// reload writes the settings of the services again and makes each service read them. Every service
// checks its part first: a service that ends is restarted with the files as they are, so a mistake
// would otherwise stay hidden until then. The section "all" itself is fixed until the next start.
func reload(ctx context.Context, p *plan, g *group, bin, file string) error {
	if err := service.CheckNames(file, nil); err != nil {
		return err
	}
	next, err := readPlan(p.cfg, p.creds, file, p.environ)
	if err != nil {
		return err
	}
	// Before anything is written: after a refusal the files on disk must be those that the services run
	// with.
	if err := next.check(ctx, bin, file); err != nil {
		return err
	}
	if _, err := next.write(next.dir("settings")); err != nil {
		return err
	}
	return g.reload()
}

// checkSettings runs the settings check of every service.
func checkSettings(ctx context.Context, cfg Config, bin, file string, environ []string, w io.Writer) error {
	dir, err := os.MkdirTemp("", "lightmetrics-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The check has credentials of its own, so that it creates nothing in the data directory.
	creds, err := openCredentials(dir)
	if err != nil {
		return err
	}
	p, err := readPlan(cfg, creds, file, environ)
	if err == nil {
		err = p.check(ctx, bin, file)
	}
	if err != nil {
		return &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	fmt.Fprintln(w, "settings are valid")
	return nil
}

// check runs the settings check of every service on its part of the plan, in temporary files. The
// error names the services that refuse their part.
func (p *plan) check(ctx context.Context, bin, file string) error {
	dir, err := os.MkdirTemp("", "lightmetrics-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	settings, err := p.write(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range p.cfg.services() {
		cctx, cancel := context.WithTimeout(ctx, checkTimeout)
		out, err := exec.CommandContext(cctx, bin, s, "--config", settings[s], "--config.check").CombinedOutput()
		cancel()
		if err != nil {
			// The service names the temporary file; the operator knows only the file that it was made
			// from.
			text := strings.TrimPrefix(strings.TrimSpace(string(out)), "error: ")
			errs = append(errs, fmt.Errorf("%s: %s", s, strings.ReplaceAll(text, settings[s], file)))
		}
	}
	return errors.Join(errs...)
}

// lockDir keeps a second group out of the data directory.
func lockDir(dir string) (io.Closer, error) {
	lock, err := vfs.Dir(dir).Lock("lock")
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("data_dir %s: another \"lightmetrics all\" has it: %w", dir, err)
	}
	return lock, err
}

// readyURL is where a service says that it is ready.
func (p *plan) readyURL(service string) string {
	addr := map[string]string{
		objectstore: p.address("127.0.0.1:4791", objectstore, "admin_listen"),
		coordinator: p.address("127.0.0.1:4780", coordinator, "http", "listen"),
		reconciler:  p.reconcilerHTTP(),
		ingest:      p.address(p.address("127.0.0.1:4751", ingest, "http", "listen"), ingest, "admin", "listen"),
		rollup:      p.address("127.0.0.1:4775", rollup, "http", "listen"),
		query:       p.address("127.0.0.1:4760", query, "http", "listen"),
		agent:       p.address("127.0.0.1:4320", agent, "http", "listen"),
	}[service]
	return p.scheme(service) + "://" + addr + "/-/ready"
}

// scheme is what a service serves on its HTTP address.
func (p *plan) scheme(service string) string {
	if p.setting(service, "tls", "cert_file") != "" {
		return "https"
	}
	return "http"
}

// banner prints the addresses. Secrets are printed only by the start that made them.
func banner(w io.Writer, p *plan, file string) {
	if file == "" {
		file = "defaults, environment, flags"
	}
	queries := p.scheme(query) + "://" + p.address("127.0.0.1:4760", query, "http", "listen")
	fmt.Fprintf(w, "lightmetrics all\n  %-12s %s\n  %-12s %s\n  %-12s %s\n", "version", telemetry.Version(), "settings", file, "data", p.cfg.DataDir)
	fmt.Fprintf(w, "  %-12s %s\n  %-12s %s\n", "agents to", p.ingestAddress(), "queries to", queries)
	fmt.Fprintf(w, "  %-12s %s\n", "credentials", p.creds.dir)
	for _, name := range []string{senderToken, readerToken, operatorToken} {
		// Secrets of an earlier start are not printed: the log is no place to keep them.
		for _, made := range p.creds.made {
			if made != name {
				continue
			}
			if secret, err := p.creds.read(name); err == nil {
				fmt.Fprintf(w, "  %-12s %s (%s; not printed again)\n", "", secret, name)
			}
		}
	}
	fmt.Fprintf(w, "  %-12s curl -H \"Authorization: Bearer $(cat %s)\" '%s/api/v1/query?query=node_load1'\n",
		"next", p.creds.path(readerToken), queries)
}
