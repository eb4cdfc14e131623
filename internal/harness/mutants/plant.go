package mutants

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// chosen is the variable of each changed package that has the name of the mutant.
const chosen = "plantedMutant"

const chosenFile = `package %s

import "os"

var ` + chosen + ` = os.Getenv("` + Variable + `")
`

// edit is a mutant with its place: the number makes the name of the changed copy.
type edit struct {
	Mutant
	number  int
	from    int // offset of Old in the file
	planted bool
}

// plant gives the changed sources by absolute path. Each changed function begins with
// a call of its changed copy, under the condition that its mutant is chosen.
func plant(dir string, list []Mutant) (map[string][]byte, error) {
	byFile, order := map[string][]*edit{}, []string{}
	names := map[string]bool{}
	for i, m := range list {
		if m.Name == "" || names[m.Name] {
			return nil, fmt.Errorf("mutant %d: the name %q is empty or taken", i, m.Name)
		}
		names[m.Name] = true
		path := filepath.Join(dir, m.File)
		if byFile[path] == nil {
			order = append(order, path)
		}
		byFile[path] = append(byFile[path], &edit{Mutant: m, number: i})
	}
	out := map[string][]byte{}
	for _, path := range order {
		src, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		changed, pkg, err := plantFile(src, byFile[path])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out[path] = changed
		out[filepath.Join(filepath.Dir(path), "planted_mutant.go")] = fmt.Appendf(nil, chosenFile, pkg)
	}
	return out, nil
}

// plantFile changes one source; pkg is the name of its package.
func plantFile(src []byte, edits []*edit) (changed []byte, pkg string, err error) {
	for _, e := range edits {
		// A text that is there twice would plant the bug in the wrong place as likely as in the right one.
		if n := bytes.Count(src, []byte(e.Old)); n != 1 {
			return nil, "", fmt.Errorf("mutant %q: the text to replace is there %d times: %q", e.Name, n, e.Old)
		}
		e.from = bytes.Index(src, []byte(e.Old))
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, "", err
	}
	text := source{src, func(p token.Pos) int { return fset.Position(p).Offset }}
	var head, copies bytes.Buffer
	at := 0
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		open, end := text.at(f.Body.Lbrace)+1, text.at(f.Body.Rbrace)
		for _, e := range edits {
			// A mutant must lie within one body: only bodies can be copied and chosen at run time.
			if e.from < open || e.from+len(e.Old) > end {
				continue
			}
			e.planted = true
			// The header is printed once, also for a function with several mutants.
			if at < open {
				head.Write(text.header(f, f.Name.Name, src[at:text.at(f.Pos())]))
				at = open
			}
			name := fmt.Sprintf("%s_mutant%d", f.Name.Name, e.number)
			head.WriteString(text.call(f, name, e.Name))
			copies.WriteByte('\n')
			copies.Write(text.header(f, name, nil))
			copies.Write(src[open:e.from])
			copies.WriteString(e.New)
			copies.Write(src[e.from+len(e.Old) : end])
			copies.WriteString("}\n")
		}
	}
	for _, e := range edits {
		if !e.planted {
			return nil, "", fmt.Errorf("mutant %q: the text to replace is not within the body of one function: %q", e.Name, e.Old)
		}
	}
	head.Write(src[at:])
	head.Write(copies.Bytes())
	return head.Bytes(), file.Name.Name, nil
}

// source is a file's text, and the offset of a position in it.
type source struct {
	text []byte
	at   func(token.Pos) int
}

func (s source) of(n ast.Node) string { return string(s.text[s.at(n.Pos()):s.at(n.End())]) }

// header prints a function up to its opening brace, under a name, with a name for each
// parameter: the call of the copy passes them on.
func (s source) header(f *ast.FuncDecl, name string, before []byte) []byte {
	b := bytes.NewBuffer(append([]byte(nil), before...))
	b.WriteString("func ")
	if f.Recv != nil {
		fmt.Fprintf(b, "(%s %s) ", receiver(f), s.of(f.Recv.List[0].Type))
	}
	b.WriteString(name)
	if f.Type.TypeParams != nil {
		b.WriteString(s.of(f.Type.TypeParams))
	}
	b.WriteByte('(')
	n := 0
	for i, p := range f.Type.Params.List {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strings.Join(parameters(p, &n), ", ") + " " + s.of(p.Type))
	}
	b.WriteString(") ")
	if f.Type.Results != nil {
		b.WriteString(s.of(f.Type.Results) + " ")
	}
	b.WriteByte('{')
	return b.Bytes()
}

// call passes a function's parameters on to its changed copy.
func (s source) call(f *ast.FuncDecl, name, mutant string) string {
	if f.Recv != nil {
		name = receiver(f) + "." + name
	}
	if f.Type.TypeParams != nil {
		var types []string
		for _, p := range f.Type.TypeParams.List {
			for _, n := range p.Names {
				types = append(types, n.Name)
			}
		}
		name += "[" + strings.Join(types, ", ") + "]"
	}
	var args []string
	n := 0
	for _, p := range f.Type.Params.List {
		args = append(args, parameters(p, &n)...)
		if _, variadic := p.Type.(*ast.Ellipsis); variadic {
			args[len(args)-1] += "..."
		}
	}
	call := name + "(" + strings.Join(args, ", ") + ")"
	if f.Type.Results != nil {
		return fmt.Sprintf(" if %s == %q { return %s };", chosen, mutant, call)
	}
	return fmt.Sprintf(" if %s == %q { %s; return };", chosen, mutant, call)
}

func receiver(f *ast.FuncDecl) string {
	if names := f.Recv.List[0].Names; len(names) > 0 && names[0].Name != "_" {
		return names[0].Name
	}
	return "mutantReceiver"
}

// parameters names the parameters of a field; n counts those that have no name.
func parameters(p *ast.Field, n *int) []string {
	var names []string
	for _, id := range p.Names {
		names = append(names, id.Name)
	}
	if len(names) == 0 {
		names = []string{"_"}
	}
	for i, name := range names {
		if name == "_" {
			names[i] = fmt.Sprintf("mutantParameter%d", *n)
			*n++
		}
	}
	return names
}
