// Package cli runs trees of commands: signals, exit codes and mistakes in arguments. Only
// mains use it.
package cli

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

	"lightmetrics.dev/lightmetrics/internal/service"
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

// Sections of a settings file that services share; a binary with one of them takes the
// others' too.
var Sections = []string{"agent", "all", "coordinator", "ingest", "objectstore", "query", "reconciler", "rollup"}

func init() { service.Sections(Sections...) }

// secondSignal is how long after the first signal another one begins to count: timeout(1)
// and supervisors send the same one twice, to the process and to its group.
const secondSignal = time.Second

// Main runs the command with signals and exits the process. The first signal stops it in
// order, a second one at once.
func Main(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// stop restores the default handling of signals, so that the next one ends the process.
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
		cmd.Args = func(c *cobra.Command, a []string) error {
			err := args(c, a)
			if err != nil { // cobra counts them, and does not say what they are
				err = fmt.Errorf("%w: %s", err, c.UseLine())
			}
			if err == nil { // cobra asks for it later, and its error has no exit code
				err = c.ValidateRequiredFlags()
			}
			return usage(err)
		}
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		// Otherwise cobra checks the arguments before RunE, and a misspelled command gets an error without
		// the exit code for usage.
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
	// An error that has chosen its exit code already keeps it.
	if e := (*ExitError)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	return &ExitError{Code: ExitUsage, Err: err}
}

// exitCode prints the error and gives the exit status. An interrupted command has failed: a check that
// did not finish must not pass for a good one.
func exitCode(err error, w io.Writer) int {
	if err == nil {
		return ExitOK
	}
	fmt.Fprintln(w, "error:", err)
	var e *ExitError
	var settings *service.SettingsError
	switch {
	case errors.As(err, &e):
		return e.Code
	case errors.As(err, &settings):
		return ExitUsage
	}
	return ExitFailed
}
