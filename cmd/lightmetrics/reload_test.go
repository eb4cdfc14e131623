package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
)

// output is what a command writes, for tests that wait for a part of it.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) wait(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		o.mu.Lock()
		text := o.b.String()
		o.mu.Unlock()
		if strings.Contains(text, want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no %q in\n%s", want, text)
		}
	}
}

// TestHangUpGivesAnAgentOtherCollectors: SIGHUP has a running agent leave its collector for another one, with its batches.
func TestHangUpGivesAnAgentOtherCollectors(t *testing.T) {
	store, dir := sendtest.NewStore(), t.TempDir()
	start := func() (*sendtest.Collector, string) {
		c := &sendtest.Collector{Store: store}
		address, err := c.Start("")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Stop)
		return c, address
	}
	_, one := start()
	second, two := start()
	file := filepath.Join(dir, "agent.yaml")
	settings := func(collectors, fallback string) {
		t.Helper()
		text := fmt.Sprintf("agent: {agent_id: a, data_dir: %s, interval: 100ms, batch: {max_age: 200ms}, http: {listen: \"\"}, send: {collectors: [%s], fallback: [%s]}}\n", dir, collectors, fallback)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	accepted := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		list, _ := store.Accepted()
		if _, err := store.Wait(ctx, len(list)+3); err != nil {
			t.Fatal(err)
		}
	}
	settings(one, "")
	var out output
	cmd := agentCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs([]string{"--config", file})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	out.wait(t, "lightmetrics agent")
	accepted()
	settings(two, one)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	out.wait(t, "[agent.send.collectors agent.send.fallback]")
	out.wait(t, two)
	accepted()
	if len(second.Hellos()) != 1 {
		t.Errorf("%d streams to the other collector", len(second.Hellos()))
	}
}
