package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// askTimeout bounds one question to a service.
const askTimeout = 30 * time.Second

// service is how to reach a service over gRPC.
type service struct {
	name    string // query, coordinator or reconciler
	addr    string
	client  rpc.ClientConfig
	flagset *pflag.FlagSet // nil: the address is as it stands
}

// flags adds --addr, of what, and --client.*.
func (s *service) flags(cmd *cobra.Command, addr, what string) {
	s.flagset = cmd.PersistentFlags()
	s.name, _, _ = strings.Cut(what, " ")
	s.flagset.StringVar(&s.addr, "addr", addr, "[grpc|grpcs://]host:port of a "+what+"; LMCTL_"+strings.ToUpper(s.name)+"_ADDR, or the context in use")
	config.Flags(s.flagset, "client", &s.client)
}

// over calls fn with a connection and gives failures their exit codes.
func (s *service) over(fn func(grpc.ClientConnInterface) error) error {
	addr, client, err := s.resolve()
	if err != nil {
		return err
	}
	conn, err := rpc.Dial(addr, client)
	if err != nil {
		return err
	}
	defer conn.Close()
	return s.exit(fn(conn))
}

// ask is over with askTimeout for all of fn.
func (s *service) ask(ctx context.Context, fn func(context.Context, grpc.ClientConnInterface) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	// One deadline for all calls of fn, so that a list of many pages cannot take the time of one for each.
	defer cancel()
	return s.over(func(conn grpc.ClientConnInterface) error { return fn(ctx, conn) })
}

// exit gives err its exit code, and the words of the service instead of gRPC's. A service that refuses who asks was reached.
func (s *service) exit(err error) error {
	code := status.Code(err)
	err = readable(err)
	switch {
	// The exit code tells scripts whether to try again: not reached is temporary, refused is not.
	case err == nil, code == codes.PermissionDenied, code == codes.Unauthenticated:
		return err
	case code == codes.Unavailable, code == codes.DeadlineExceeded, errors.Is(err, work.ErrUnavailable), errors.Is(err, work.ErrUnknown):
		return &cli.ExitError{Code: cli.ExitUnreachable, Err: fmt.Errorf("%s: %w", s.addr, err)}
	case code == codes.InvalidArgument, errors.Is(err, work.ErrInvalid):
		return &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	return err
}

// readable shows what a service has answered as its message and, behind it, the reason to branch on; the code where it gives none.
func readable(err error) error {
	var answered interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &answered) {
		return err
	}
	st, why := answered.GRPCStatus(), rpc.Reason(err)
	if why == "" {
		why = st.Code().String()
	}
	text := err.Error()
	if inner, ok := answered.(error); ok {
		text = strings.Replace(text, inner.Error(), st.Message()+" ("+why+")", 1)
	}
	return &readableError{text, err}
}

type readableError struct {
	text string
	err  error
}

func (e *readableError) Error() string { return e.text }
func (e *readableError) Unwrap() error { return e.err }
