package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// TestErrorsAreLoggedByOneKey: "error", so that one query of a log store finds all.
func TestErrorsAreLoggedByOneKey(t *testing.T) {
	calls := 0
	files(t, func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); !ok || !isLog[sel.Sel.Name] {
				return true
			}
			calls++
			for _, arg := range call.Args {
				if lit, ok := arg.(*ast.BasicLit); ok && lit.Value == `"err"` {
					t.Errorf("%s: the key of an error is \"error\"", fset.Position(lit.Pos()))
				}
			}
			return true
		})
	}, ".go")
	if calls < 50 {
		t.Errorf("found only %d calls of a log", calls)
	}
}

var isLog = map[string]bool{"Debug": true, "Info": true, "Warn": true, "Error": true, "Log": true, "LogAttrs": true}
