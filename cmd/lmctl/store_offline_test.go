package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// TestStoreCheckAndRepair: exit codes and output on a whole, a damaged and a repaired store.
func TestStoreCheckAndRepair(t *testing.T) {
	dir := t.TempDir()
	c := objectstore.DefaultConfig()
	c.Dir, c.Listen, c.AdminListen, c.Reserve, c.Buckets = dir, "127.0.0.1:0", "", 0, []string{"metrics"}
	c.Users = []objectstore.User{{Name: "u", AccessKeyID: "U", Secret: config.Secret("0123456789")}}
	svc, err := objectstore.New(c, objectstore.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	<-svc.Ready()
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, int) {
		t.Helper()
		out := format("json")
		cmd := storeCommand(&out)
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
			return b.String(), exit.Code
		}
		return b.String(), 1
	}
	if out, code := run("check", dir); code != 0 {
		t.Errorf("a whole store: %d %s", code, out)
	}
	if _, code := run("check", t.TempDir()); code != 1 {
		t.Errorf("a directory that is no store: %d", code)
	}
	if _, code := run("repair", filepath.Join(dir, "absent")); code != 1 {
		t.Errorf("a directory that is not there: %d", code)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	if err != nil || len(segments) != 1 {
		t.Fatal(segments, err)
	}
	whole, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	b := bytes.Clone(whole)
	b[50] ^= 1
	if err := os.WriteFile(segments[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	var v objectstore.Verified
	out, code := run("check", dir)
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != cli.ExitFindings || len(v.Damages) != 1 || v.Damages[0].Offset != 40 {
		t.Errorf("a damaged store: %d %s", code, out)
	}
	if now, err := os.ReadFile(segments[0]); err != nil || !bytes.Equal(now, b) {
		t.Error("check has changed the segment")
	}
	if out, code := run("repair", dir); code != 0 {
		t.Errorf("repair: %d %s", code, out)
	}
	if out, code := run("check", dir); code != 0 {
		t.Errorf("a repaired store: %d %s", code, out)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "quarantine", "*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("quarantined: %v, %v", kept, err)
	}
	if q, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(q, b) {
		t.Error("the damaged segment is not what it was")
	}
}
