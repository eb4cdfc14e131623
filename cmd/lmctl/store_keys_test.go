package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/objectstore/objectstoretest"
)

func TestStoreKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(strings.Repeat("5", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := objectstore.DefaultConfig()
	c.Dir, c.Listen, c.AdminListen = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
	c.Users = []objectstore.User{{Name: "u", AccessKeyID: "U", Secret: config.Secret("0123456789")}}
	c.Buckets = []string{"metrics"}
	c.Encryption.Keys, c.Encryption.Current = []objectstore.EncryptionKey{{ID: "first", File: file}}, "first"
	svc := objectstoretest.Start(t, c)
	out, code := command(t, storeCommand, "store", "keys", "--addr", svc.AdminAddr())
	if code != cli.ExitOK {
		t.Fatalf("exit %d: %s", code, out)
	}
	for _, want := range []string{"first", "current", "to be written again"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "5555") {
		t.Error("the secret is printed")
	}
	if out, code := command(t, storeCommand, "store", "quota", "metrics", "--bytes", "2MiB", "--objects", "7", "--addr", svc.AdminAddr()); code != cli.ExitOK {
		t.Errorf("quota: exit %d: %s", code, out)
	}
	if out, code := command(t, storeCommand, "store", "usage", "--addr", svc.AdminAddr()); code != cli.ExitOK || !strings.Contains(out, "2097152") || !strings.Contains(out, "metrics") {
		t.Errorf("usage: exit %d: %s", code, out)
	}
	t.Setenv(storeVariable, svc.AdminAddr())
	for _, args := range [][]string{{"keys"}, {"usage"}, {"quota", "metrics", "--objects", "7"}} {
		if out, code := command(t, storeCommand, append([]string{"store"}, args...)...); code != cli.ExitOK {
			t.Errorf("%v with %s: exit %d: %s", args, storeVariable, code, out)
		}
	}
	if _, code := command(t, storeCommand, "store", "quota", "nobodys", "--bytes", "2MiB", "--addr", svc.AdminAddr()); code != cli.ExitFailed {
		t.Errorf("the quota of no bucket: exit %d", code)
	}
	if _, code := command(t, storeCommand, "store", "keys", "--addr", "127.0.0.1:1"); code != cli.ExitUnreachable {
		t.Errorf("nobody there: exit %d", code)
	}
}
