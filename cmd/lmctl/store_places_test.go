package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/objectstore/objectstoretest"
)

// TestStorePlaces: the commands about places answer a store that has some; one that is away is a finding, and an address where
// nobody listens has its own exit code.
func TestStorePlaces(t *testing.T) {
	root := t.TempDir()
	c := objectstore.DefaultConfig()
	c.Dir, c.Listen, c.AdminListen, c.Reserve, c.Buckets, c.AckCopies = filepath.Join(root, "main"), "127.0.0.1:0", "127.0.0.1:0", 0, []string{"metrics"}, 2
	c.Users = []objectstore.User{{Name: "u", AccessKeyID: "U", Secret: config.Secret("0123456789")}}
	for i := range 3 {
		p := objectstore.Place{Name: fmt.Sprint("drive", i), Dir: filepath.Join(root, fmt.Sprint(i))}
		c.Places = append(c.Places, p)
		if i == 2 {
			continue // not mounted
		}
		if err := os.Mkdir(p.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	svc := objectstoretest.Start(t, c)
	run := func(f format, args ...string) (string, int) {
		t.Helper()
		cmd := storeCommand(&f)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		var b bytes.Buffer
		cmd.SetOut(&b)
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		var exit *cli.ExitError
		switch {
		case err == nil:
			return b.String(), 0
		case errors.As(err, &exit):
			return b.String() + err.Error(), exit.Code
		}
		return b.String() + err.Error(), 1
	}
	t.Setenv(storeVariable, svc.AdminAddr())
	for _, w := range []struct {
		args string
		code int
		has  string
	}{
		{"drives", cli.ExitFindings, "drive2"}, {"heal", 0, "missing files"}, {"heal --now", 0, "dead letters"}, {"scrub", 0, "336h0m0s"}, {"scrub --now", 0, "files read"},
		{"policy", 0, "version"}, {"ledger", 0, "BODY"}, {"ledger --state durable --limit 5", 0, "BODY"}, {"ledger --queue", 0, "REASON"}, {"ledger --state none", 1, "state"},
		{"ledger --place drive0", 0, "BODY"}, {"dlq", 0, "ATTEMPTS"}, {"dlq --retry all", 0, ""}, {"dlq --drop " + strings.Repeat("0", 32), 1, "no dead letter"},
		{"places", cli.ExitFindings, "drive2"}, {"places drain drive0", 1, "too_few_places"}, {"places drain nobody", 1, "no_such_place"}, {"places lost drive2 --dry-run", 0, "0 bytes"},
		{"places lost drive0", 1, "still_there"}, {"places undrain drive0", 1, "wrong_state"}, {"places lost drive2", 1, "never used"},
		{"drives --addr 127.0.0.1:1", cli.ExitUnreachable, ""}, {"drives --addr ftp://x:1", cli.ExitUsage, ""},
	} {
		for _, f := range []format{"table", "json"} {
			out, code := run(f, strings.Fields(w.args)...)
			if code != w.code || f == "table" && !strings.Contains(out, w.has) {
				t.Errorf("store %s as %s: %d, want %d\n%s", w.args, f, code, w.code, out)
			}
		}
	}
}
