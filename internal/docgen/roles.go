package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
)

// access is the table of test/access, which that test holds against every running service.
type access struct {
	methods map[string]string            // roles by full gRPC method
	admin   map[string]string            // roles by pattern, of every service
	routes  map[string]map[string]string // the same, by service
}

// readAccess reads the maps of the table's source: a test's file can't be imported.
func readAccess(root string) (*access, error) {
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "test/access/table_test.go"), nil, 0)
	if err != nil {
		return nil, err
	}
	a := &access{routes: map[string]map[string]string{}}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		v := g.Specs[0].(*ast.ValueSpec)
		lit, ok := v.Values[0].(*ast.CompositeLit)
		if !ok {
			continue
		}
		switch v.Names[0].Name {
		case "methods":
			a.methods, err = roles(lit)
		case "admin":
			a.admin, err = roles(lit)
		case "routes":
			for _, e := range lit.Elts {
				kv := e.(*ast.KeyValueExpr)
				service, err := text(kv.Key)
				if err != nil {
					return nil, err
				}
				if a.routes[service], err = roles(kv.Value.(*ast.CompositeLit)); err != nil {
					return nil, err
				}
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if len(a.methods) == 0 || len(a.admin) == 0 || len(a.routes) == 0 {
		return nil, fmt.Errorf("the table of test/access has no methods, admin or routes")
	}
	return a, nil
}

// roles reads a map of texts.
func roles(lit *ast.CompositeLit) (map[string]string, error) {
	m := map[string]string{}
	for _, e := range lit.Elts {
		kv := e.(*ast.KeyValueExpr)
		k, err := text(kv.Key)
		if err != nil {
			return nil, err
		}
		if m[k], err = text(kv.Value); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// text is a string literal, or the constant open.
func text(e ast.Expr) (string, error) {
	switch x := e.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(x.Value)
	case *ast.Ident:
		return x.Name, nil
	}
	return "", fmt.Errorf("the table of test/access has an entry that is no text")
}

// of gives the roles of a method by its operation id, Service_Method.
func (a *access) of(operation string) (string, error) {
	service, method, _ := strings.Cut(operation, "_")
	for full, roles := range a.methods {
		if strings.HasSuffix(full, "."+service+"/"+method) {
			return roles, nil
		}
	}
	return "", fmt.Errorf("%s has no roles in test/access", operation)
}

// names puts roles into words.
func names(roles string) string {
	if roles == "open" {
		return "everybody"
	}
	return strings.Join(strings.Fields(roles), ", ")
}
