package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// TestPagesAreCurrent: what is checked in is what this program writes.
func TestPagesAreCurrent(t *testing.T) {
	for _, p := range pages {
		want, err := p.make(root)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(root, p.path))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not current: go run ./internal/docgen", p.path)
		}
	}
}

// TestReferenceHasEveryMethod: each path of the protos and each route of the access table is on the page.
func TestReferenceHasEveryMethod(t *testing.T) {
	page, err := httpPage(root)
	if err != nil {
		t.Fatal(err)
	}
	a, err := readAccess(root)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for service, routes := range a.routes {
		for pattern := range routes {
			n++
			if !strings.Contains(string(page), "`"+strings.TrimSpace(pattern)) {
				t.Errorf("%s of %s is not on the page: give the service a row in httpServices of http.go", pattern, service)
			}
		}
	}
	if n < 15 {
		t.Errorf("only %d routes", n)
	}
	for _, link := range strings.Split(string(page), "](#")[1:] {
		anchor, _, _ := strings.Cut(link, ")")
		if !strings.Contains(strings.ToLower(strings.ReplaceAll(string(page), " ", "-")), "###-"+anchor+"\n") {
			t.Errorf("no section %s", anchor)
		}
	}
}

// TestCostsFollowThePrices: the table is computed, not written.
func TestCostsFollowThePrices(t *testing.T) {
	all := []request{{service: "collector", per: "batch", writes: 2, reads: 1}, {service: "query node", per: "hour", reads: 100}}
	cheap, err := costTable(prices{write: 1e-6, read: 1e-7}, all)
	if err != nil {
		t.Fatal(err)
	}
	// 100 agents: 8.64 M batches at 2.1e-6, 72,000 reads at 1e-7.
	if want := "| 100 agents, defaults | 30 s | 8.64 M | 18.14 | 0.01 | 18.15 |\n"; !strings.Contains(cheap, want) {
		t.Errorf("want %sin\n%s", want, cheap)
	}
	if _, err := costTable(prices{}, []request{{per: "moon"}}); err == nil {
		t.Error("an unknown unit is taken")
	}
}
