// Package recordtest keeps one file of every version of a kind of stored record, and reads all of
// them: what a release has written, every later release reads.
package recordtest

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/record"
)

var update = flag.Bool("update", false, "write the files of new kinds; those that are there stay as they are")

// Kind is one kind of record: an example for its first file, and its reader, which gives
// what this release would write of it.
type Kind struct {
	record.Kind
	Example func() []byte
	// With are examples that have a field which came after the first file of their version, by the field's name. Their
	// files are <schema>+<field>.json.
	With map[string]func() []byte
	Read func(b []byte) ([]byte, error)
}

// Plain is a kind whose records are read as they are, with v for an example.
func Plain[T any](k record.Kind, v T) Kind {
	return Kind{Kind: k, Example: func() []byte { return k.Marshal(v) }, Read: ReadPlain[T](k)}
}

// ReadPlain reads a record as it is.
func ReadPlain[T any](k record.Kind) func([]byte) ([]byte, error) {
	return func(b []byte) ([]byte, error) {
		var v T
		err := k.Unmarshal(b, &v)
		return k.Marshal(v), err
	}
}

// Run checks the kinds against the files in testdata of the test that calls it.
func Run(t *testing.T, kinds []Kind) {
	t.Run("every version is read", func(t *testing.T) { readVersions(t, kinds) })
	for _, k := range kinds {
		t.Run(k.Schema, func(t *testing.T) { refuse(t, k) })
	}
}

// readVersions: every version of every kind that a release has written is read, for ever.
func readVersions(t *testing.T, kinds []Kind) {
	readers := map[string]func([]byte) ([]byte, error){}
	for _, k := range kinds {
		readers[nameOf(k.Schema)] = k.Read
		examples := map[string]func() []byte{k.Schema: k.Example}
		for field, example := range k.With {
			examples[k.Schema+"+"+field] = example
		}
		for name, example := range examples {
			path := filepath.Join("testdata", name+".json")
			if _, err := os.Stat(path); *update && errors.Is(err, fs.ErrNotExist) {
				if err := os.WriteFile(path, example(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("the version that is written now has no file: %v", err)
			}
		}
	}
	files, err := filepath.Glob("testdata/lightmetrics.*.json")
	if err != nil || len(files) < len(readers) {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		schema, field, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".json"), "+")
		if field != "" && !bytes.Contains(b, []byte(`,"`+field+`":`)) {
			t.Errorf("%s has no field %s", path, field)
		}
		read := readers[nameOf(schema)]
		if read == nil {
			t.Errorf("%s: no reader", schema)
			continue
		}
		again, err := read(b)
		if err != nil {
			t.Errorf("%s: %v", schema, err)
		} else if record.SchemaOf(again) == schema && !bytes.Equal(again, b) {
			t.Errorf("%s is written again as\n%s\nwant\n%s", schema, again, b)
		}
	}
}

// refuse: a version above is refused as one of a newer release; so is an unknown field of an exact kind.
// One of another kind is ignored at the end of the record. What is damaged is corrupt.
func refuse(t *testing.T, k Kind) {
	b, err := os.ReadFile(filepath.Join("testdata", k.Schema+".json"))
	if err != nil {
		t.Fatal(err)
	}
	next := bytes.Replace(b, []byte(k.Schema), []byte(nameOf(k.Schema)+".v9999"), 1)
	if _, err := k.Read(next); !errors.Is(err, record.ErrNewerVersion) || errors.Is(err, record.ErrCorrupt) {
		t.Errorf("%s, next version: %v", k.Schema, err)
	}
	field := append(bytes.TrimSuffix(bytes.Clone(b), []byte("}")), `,"of_a_newer_release":{"x":[1,"y"]}}`...)
	again, err := k.Read(field)
	switch {
	case k.Exact && !errors.Is(err, record.ErrNewerVersion):
		t.Errorf("%s with a field that must not be ignored: %v", k.Schema, err)
	case !k.Exact && (err != nil || !bytes.Equal(again, b)):
		t.Errorf("%s with a field that may be ignored: %s, %v", k.Schema, again, err)
	}
	for what, bad := range map[string][]byte{
		"white space": bytes.Replace(b, []byte(`":`), []byte(`": `), 1), "cut": b[:len(b)-1], "empty": nil, "newline": append(bytes.Clone(b), '\n'),
		"field first": bytes.Replace(b, []byte(`{"schema"`), []byte(`{"x":1,"schema"`), 1), "schema twice": append(bytes.TrimSuffix(bytes.Clone(b), []byte("}")), `,"schema":"x"}`...),
	} {
		if _, err := k.Read(bad); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s, %s: %v", k.Schema, what, err)
		}
	}
}

func nameOf(schema string) string { return schema[:strings.LastIndex(schema, ".v")] }
