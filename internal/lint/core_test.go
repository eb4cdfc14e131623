package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// TestTheCoreIsDeterministic: no goroutines, and no clock or global randomness of
// its own, in the packages that a seeded scheduler replays.
func TestTheCoreIsDeterministic(t *testing.T) {
	seen, missing := 0, map[string]bool{}
	for _, name := range core {
		missing[name] = true
	}
	for name, files := range coreFiles {
		for _, f := range files {
			missing[name+"/"+f] = true
		}
	}
	for _, p := range list(t) {
		whole := missing[p.path()]
		delete(missing, p.path())
		for _, f := range p.GoFiles {
			if !whole && !missing[p.path()+"/"+f] {
				continue
			}
			delete(missing, p.path()+"/"+f)
			seen++
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, f), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range nondeterminism(file) {
				t.Errorf("%s: %s", fset.Position(at.pos), at.what)
			}
		}
	}
	for name := range missing {
		t.Errorf("%s is listed as core and is not there", name)
	}
	if seen < 10 {
		t.Fatalf("looked at only %d files", seen)
	}
}

type finding struct {
	pos  token.Pos
	what string
}

func nondeterminism(file *ast.File) []finding {
	var found []finding
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, finding{n.Pos(), "starts a goroutine"})
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if ok && x.Name == "time" {
				switch n.Sel.Name {
				case "Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick":
					found = append(found, finding{n.Pos(), "reads the clock: time." + n.Sel.Name})
				}
			}
		case *ast.ImportSpec:
			if v := n.Path.Value; v == `"math/rand"` || v == `"math/rand/v2"` || v == `"crypto/rand"` {
				found = append(found, finding{n.Pos(), "imports " + v})
			} else if v == `"golang.org/x/sync/errgroup"` {
				found = append(found, finding{n.Pos(), "starts goroutines by " + v})
			}
		}
		return true
	})
	return found
}

func TestNondeterminismIsFound(t *testing.T) {
	src := `package x
import ("time"; "crypto/rand"; "golang.org/x/sync/errgroup")
func f() { go f(); _ = time.Now(); _ = rand.Reader }`
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(nondeterminism(file)); got != 4 {
		t.Errorf("found %d, want 4", got)
	}
}
