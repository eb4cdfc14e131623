package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
)

type settings struct {
	Workers int          `koanf:"workers" help:"n"`
	Size    config.Bytes `koanf:"size" help:"n"`
}

func tree() *cobra.Command {
	root := &cobra.Command{Use: "root"}
	group := &cobra.Command{Use: "group"}
	group.AddCommand(&cobra.Command{Use: "leaf X", Args: cobra.ExactArgs(1), RunE: func(*cobra.Command, []string) error { return nil }})
	needs := &cobra.Command{Use: "needs --key KEY", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }}
	needs.Flags().String("key", "", "")
	_ = needs.MarkFlagRequired("key")
	group.AddCommand(needs)
	root.AddCommand(group,
		&cobra.Command{Use: "stopped", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("read all: %w", context.Canceled)
		}},
		service.Command(service.Spec[settings]{Name: "query", Default: func() settings { return settings{} },
			New: func(settings, *telemetry.Telemetry) (run.Service, error) { return nil, errors.New("no service") }}))
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	return root
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	shared := write("shared.yaml", "query: {workers: 3}\ningest: {anything: 1}\ntelemetry: {}\n")
	for line, want := range map[string]int{
		"":                    ExitOK,
		"group":               ExitOK,
		"group leaf x":        ExitOK,
		"group needs --key=x": ExitOK,
		"group needs --help":  ExitOK,
		"nope":                ExitUsage,
		"group nope":          ExitUsage,
		"group leaf":          ExitUsage,
		"group leaf x y":      ExitUsage,
		"group leaf --nope":   ExitUsage,
		"group needs":         ExitUsage,
		"group needs --key":   ExitUsage,
		"stopped extra":       ExitUsage,
		"--nope":              ExitUsage,
		"query --nope":        ExitUsage,
		"query extra":         ExitUsage,
		"query":               ExitFailed,
		"stopped":             ExitFailed, // an interrupted check must not look like a good one
		"query --config.check --config " + shared:                                           ExitOK,
		"query --config.check --config " + write("empty.yaml", ""):                          ExitOK,
		"query --config.check --config " + filepath.Join(dir, "absent"):                     ExitUsage,
		"query --config.check --config " + write("section.yaml", "qeury: {workers: 3}\n"):   ExitUsage,
		"query --config.check --config " + write("key.yaml", "query: {wrokers: 3}\n"):       ExitUsage,
		"query --config.check --config " + write("type.yaml", "query: {workers: [1, 2]}\n"): ExitUsage,
		"query --config.check --config " + write("broken.yaml", "query: {\n"):               ExitUsage,
		"query --config.check --query.size 4KiB":                                            ExitOK,
		"query --config.check --query.size many":                                            ExitUsage,
	} {
		root := tree()
		root.SetArgs(strings.Fields(line))
		var text strings.Builder
		err := Execute(context.Background(), root)
		if got := exitCode(err, &text); got != want {
			t.Errorf("%q: exit code %d, want %d: %v", line, got, want, err)
		}
		if lines := strings.Count(text.String(), "\n"); strings.Contains(line, "absent") && lines != 1 {
			t.Errorf("%q: %d lines: %s", line, lines, &text)
		}
	}
}

// An error about the number of arguments says what they are.
func TestMissingArgumentsAreNamed(t *testing.T) {
	root := &cobra.Command{Use: "tool"}
	root.AddCommand(&cobra.Command{Use: "show URL KEY", Args: cobra.ExactArgs(2), RunE: func(*cobra.Command, []string) error { return nil }})
	root.SetArgs([]string{"show", "x"})
	var e *ExitError
	if err := Execute(t.Context(), root); !errors.As(err, &e) || e.Code != ExitUsage || !strings.Contains(err.Error(), "tool show URL KEY") {
		t.Errorf("%v", err)
	}
}
