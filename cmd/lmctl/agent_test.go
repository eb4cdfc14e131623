package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
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

// TestAgentStatusNamesTheRangeMet: of a parked batch the table names the accepted one, if it has other numbers.
func TestAgentStatusNamesTheRangeMet(t *testing.T) {
	first, last := uint64(5), uint64(14)
	st := agent.Status{Parked: []queue.HeldBatch{{ID: "x"}, {ID: "y", HoldReason: queue.HoldReason{AcceptedSeqStart: &first, AcceptedSeqEnd: &last}}}}
	rows := statusTable(st).rows
	if got := fmt.Sprint(rows[len(rows)-2:]); got != "[[parked conflict x] [parked conflict y, which meets the accepted batch 5-14]]" {
		t.Error(got)
	}
}

// TestAgentOverTLS: the context's certificates are those of an agent behind https, variables win
// over them, and a token goes to no other machine without TLS, nor along a redirect.
func TestAgentOverTLS(t *testing.T) {
	var tokens []string
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens = append(tokens, r.Header.Get("Authorization"))
		if r.Method == http.MethodPost {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return
		}
		_, _ = io.WriteString(w, "{}")
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LMCTL_CONFIG", filepath.Join(dir, "lmctl.yaml"))
	t.Setenv(tokenVariable, "secret")
	ask := func(want int, args ...string) {
		t.Helper()
		if out, code := command(t, agentCommand, append([]string{"agent"}, args...)...); code != want {
			t.Errorf("%q: exit status %d, want %d: %s", args, code, want, out)
		}
	}
	ask(cli.ExitUnreachable, "status", "--addr", srv.URL)
	if out, code := command(t, contextCommand, "context", "add", "prod", "--agent", srv.URL, "--ca-file", ca); code != cli.ExitOK {
		t.Fatalf("context add: %d %s", code, out)
	}
	ask(cli.ExitOK, "status")
	ask(cli.ExitOK, "status", "--addr", srv.URL)
	ask(cli.ExitFailed, "accept-existing", "x")
	if len(tokens) != 3 || tokens[0] != "Bearer secret" || tokens[2] != "Bearer secret" {
		t.Errorf("requests with %q", tokens)
	}
	t.Setenv("LMCTL_SERVER_NAME", "another.example")
	ask(cli.ExitUnreachable, "status")
	t.Setenv("LMCTL_SERVER_NAME", "")
	t.Setenv("LMCTL_CA_FILE", filepath.Join(dir, "none.pem"))
	ask(cli.ExitUsage, "status")
	ask(cli.ExitUsage, "status", "--addr", "http://192.0.2.1:4320")
	ask(cli.ExitUsage, "status", "--addr", "192.0.2.1:4320")
	if len(tokens) != 3 {
		t.Errorf("requests with %q", tokens)
	}
}

// TestAgentStatusShowsTheList: which list of collectors is in use, since when, and when the agent may go back.
func TestAgentStatusShowsTheList(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	steady, try := since.Add(time.Minute), since.Add(3*time.Minute)
	st := agent.Status{Sender: send.Status{List: send.Fallback, ListSince: since, Return: &send.ReturnStatus{SteadySince: &steady, TryAt: &try},
		Collectors: []send.CollectorStatus{{Address: "home:1", List: send.Preferred, State: send.Standby}, {Address: "away:1", List: send.Fallback, State: send.Connected}}}}
	var out bytes.Buffer
	if err := new(format).write(&out, st, statusTable(st)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"fallback, since 2026-01-02T03:04:05Z", "answers since 2026-01-02T03:05:05Z", "after 2026-01-02T03:07:05Z", "fallback, connected"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
