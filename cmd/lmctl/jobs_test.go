package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
)

// serveWork gives the address of a coordinator's pending work over memory.
func serveWork(t *testing.T, m *mem.Store) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	coordinator.NewPendingServer(m, m).Register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return l.Addr().String()
}

// command runs a command as lmctl does and gives its output and exit code.
func command(t *testing.T, make func(*format) *cobra.Command, args ...string) (string, int) {
	t.Helper()
	out, _, code := commandNotes(t, make, args...)
	return out, code
}

// commandNotes is command with what was said beside the output.
func commandNotes(t *testing.T, make func(*format) *cobra.Command, args ...string) (_, notes string, _ int) {
	t.Helper()
	var out format
	root := &cobra.Command{Use: "lmctl", SilenceUsage: true, SilenceErrors: true}
	root.PersistentFlags().VarP(&out, "output", "o", "")
	root.AddCommand(make(&out))
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	err := cli.Execute(t.Context(), root)
	var e *cli.ExitError
	switch {
	case err == nil:
		return stdout.String(), stderr.String(), cli.ExitOK
	case errors.As(err, &e):
		return stdout.String() + e.Error(), stderr.String(), e.Code
	}
	return stdout.String() + err.Error(), stderr.String(), cli.ExitFailed
}

func TestJobs(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m := mem.New(func() time.Time { return now }, mem.Options{})
	ctx := context.Background()
	addr := serveWork(t, m)
	row := func(log string, n uint64) work.Row {
		return work.Row{Key: work.Key{Log: log, Number: n}, Topic: "snapshot-0001", Body: []byte("x")}
	}
	c := work.Claim{Owner: "w1", Hold: time.Minute}
	running, err := m.Create(ctx, row("rollup/0001/2026-01-01T15", 3), &c)
	if err != nil {
		t.Fatal(err)
	}
	if running, err = m.Checkpoint(ctx, running, []byte(`{"parts_read":2}`), time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(ctx, row("reprocess/x", 1), nil); err != nil {
		t.Fatal(err)
	}
	out, code := command(t, jobsCommand, "jobs", "list", "--addr", addr, "-o", "json")
	var views []jobView
	if err := json.Unmarshal([]byte(out), &views); err != nil || code != cli.ExitOK || len(views) != 2 {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	if v := views[1]; v.Log != "rollup/0001/2026-01-01T15" || v.Number != 3 || v.Status != "running" || v.Owner != "w1" || views[0].Status != "waiting" {
		t.Fatalf("listed %+v", views)
	}
	if out, _ = command(t, jobsCommand, "jobs", "list", "--addr", addr, "--log", "rollup"); !strings.Contains(out, `{"parts_read":2}`) || strings.Contains(out, "reprocess/x") {
		t.Fatalf("rollup jobs:\n%s", out)
	}
	if out, code = command(t, jobsCommand, "jobs", "cancel", "rollup/0001/2026-01-01T15", "3", "--addr", addr); code != cli.ExitOK {
		t.Fatalf("cancel: exit %d: %s", code, out)
	}
	if _, err := m.Checkpoint(ctx, running, nil, time.Minute); !errors.Is(err, work.ErrMoved) {
		t.Fatalf("the worker of a cancelled job continues: %v", err)
	}
	for what, args := range map[string]struct {
		args []string
		code int
	}{
		"absent":      {[]string{"jobs", "cancel", "rollup/0001/2026-01-01T15", "3", "--addr", addr}, cli.ExitFailed},
		"not a log":   {[]string{"jobs", "cancel", "a b", "3", "--addr", addr}, cli.ExitUsage},
		"no number":   {[]string{"jobs", "cancel", "a", "three", "--addr", addr}, cli.ExitUsage},
		"unreachable": {[]string{"jobs", "list", "--addr", "127.0.0.1:1"}, cli.ExitUnreachable},
	} {
		if out, code := command(t, jobsCommand, args.args...); code != args.code {
			t.Errorf("%s: exit %d, want %d: %s", what, code, args.code, out)
		}
	}
	// Five attempts without a checkpoint, and nobody at it.
	r, err := m.Get(ctx, work.Key{Log: "reprocess/x", Number: 1})
	for range work.DefaultMaxAttempts {
		if err == nil {
			r, err = m.Claim(ctx, r, work.Claim{Owner: "w2", Hold: time.Minute})
		}
		if err == nil {
			r, err = m.Release(ctx, r, false)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, code = command(t, jobsCommand, "jobs", "list", "--addr", addr); code != cli.ExitFindings || !strings.Contains(out, "stuck") {
		t.Fatalf("exit %d: %s", code, out)
	}
}

func TestJobsDeadLetters(t *testing.T) {
	m := mem.New(func() time.Time { return time.Unix(1, 0) }, mem.Options{})
	addr := serveWork(t, m)
	if err := m.Send(t.Context(), "snapshot-0001", []byte(`{"shard":1}`), work.SendOptions{}); err != nil {
		t.Fatal(err)
	}
	ms, err := m.Receive(t.Context(), "snapshot-0001", 1, time.Minute)
	if err != nil || m.Bury(t.Context(), ms[0], "no such hour") != nil {
		t.Fatal(err)
	}
	out, code := command(t, jobsCommand, "jobs", "dead", "snapshot-0001", "--addr", addr)
	if code != cli.ExitFindings || !strings.Contains(out, "no such hour") {
		t.Fatalf("exit %d: %s", code, out)
	}
	if out, code := command(t, jobsCommand, "jobs", "redrive", "snapshot-0001", ms[0].ID, "--addr", addr); code != cli.ExitOK {
		t.Fatalf("exit %d: %s", code, out)
	}
	if out, code := command(t, jobsCommand, "jobs", "dead", "snapshot-0001", "--addr", addr); code != cli.ExitOK {
		t.Fatalf("exit %d: %s", code, out)
	}
}

func TestJobsWatch(t *testing.T) {
	now := time.Unix(1, 0)
	m := mem.New(func() time.Time { return now }, mem.Options{})
	k := work.Key{Log: "log", Number: 1}
	r, err := m.Create(t.Context(), work.Row{Key: k, Topic: "jobs", Body: []byte("x")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	list := func() []work.Row {
		rows, err := allRows(t.Context(), m, "")
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	var events []string
	last := []work.Row(nil)
	poll := func() {
		now := list()
		for _, e := range differences(last, now) {
			events = append(events, e.Event+" "+e.Job.Status)
		}
		last = now
	}
	poll()
	poll()
	if r, err = m.Claim(t.Context(), r, work.Claim{Owner: "w", Hold: time.Minute}); err != nil {
		t.Fatal(err)
	}
	poll()
	now = now.Add(time.Hour) // its owner is silent
	poll()
	if err := m.Done(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	poll()
	if got := strings.Join(events, ", "); got != "pending waiting, changed running, changed expired, gone expired" {
		t.Fatalf("events: %s", got)
	}
	addr := serveWork(t, m)
	if out, code := command(t, jobsCommand, "jobs", "watch", "--addr", addr, "--until-empty"); code != cli.ExitOK || out != "" {
		t.Fatalf("exit %d: %s", code, out)
	}
}
