package lint

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
	framev1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/frame/v1"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

var update = flag.Bool("update", false, "write the list of what is public")

// TestPublicAPI: what the public packages export, and the fields and methods of the
// services, are as testdata/api lists them. docs/guide/client.md names these packages.
// "go test ./internal/lint -run TestPublicAPI -update" lists them again: then the diff
// shows what users' programs will see.
func TestPublicAPI(t *testing.T) {
	got := map[string]string{"proto": protoAPI()}
	for _, dir := range []string{"client", "pkg/frame", "pkg/identity", "pkg/series"} {
		got[filepath.Base(dir)] = goAPI(t, filepath.Join(root, dir))
	}
	for name, text := range got {
		file := filepath.Join("testdata", "api", name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != text {
			t.Errorf("the public API of %s has changed: %s\nif that is meant, run: go test ./internal/lint -run TestPublicAPI -update", name, firstDifference(string(want), text))
		}
	}
}

// firstDifference is the first line that only one of both has.
func firstDifference(was, is string) string {
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	for _, l := range a {
		if !slices.Contains(b, l) {
			return "was " + l
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			return "is new: " + l
		}
	}
	return "the order of its lines"
}

// goAPI lists the exported declarations of a package, without bodies and comments.
func goAPI(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var out []string
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(f)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				fn.Body = nil
			}
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
				continue
			}
			var b bytes.Buffer
			if err := printer.Fprint(&b, fset, d); err != nil {
				t.Fatal(err)
			}
			out = append(out, withoutBlankLines(b.String()))
		}
	}
	if len(out) < 5 {
		t.Fatalf("%s has %d declarations", dir, len(out))
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + "\n"
}

func withoutBlankLines(s string) string {
	var lines []string
	for l := range strings.Lines(s) {
		if l = strings.TrimRight(l, " \n"); l != "" {
			lines = append(lines, strings.Join(strings.Fields(l), " "))
		}
	}
	return strings.Join(lines, "\n")
}

// protoFiles are the contracts of all services. TestEveryProtoIsListed finds one that is missing.
var protoFiles = []protoreflect.FileDescriptor{
	coordinatorv1.File_lightmetrics_coordinator_v1_identity_proto, coordinatorv1.File_lightmetrics_coordinator_v1_ownership_proto, coordinatorv1.File_lightmetrics_coordinator_v1_refs_proto,
	coordinatorv1.File_lightmetrics_coordinator_v1_work_proto, framev1.File_lightmetrics_frame_v1_batch_proto,
	ingestv1.File_lightmetrics_ingest_v1_ingest_proto, journalv1.File_lightmetrics_journal_v1_journal_proto, queryv1.File_lightmetrics_query_v1_query_proto, queryv1.File_lightmetrics_query_v1_region_proto,
	reconcilerv1.File_lightmetrics_reconciler_v1_reconciler_proto,
}

// TestEveryProtoIsListed: a contract that is not in protoFiles could change unseen.
func TestEveryProtoIsListed(t *testing.T) {
	listed := map[string]bool{}
	for _, f := range protoFiles {
		listed[f.Path()] = true
	}
	dir := filepath.Join(root, "proto")
	found, err := filepath.Glob(filepath.Join(dir, "lightmetrics", "*", "v1", "*.proto"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no proto files below %s: %v", dir, err)
	}
	for _, name := range found {
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		if !listed[filepath.ToSlash(rel)] {
			t.Errorf("%s is not in protoFiles: add it, then run go test ./internal/lint -run TestPublicAPI -update", rel)
		}
	}
}

// protoAPI lists every field by its number and type, every value and every method.
func protoAPI() string {
	var out []string
	for _, f := range protoFiles {
		for i := range f.Messages().Len() {
			out = append(out, messageAPI(f.Messages().Get(i))...)
		}
		for i := range f.Enums().Len() {
			out = append(out, enumAPI(f.Enums().Get(i))...)
		}
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for k := range s.Methods().Len() {
				m := s.Methods().Get(k)
				out = append(out, fmt.Sprintf("rpc %s(stream=%t %s) stream=%t %s", m.FullName(), m.IsStreamingClient(), m.Input().FullName(), m.IsStreamingServer(), m.Output().FullName()))
			}
		}
	}
	lines := map[string]bool{}
	for _, l := range out {
		lines[l] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(lines)), "\n") + "\n"
}

func messageAPI(m protoreflect.MessageDescriptor) []string {
	var out []string
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		of := f.Kind().String()
		switch {
		case f.Message() != nil:
			of = string(f.Message().FullName())
		case f.Enum() != nil:
			of = string(f.Enum().FullName())
		}
		out = append(out, fmt.Sprintf("field %s = %d %s %s", f.FullName(), f.Number(), f.Cardinality(), of))
	}
	for i := range m.Messages().Len() {
		out = append(out, messageAPI(m.Messages().Get(i))...)
	}
	for i := range m.Enums().Len() {
		out = append(out, enumAPI(m.Enums().Get(i))...)
	}
	return out
}

func enumAPI(e protoreflect.EnumDescriptor) []string {
	var out []string
	for i := range e.Values().Len() {
		v := e.Values().Get(i)
		out = append(out, fmt.Sprintf("value %s.%s = %d", e.FullName(), v.Name(), v.Number()))
	}
	return out
}
