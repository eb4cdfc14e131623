package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMutantsApply: each planted bug still fits the sources and parses, so that a
// change of the protocol does not silently drop one. "make mutants" plays them.
func TestMutantsApply(t *testing.T) {
	if len(mutants) < 25 {
		t.Errorf("only %d mutants", len(mutants))
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "protocol", "mutants.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.name] {
			t.Errorf("%s is there twice", m.name)
		}
		names[m.name] = true
		sources, err := m.apply(filepath.Join("..", "..", ".."))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		for file, src := range sources {
			if _, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
		if !strings.Contains(string(page), "| "+m.name+" | ") {
			t.Errorf("%s is not in docs/protocol/mutants.md: make mutants WRITE=1", m.name)
		}
	}
}
