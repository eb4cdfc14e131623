package lint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryPageIsInTheIndex: docs/README.md links every page, or the README.md of its
// directory does, to which docs/README.md links.
func TestEveryPageIsInTheIndex(t *testing.T) {
	docs := filepath.Join(root, "docs")
	linked := linkedFrom(t, filepath.Join(docs, "README.md"))
	pages := 0
	files(t, func(path, _ string) {
		if rel, err := filepath.Rel(docs, path); err != nil || strings.HasPrefix(rel, "..") || rel == "README.md" {
			return
		}
		pages++
		if linked[path] {
			return
		}
		index := filepath.Join(filepath.Dir(path), "README.md")
		if !linked[index] || !linkedFrom(t, index)[path] {
			t.Errorf("%s is in no index: add it to docs/README.md", path)
		}
	}, ".md")
	if pages < 40 {
		t.Errorf("found only %d pages", pages)
	}
}

// linkedFrom gives the files that a page links to.
func linkedFrom(t *testing.T, page string) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	to := map[string]bool{}
	for _, m := range mdLink.FindAllStringSubmatch(string(b), -1) {
		to[filepath.Join(filepath.Dir(page), m[1])] = true
	}
	return to
}
