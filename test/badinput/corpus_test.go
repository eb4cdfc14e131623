package badinput

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// classes are the tables of the corpus: testdata/<class>.yaml.
var classes = []string{"frame", "http", "faces", "grpc", "http2", "auth", "mtls", "principals", "s3", "records", "condemned", "segments",
	"scrape", "promql"}

// named is what every case has, whatever its class.
type named struct {
	Name string `yaml:"name"`
	// Weakness is a published weakness of a comparable system that the case stands for.
	Weakness string `yaml:"weakness"`
}

// load reads a class strictly: an unknown field is an error, not a check left out.
func load[T any](t testing.TB, class string) []T {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", class+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []T
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&cases); err != nil {
		t.Fatalf("%s: %v", class, err)
	}
	return cases
}

// TestCorpus keeps the corpus large, every name once, and the page of counts true.
func TestCorpus(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocol/bad-input.md")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, class := range classes {
		b, err := os.ReadFile(filepath.Join("testdata", class+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var cases []named
		if err := yaml.Unmarshal(b, &cases); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, c := range cases {
			if c.Name == "" || seen[c.Name] {
				t.Errorf("%s: name %q is empty or twice", class, c.Name)
			}
			seen[c.Name] = true
			if c.Weakness != "" && !strings.Contains(string(page), "`"+class+"/"+c.Name+"`") {
				t.Errorf("docs/protocol/bad-input.md does not name %s/%s (%s)", class, c.Name, c.Weakness)
			}
		}
		if row := fmt.Sprintf("| %s | %d |", class, len(cases)); !strings.Contains(string(page), row) {
			t.Errorf("docs/protocol/bad-input.md has no row %q", row)
		}
		total += len(cases)
	}
	if total < 1600 {
		t.Errorf("%d cases, want at least 1600", total)
	}
	if want := fmt.Sprintf("%d cases", total); !strings.Contains(string(page), want) {
		t.Errorf("docs/protocol/bad-input.md does not say %q", want)
	}
}

// expand makes bytes of a recipe: items separated by spaces, each hex digits, "text",
// v<number> (varint), u32:<number>, u64:<number> (little-endian), a name of vars, or
// <times>*<item>.
func expand(t testing.TB, recipe string, vars map[string][]byte) []byte {
	t.Helper()
	var out []byte
	for _, item := range strings.Fields(recipe) {
		times := 1
		if n, rest, ok := strings.Cut(item, "*"); ok {
			if k, err := strconv.Atoi(n); err == nil {
				times, item = k, rest
			}
		}
		var b []byte
		switch {
		case vars[item] != nil:
			b = vars[item]
		case strings.HasPrefix(item, `"`):
			s, err := strconv.Unquote(item)
			if err != nil {
				t.Fatalf("recipe %s: %v", item, err)
			}
			b = []byte(s)
		case strings.HasPrefix(item, "v"):
			b = binary.AppendUvarint(nil, number(t, item[1:]))
		case strings.HasPrefix(item, "u32:"):
			b = binary.LittleEndian.AppendUint32(nil, uint32(number(t, item[4:])))
		case strings.HasPrefix(item, "u64:"):
			b = binary.LittleEndian.AppendUint64(nil, number(t, item[4:]))
		default:
			var err error
			if b, err = hex.DecodeString(item); err != nil {
				t.Fatalf("recipe %q: %v", item, err)
			}
		}
		out = append(out, bytes.Repeat(b, times)...)
	}
	return out
}

func number(t testing.TB, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
