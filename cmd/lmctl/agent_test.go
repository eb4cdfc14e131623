package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// TestAgentStatusExits3: an agent that no collector lets in ends the command with findings,
// which name the fault and what to do; the table says that the collector fails.
func TestAgentStatusExits3(t *testing.T) {
	c := &sendtest.Collector{Store: sendtest.NewStore(), OnHello: func(*ingestv1.Hello) (*ingestv1.Welcome, error) {
		return nil, rpc.Failure{Code: codes.PermissionDenied, Reason: rpc.ReasonForbidden, Message: "not yours"}.Err()
	}}
	addr, err := c.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	cfg := agent.DefaultConfig()
	cfg.AgentID, cfg.DataDir, cfg.HTTP.Listen, cfg.Send.Collectors = "a", t.TempDir(), "127.0.0.1:0", []string{addr}
	a, err := agent.New(cfg, agent.Deps{Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for deadline := time.Now().Add(time.Minute); len(a.Status().Alerts) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no alert: %+v", a.Status())
		}
	}
	var f format
	var out bytes.Buffer
	cmd := agentCommand(&f)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"status", "--addr", "http://" + a.HTTPAddr()})
	err = cmd.ExecuteContext(t.Context())
	var exit *cli.ExitError
	if !errors.As(err, &exit) || exit.Code != cli.ExitFindings || !strings.Contains(err.Error(), "PERMISSION_DENIED: ") || !strings.Contains(err.Error(), "principal's agents") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), "failing, PERMISSION_DENIED") {
		t.Errorf("the table:\n%s", &out)
	}
}
