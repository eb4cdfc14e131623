package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// refusing answers every question about jobs and shards with a status.
type refusing struct {
	coordinatorv1.UnimplementedWorkServiceServer
	coordinatorv1.UnimplementedOwnershipServiceServer
	err error
}

func (r *refusing) GetJob(context.Context, *coordinatorv1.GetJobRequest) (*coordinatorv1.GetJobResponse, error) {
	return nil, r.err
}

func (r *refusing) ListShards(context.Context, *coordinatorv1.ListShardsRequest) (*coordinatorv1.ListShardsResponse, error) {
	return nil, r.err
}

// TestExitCodes: the same failure has the same exit code, whatever was asked.
func TestExitCodes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, g := &refusing{}, grpc.NewServer()
	coordinatorv1.RegisterWorkServiceServer(g, r)
	coordinatorv1.RegisterOwnershipServiceServer(g, r)
	go func() { _ = g.Serve(l) }() // until Stop
	defer g.Stop()
	at := service{addr: l.Addr().String()}
	ask := func(at service) [2]error {
		c, p := &ownershipAPI{service: at, kind: "rollup"}, &pendingWork{service: at}
		return [2]error{c.ask(t.Context(), func(ctx context.Context, cl coordinatorv1.OwnershipServiceClient) error {
			_, err := cl.ListShards(ctx, &coordinatorv1.ListShardsRequest{})
			return err
		}), p.ask(func(s *coordinator.PendingWork) error {
			_, err := s.Get(t.Context(), work.Key{Log: "x", Number: 1})
			return err
		})}
	}
	code := func(err error) int {
		var e *cli.ExitError
		switch {
		case err == nil:
			return cli.ExitOK
		case errors.As(err, &e):
			return e.Code
		}
		return cli.ExitFailed
	}
	denied := rpc.Status(&rpc.DeniedError{Principal: "p", Method: "/m", Roles: []rpc.Role{rpc.RoleOperator}})
	for _, c := range []struct {
		err  error
		want int
	}{
		{status.Error(codes.Unavailable, "down"), cli.ExitUnreachable},
		{status.Error(codes.DeadlineExceeded, "slow"), cli.ExitUnreachable},
		{status.Error(codes.InvalidArgument, "bad"), cli.ExitUsage},
		{status.Error(codes.Unauthenticated, "who"), cli.ExitFailed},
		{denied, cli.ExitFailed},
	} {
		r.err = c.err
		for i, err := range ask(at) {
			if got := code(err); got != c.want {
				t.Errorf("%v, question %d: exit code %d, want %d", err, i, got, c.want)
			}
		}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{status.Error(codes.FailedPrecondition, "the region was retired"), "the region was retired (FailedPrecondition)"},
		{denied, "(" + rpc.ReasonForbidden + ")"},
	} {
		r.err = c.err
		for i, err := range ask(at) {
			if err == nil || strings.Contains(err.Error(), "rpc error") || !strings.Contains(err.Error(), c.want) || status.Code(err) != status.Code(c.err) {
				t.Errorf("question %d: %v, want %s", i, err, c.want)
			}
		}
	}
	g.Stop()
	for i, err := range ask(at) {
		if got := code(err); got != cli.ExitUnreachable {
			t.Errorf("nobody there, question %d: exit code %d: %v", i, got, err)
		}
	}
	for i, err := range ask(service{addr: at.addr, client: rpc.ClientConfig{Token: "t"}}) {
		if err == nil {
			t.Errorf("question %d: a token in the clear", i)
		}
	}
	if got := code(at.exit(fmt.Errorf("x: %w", work.ErrUnknown))); got != cli.ExitUnreachable {
		t.Errorf("an unknown outcome: %d", got)
	}
}
