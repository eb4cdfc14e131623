package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
)

type reloadable struct {
	Limit     int           `koanf:"limit" reload:"yes"`
	Fixed     int           `koanf:"fixed"`
	Token     config.Secret `koanf:"token" reload:"file"`
	TokenFile string        `koanf:"token_file"`
}

// idle is a service that records the settings that it gets.
type idle struct {
	ready chan struct{}
	mu    sync.Mutex
	seen  []reloadable
}

func (s *idle) Run(ctx context.Context) error { close(s.ready); <-ctx.Done(); return nil }
func (s *idle) Ready() <-chan struct{}        { return s.ready }
func (s *idle) last() (out reloadable, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n = len(s.seen); n > 0 {
		out = s.seen[n-1]
	}
	return out, n
}

// TestHangUpReloads: SIGHUP applies what can be, names what can't, and never ends the
// service; settings that a start would refuse change nothing and are counted.
func TestHangUpReloads(t *testing.T) {
	dir := t.TempDir()
	file, token := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "token")
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(token, "one")
	section := "query: {limit: %d, fixed: %d, token_file: " + token + "}\ntelemetry: {log_level: %s}\n"
	put(file, fmt.Sprintf(section, 1, 1, "info"))
	svc := &idle{ready: make(chan struct{})}
	var tel *telemetry.Telemetry
	cmd := Command(Spec[reloadable]{
		Name: "query", Default: func() reloadable { return reloadable{} },
		New:    func(_ reloadable, t *telemetry.Telemetry) (run.Service, error) { tel = t; return svc, nil },
		Banner: func(reloadable, run.Service) [][2]string { return nil },
		Reload: func(c reloadable, _ run.Service) error {
			if c.Limit == 13 {
				return errors.New("not thirteen")
			}
			svc.mu.Lock()
			defer svc.mu.Unlock()
			svc.seen = append(svc.seen, c)
			return nil
		},
	})
	var log lines
	cmd.SetOut(io.Discard)
	cmd.SetErr(&log)
	cmd.SetArgs([]string{"--config", file})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	log.wait(t, "lightmetrics query")
	hup := func(want string) {
		t.Helper()
		log.reset()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		log.wait(t, want)
	}

	put(file, fmt.Sprintf(section, 2, 2, "debug"))
	put(token, "two")
	hup("need a restart")
	got, n := svc.last()
	if n != 1 || got != (reloadable{Limit: 2, Fixed: 1, Token: "two", TokenFile: token}) {
		t.Errorf("after %d reloads the service has %+v", n, got)
	}
	text := log.String()
	for _, want := range []string{"query.limit", "query.token", "telemetry.log_level", "settings=[query.fixed]"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if strings.Contains(text, "two") {
		t.Errorf("a secret in the log: %s", text)
	}
	if !tel.Log.Enabled(ctx, -4) {
		t.Error("debug is not logged")
	}

	for _, bad := range []string{"query: {limit: many}\n", "query: {limt: 3}\n", fmt.Sprintf(section, 13, 1, "info"), fmt.Sprintf(section, 3, 1, "loud")} {
		put(file, bad)
		hup("those before stay in force")
	}
	if got, n := svc.last(); n != 1 || got.Limit != 2 || !tel.Log.Enabled(ctx, -4) {
		t.Errorf("after bad files: %d reloads, %+v", n, got)
	}
	metrics := func(successful, failures int) {
		t.Helper()
		want := fmt.Sprintf(`# HELP lightmetrics_config_last_reload_successful 1 when the settings in force are those that were read last, 0 when the last reload was refused.
# TYPE lightmetrics_config_last_reload_successful gauge
lightmetrics_config_last_reload_successful %d
# HELP lightmetrics_config_reload_failures_total Reloads of the settings that were refused.
# TYPE lightmetrics_config_reload_failures_total counter
lightmetrics_config_reload_failures_total %d
`, successful, failures)
		if err := testutil.GatherAndCompare(tel.Registry, strings.NewReader(want),
			"lightmetrics_config_last_reload_successful", "lightmetrics_config_reload_failures_total"); err != nil {
			t.Error(err)
		}
	}
	metrics(0, 4)
	put(file, fmt.Sprintf(section, 4, 1, "info"))
	hup("the settings were reloaded")
	metrics(1, 4)
	if got, _ := svc.last(); got.Limit != 4 {
		t.Errorf("after a good file: %+v", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// lines collects what is written by several goroutines.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

func (l *lines) wait(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(l.String(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %q in %s", text, l.String())
		}
	}
}
