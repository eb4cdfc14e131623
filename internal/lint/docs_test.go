package lint

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]+)\(`)
	namedTest = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)`")
	mdLink    = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	root      = filepath.Join("..", "..")
)

// files calls fn for every file of the project with one of the suffixes.
func files(t *testing.T, fn func(path string, text string), suffixes ...string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			// What is built lies in bin and build of the root; a package may have such a name, too.
			switch name := d.Name(); {
			case name == ".git", name == "node_modules", name == "gen", path == filepath.Join(root, "bin"), path == filepath.Join(root, "build"):
				return filepath.SkipDir
			}
			return nil
		}
		for _, s := range suffixes {
			if strings.HasSuffix(path, s) {
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				fn(path, string(b))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDocsNameTestsThatExist: a test that a document cites as its proof must be there.
func TestDocsNameTestsThatExist(t *testing.T) {
	have := map[string]bool{}
	files(t, func(_, text string) {
		for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
			have[m[1]] = true
		}
	}, "_test.go")
	cited := 0
	files(t, func(path, text string) {
		for _, m := range namedTest.FindAllStringSubmatch(text, -1) {
			cited++
			if !have[m[1]] {
				t.Errorf("%s cites %s, which does not exist", path, m[1])
			}
		}
	}, ".md")
	if cited < 10 {
		t.Errorf("found only %d cited tests", cited)
	}
}

// TestLinksOfDocsLeadSomewhere: relative links point at files.
func TestLinksOfDocsLeadSomewhere(t *testing.T) {
	links := 0
	files(t, func(path, text string) {
		for _, m := range mdLink.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
			}
		}
	}, ".md")
	if links < 10 {
		t.Errorf("found only %d links", links)
	}
}
