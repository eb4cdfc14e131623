package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const guide = "../docs/guide/client.md"

// block gives the first block of a language behind a line of the guide.
func block(t *testing.T, behind, language string) string {
	t.Helper()
	page, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), behind)
	if !ok {
		t.Fatalf("%s has no %q", guide, behind)
	}
	_, rest, ok = strings.Cut(rest, "\n```"+language+"\n")
	text, _, closed := strings.Cut(rest, "\n```\n")
	if !ok || !closed {
		t.Fatalf("%s has no block of %s behind %q", guide, language, behind)
	}
	return text + "\n"
}

// TestGuideShowsTheProgram: the program of the guide is examples/send, byte for byte, and
// sends what it says.
func TestGuideShowsTheProgram(t *testing.T) {
	code, err := os.ReadFile("examples/send/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code2, _ := strings.Cut(string(code), "\n") // its comment is about the page
	if got := block(t, "## A program", "go"); got != code2 {
		t.Errorf("%s shows\n%s\nexamples/send/main.go is\n%s", guide, got, code2)
	}
	program := filepath.Join(t.TempDir(), "send")
	if out, err := exec.Command("go", "build", "-o", program, "./examples/send").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(bound(t), program, collector)
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	if err != nil || string(out) != "accepted by a collector: true\n" {
		t.Fatalf("%q, %v", out, err)
	}
	a, err := ask(bound(t), `shop_orders_total{agent="shop-1"}`)
	if err != nil || len(a.Series) != 1 || a.Series[0].Points[0].Value != 3 {
		t.Errorf("read back: %+v, %v", a, err)
	}
}
