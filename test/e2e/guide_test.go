package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// shellBlocks are the blocks of a page that begin with ```sh: commands that a test runs.
func shellBlocks(t *testing.T, page string) []string {
	t.Helper()
	return blocks(t, page, "sh")
}

func blocks(t *testing.T, page, language string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../docs/guide", page))
	must(t, err)
	var all []string
	for _, m := range regexp.MustCompile("(?ms)^ *```"+language+"\n(.*?)^ *```$").FindAllStringSubmatch(string(b), -1) {
		all = append(all, m[1])
	}
	return all
}

// runShell runs commands in dir, as a reader would type them.
func runShell(ctx context.Context, t *testing.T, dir, commands string) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-c", commands)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, commands, out)
	}
	return string(out)
}

// certificates runs the commands of the guide to certificates, and more with its function issue.
func certificates(ctx context.Context, t *testing.T, dir, more string) {
	t.Helper()
	all := shellBlocks(t, "certificates.md")
	if len(all) != 4 {
		t.Fatalf("%d blocks of commands, want 4", len(all))
	}
	runShell(ctx, t, dir, strings.Join(all, "\n")+"\n"+more)
}

// TestCommandsOfTheCertificateGuide: what the commands make is good for what the page says,
// and for nothing else.
func TestCommandsOfTheCertificateGuide(t *testing.T) {
	t.Parallel()
	ctx := within(t, time.Minute)
	dir := t.TempDir()
	certificates(ctx, t, dir, "")
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	must(t, err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatal("ca.crt has no certificate")
	}
	for _, c := range []struct {
		file, name string
		use        x509.ExtKeyUsage
		good       bool
	}{
		{"core-1.example", "core-1.example", x509.ExtKeyUsageServerAuth, true},
		{"core-1.example", "10.0.0.11", x509.ExtKeyUsageServerAuth, true},
		{"core-1.example", "collect-1.example", x509.ExtKeyUsageServerAuth, false},
		{"core-1.example", "core-1.example", x509.ExtKeyUsageClientAuth, false},
		{"operator.lightmetrics", "operator.lightmetrics", x509.ExtKeyUsageClientAuth, true},
		{"operator.lightmetrics", "operator.lightmetrics", x509.ExtKeyUsageServerAuth, false},
	} {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, c.file+".crt"), filepath.Join(dir, c.file+".key"))
		must(t, err)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: c.name, Roots: pool, KeyUsages: []x509.ExtKeyUsage{c.use}})
		if (err == nil) != c.good {
			t.Errorf("%s for %s, use %d: %v", c.file, c.name, c.use, err)
		}
	}
	for _, key := range []string{"ca.key", "core-1.example.key"} {
		info, err := os.Stat(filepath.Join(dir, key))
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", key, info.Mode())
		}
	}
}

// TestSettingsOfTheGuide: every file of the guide to several machines passes the check of the
// service that it is for, with the certificates and tokens that the guides' commands make.
func TestSettingsOfTheGuide(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*time.Minute)
	dir := t.TempDir()
	certificates(ctx, t, dir, "cp core-1.example.crt server.crt; cp core-1.example.key server.key")
	tokens := shellBlocks(t, "several-machines.md")
	if len(tokens) != 1 {
		t.Fatalf("%d blocks of commands, want 1", len(tokens))
	}
	hashes := map[string]string{}
	for line := range strings.Lines(runShell(ctx, t, dir, tokens[0])) {
		name, hash, _ := strings.Cut(strings.TrimSpace(line), " ")
		hashes["HASH-OF-"+name] = hash
	}
	checked := map[string]bool{}
	for _, block := range blocks(t, "several-machines.md", "yaml") {
		head, _, _ := strings.Cut(block, "\n")
		name := strings.TrimPrefix(head, "# ")
		for from, to := range hashes {
			block = strings.ReplaceAll(block, from, to)
		}
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(block, "/etc/lightmetrics", dir)), 0o600))
		service := strings.TrimSuffix(name, ".yaml")
		if service == "principals" {
			continue // the others name it
		}
		checked[service] = true
		if out, err := configCheck(service, filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	for _, service := range []string{"coordinator", "reconciler", "query", "ingest", "rollup", "agent"} {
		if !checked[service] {
			t.Errorf("the guide has no %s.yaml", service)
		}
	}
	for _, block := range blocks(t, "migrate-from-prometheus.md", "yaml") {
		file := filepath.Join(dir, "federate.yaml")
		must(t, os.WriteFile(file, []byte(block), 0o600))
		if out, err := configCheck("agent", file); err != nil {
			t.Errorf("federate: %v\n%s", err, out)
		}
	}
}
