package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// together are packages in which every method stands in the file of its type, so that a state
// machine can be read alone and no type grows over a whole directory.
const together = "services/rollup"

func TestMethodsStandWithTheirType(t *testing.T) {
	packages := 0
	for _, p := range list(t) {
		if !within(p.path(), together) {
			continue
		}
		packages++
		fset := token.NewFileSet()
		var files []*ast.File
		for _, f := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, f), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		for _, m := range strayMethods(files) {
			t.Errorf("%s: method %s of %s, which another file declares", fset.Position(m.Pos()), m.Name.Name, receiver(m))
		}
	}
	if packages < 10 {
		t.Fatalf("read only %d packages", packages)
	}
}

// strayMethods are those in another file of the package than their type.
func strayMethods(files []*ast.File) (stray []*ast.FuncDecl) {
	for _, file := range files {
		declared := map[string]bool{}
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				for _, s := range g.Specs {
					if ts, ok := s.(*ast.TypeSpec); ok {
						declared[ts.Name.Name] = true
					}
				}
			}
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && !declared[receiver(f)] {
				stray = append(stray, f)
			}
		}
	}
	return stray
}

// receiver is the name of a method's type.
func receiver(f *ast.FuncDecl) string {
	x := f.Recv.List[0].Type
	for {
		switch t := x.(type) {
		case *ast.StarExpr:
			x = t.X
		case *ast.IndexExpr:
			x = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

func TestStrayMethodsAreFound(t *testing.T) {
	fset := token.NewFileSet()
	var files []*ast.File
	for name, src := range map[string]string{
		"a.go": "package x\ntype T struct{}\nfunc (T) mine() {}\ntype G[E any] struct{}\nfunc (*G[E]) mine() {}",
		"b.go": "package x\nfunc (t *T) stray() {}",
	} {
		f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	if got := strayMethods(files); len(got) != 1 || got[0].Name.Name != "stray" {
		t.Errorf("found %d", len(got))
	}
}
