package all

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReloadOfBadSettingsWritesNothing: a member that ends later is started with what is
// written, so settings that a service refuses must not get there.
func TestReloadOfBadSettingsWritesNothing(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "service")
	check := "#!/bin/sh\nif grep -q nonsense \"$3\"; then echo \"error: $3: nonsense\" >&2; exit 2; fi\n"
	if err := os.WriteFile(bin, []byte(check), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "all.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := DefaultConfig()
	cfg.DataDir = dir
	creds, err := openCredentials(dir)
	if err != nil {
		t.Fatal(err)
	}
	write("rollup: {shards: 4}\n")
	p, err := readPlan(cfg, creds, file, nil)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := p.write(p.dir("settings"))
	if err != nil {
		t.Fatal(err)
	}
	read := func() string {
		t.Helper()
		b, err := os.ReadFile(paths[rollup])
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before := read()
	g := newGroup(nil, func(string, string, error) {})
	for text, want := range map[string]string{
		"rollup: {nonsense: 1}\n": "rollup: " + file + ": nonsense",
		"rolup: {shards: 4}\n":    "rolup",
		"rollup: {shards: [\n":    file,
	} {
		write(text)
		if err := reload(t.Context(), p, g, bin, file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
		if read() != before {
			t.Errorf("%q was written", text)
		}
	}
	write("rollup: {shards: 8}\n")
	if err := reload(t.Context(), p, g, bin, file); err != nil || !strings.Contains(read(), "shards: 8") {
		t.Errorf("good settings: %v\n%s", err, read())
	}
}
