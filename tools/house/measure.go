package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"github.com/uudashr/gocognit"
	"golang.org/x/tools/go/packages"
)

// tooComplex is the cognitive complexity above which a function is counted.
const tooComplex = 30

// measures of one tree. Generated code is left out everywhere.
type measures struct {
	packages   int
	files      []int // lines of each file that is no test
	perPackage []int // such files of each package
	funcs      []int // lines of each function of those files
	inner      int   // comment lines inside function bodies
	testLines  int
	complex    []string // functions over tooComplex, with their place
	arrows     map[string]room
}

func measure(root string) (*measures, error) {
	ps, err := packages.Load(&packages.Config{
		Dir: root,
		Env: append(os.Environ(), "GOWORK=off"),
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes |
			packages.NeedTypesInfo | packages.NeedImports | packages.NeedModule,
	}, "./...")
	if err != nil {
		return nil, err
	}
	m := &measures{arrows: map[string]room{}}
	for _, p := range ps {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("%s: %w", p.PkgPath, p.Errors[0])
		}
		name := strings.TrimPrefix(strings.TrimPrefix(p.PkgPath, p.Module.Path), "/")
		if err := m.addTests(p.Dir); err != nil {
			return nil, err
		}
		if strings.HasPrefix(name, "proto/gen/") || len(p.Syntax) == 0 {
			continue
		}
		m.packages++
		m.perPackage = append(m.perPackage, len(p.Syntax))
		for _, f := range p.Syntax {
			m.addFile(p.Fset, f)
		}
		for _, s := range gocognit.ComplexityStatsForFiles(p.Syntax, p.Fset, p.TypesInfo, nil) {
			if s.Complexity > tooComplex {
				m.complex = append(m.complex, fmt.Sprintf("%d %s.%s", s.Complexity, name, s.FuncName))
			}
		}
		m.arrows[name] = arrowsOf(name, p)
	}
	return m, nil
}

// addTests counts the lines of the tests in a directory, which the loaded packages leave out.
func (m *measures) addTests(dir string) error {
	tests, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return err
	}
	for _, t := range tests {
		b, err := os.ReadFile(t)
		if err != nil {
			return err
		}
		m.testLines += bytes.Count(b, []byte("\n"))
	}
	return nil
}

// addFile counts one file and its functions.
func (m *measures) addFile(fs *token.FileSet, f *ast.File) {
	line := func(p token.Pos) int { return fs.Position(p).Line }
	m.files = append(m.files, fs.File(f.FileStart).LineCount())
	var bodies []*ast.BlockStmt
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		m.funcs = append(m.funcs, line(fn.End())-line(fn.Pos())+1)
		bodies = append(bodies, fn.Body)
	}
	for _, c := range f.Comments {
		for _, b := range bodies {
			// A comment behind a statement is not counted: it takes no line of its own.
			if b.Pos() < c.Pos() && c.End() < b.End() {
				m.inner += line(c.End()) - line(c.Pos()) + 1
			}
		}
	}
}
