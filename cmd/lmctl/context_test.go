package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// resolved runs resolve of a query service's flags.
func resolved(t *testing.T, args ...string) (*service, string, error) {
	t.Helper()
	s, cmd := &service{}, &cobra.Command{Use: "x"}
	s.flags(cmd, "127.0.0.1:4761", "query service")
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	addr, c, err := s.resolve()
	if err == nil {
		addr += " tls=" + map[bool]string{true: "on", false: "off"}[c.TLS.Enabled] + " token=" + c.Token.Reveal() + " ca=" + filepath.Base(c.TLS.CAFile)
	}
	return s, addr, err
}

// TestWhereServicesAre: flags win over variables, those over the context, that over the default.
func TestWhereServicesAre(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LMCTL_CONFIG", filepath.Join(dir, "sub", "lmctl.yaml"))
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("from-context\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect := func(want string, args ...string) {
		t.Helper()
		if _, got, err := resolved(t, args...); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", args, got, err, want)
		}
	}
	refused := func(want string, args ...string) {
		t.Helper()
		_, _, err := resolved(t, args...)
		if e := (*cli.ExitError)(nil); !errors.As(err, &e) || e.Code != cli.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want a usage error with %q", args, err, want)
		}
	}
	run := func(args ...string) (string, int) {
		return command(t, contextCommand, append([]string{"context"}, args...)...)
	}

	expect("127.0.0.1:4761 tls=off token= ca=.")
	if _, code := run("add", "prod", "--query", "grpcs://q:1", "--token-file", token, "--ca-file", "ca.pem"); code != cli.ExitOK {
		t.Fatalf("add: exit status %d", code)
	}
	if _, code := run("add", "lab", "--query", "lab:2"); code != cli.ExitOK {
		t.Fatalf("add: exit status %d", code)
	}
	if st, err := os.Stat(filepath.Join(dir, "sub", "lmctl.yaml")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	expect("q:1 tls=on token=from-context ca=ca.pem")
	if out, _ := run("list"); !strings.Contains(out, "*") || !strings.Contains(out, "lab:2") || strings.Contains(out, "from-context") {
		t.Errorf("list: %s", out)
	}
	t.Setenv("LMCTL_QUERY_ADDR", "https://env:3")
	t.Setenv("LMCTL_TOKEN", "from-environment")
	expect("env:3 tls=on token=from-environment ca=ca.pem")
	expect("flag:4 tls=on token=from-flag ca=flag.pem", "--addr", "grpcs://flag:4", "--client.token", "from-flag", "--client.tls.ca_file", "flag.pem")
	refused("without TLS", "--addr", "grpc://flag:4", "--client.tls.enabled")
	refused("have no effect", "--addr", "flag:4")
	refused("scheme", "--addr", "tcp://flag:4")
	refused("host:port", "--addr", "flag")
	t.Setenv("LMCTL_QUERY_ADDR", "")
	if _, code := run("use", "lab"); code != cli.ExitOK {
		t.Fatalf("use: exit status %d", code)
	}
	refused("a token needs", "--client.token=t")
	refused("a token needs", "--addr", "10.0.0.1:4", "--client.token=t")
	refused("a token needs", "--addr", "127.0.0.1.example:4", "--client.token=t")
	for _, here := range []string{"127.0.0.1:4", "[::1]:4", "localhost:4"} { // crosses no network
		expect(here+" tls=off token=t ca=.", "--addr", here, "--client.token=t")
	}
	t.Setenv("LMCTL_TOKEN", "")
	expect("lab:2 tls=off token= ca=.")
	t.Setenv("LMCTL_CONTEXT", "prod")
	expect("q:1 tls=on token=from-context ca=ca.pem")
	t.Setenv("LMCTL_CONTEXT", "nope")
	refused("no context")
	t.Setenv("LMCTL_CONTEXT", "")
	for _, args := range [][]string{{"use", "nope"}, {"remove", "nope"}, {"show", "nope"}, {"add", "a b"}, {"add", "c", "--query", "tcp://x:1"}} {
		if _, code := run(args...); code != cli.ExitUsage {
			t.Errorf("%q: exit status %d", args, code)
		}
	}
	if _, code := run("remove", "lab"); code != cli.ExitOK {
		t.Errorf("remove: exit status %d", code)
	}
	expect("127.0.0.1:4761 tls=off token= ca=.")
	if err := os.Chmod(filepath.Join(dir, "sub", "lmctl.yaml"), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, _, err := resolved(t); err == nil || !strings.Contains(err.Error(), "0600") {
		t.Errorf("a file that others read: %v", err)
	}
}

func TestUnknownTopicsAreRefused(t *testing.T) {
	for _, topic := range []string{"snapshots-0001", "snapshot", "snapshot-x", "snapshot-", "-0001", "rollup-0001", ""} {
		for _, args := range [][]string{{"jobs", "dead", topic}, {"jobs", "redrive", topic, "id"}} {
			if _, code := command(t, jobsCommand, args...); code != cli.ExitUsage {
				t.Errorf("%q: exit status %d", args, code)
			}
		}
	}
}

// TestQualifySaysACauseOnce: a store that is away is one cause, not one for each check.
func TestQualifySaysACauseOnce(t *testing.T) {
	away := func(op string) error {
		return &objstore.Error{Op: op, Key: "probe/" + op, Err: objstore.ErrUnavailable}
	}
	r := qualify.Report{}
	for _, c := range []string{"create", "race", "list"} {
		r.Rows = append(r.Rows, qualify.Row{Check: c, Status: qualify.Fail, Detail: away(c).Error(), Err: away(c)})
	}
	var details []string
	for _, row := range qualifyTable(r).rows {
		details = append(details, row[3])
	}
	if len(details) != 3 || !strings.Contains(details[0], objstore.ErrUnavailable.Error()) || details[1] != "as create" || details[2] != "as create" {
		t.Errorf("%q", details)
	}
}
