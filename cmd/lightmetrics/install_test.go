package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestGuidesNameBinariesThatAreBuilt: commands in the guides begin with what make build makes.
func TestGuidesNameBinariesThatAreBuilt(t *testing.T) {
	guides, err := filepath.Glob("../../docs/guide/*.md")
	if err != nil || len(guides) < 7 {
		t.Fatalf("%v, %v", guides, err)
	}
	other := regexp.MustCompile(`\blm-[a-z]+`)
	for _, g := range guides {
		b, err := os.ReadFile(g)
		if err != nil {
			t.Fatal(err)
		}
		if name := other.Find(b); name != nil {
			t.Errorf("%s names %s, which make build does not make", g, name)
		}
	}
}
