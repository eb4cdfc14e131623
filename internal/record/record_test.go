package record_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var update = flag.Bool("update", false, "write the vectors")

// vectors are texts and their canonical JSON; docs/format/records.md names the file.
type vector struct {
	Text  string `json:"text_utf8_hex"`
	JSON  string `json:"json_utf8_hex"`
	Shown string `json:"shown"`
}

var texts = []string{
	"", "a", "a<&\n\u2028b", `"\/`, "\x00\x01\x07\b\t\n\v\f\r\x1b\x1f", "\x7f\u0080\u009f", "é日本😀", "\u2028\u2029\ufeff\ufffd", `\u2028`, "a\\\u2028", "</script>'",
}

func TestVectors(t *testing.T) {
	var vs []vector
	for _, s := range texts {
		b := record.AppendString(nil, s)
		vs = append(vs, vector{hex.EncodeToString([]byte(s)), hex.EncodeToString(b), string(b)})
	}
	got := record.JSON(vs)
	const path = "testdata/strings.json"
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("vectors are %s, want %s (%v)", got, want, err)
	}
	if s := string(record.AppendString(nil, "a<&\n\u2028b")); s != "\"a<&\\n\u2028b\"" {
		t.Errorf("%s", s)
	}
}

// Other languages write the same by themselves.
func TestOtherLanguages(t *testing.T) {
	for _, c := range []struct{ program, script string }{
		{"node", `const v=JSON.parse(require("fs").readFileSync("testdata/strings.json","utf8"));
			for(const x of v){const s=Buffer.from(x.text_utf8_hex,"hex").toString("utf8");
			const j=Buffer.from(JSON.stringify(s),"utf8").toString("hex");
			if(j!==x.json_utf8_hex){console.log(x.shown,j);process.exit(1)}}`},
		{"python3", `import json,sys
for x in json.load(open("testdata/strings.json",encoding="utf8")):
    s=bytes.fromhex(x["text_utf8_hex"]).decode()
    if json.dumps(s,ensure_ascii=False,separators=(",",":")).encode().hex()!=x["json_utf8_hex"]: sys.exit(x["shown"])`},
	} {
		t.Run(c.program, func(t *testing.T) {
			path, err := exec.LookPath(c.program)
			if err != nil {
				t.Skip(err)
			}
			flag := map[string]string{"node": "-e", "python3": "-c"}[c.program]
			if out, err := exec.Command(path, flag, c.script).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

func TestStringIsTheSameBothWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
			rapid.Map(rapid.SliceOf(rapid.SampledFrom([]rune("\"\\\b\n\x01\u2028\u2029\ufffdau20"))), func(r []rune) string { return string(r) })).Draw(t, "s")
		b := record.AppendString([]byte("x"), s)[1:]
		if j := record.JSON(s); !bytes.Equal(b, j) {
			t.Fatalf("%q is %s field by field, %s by reflection", s, b, j)
		}
		var back string
		if err := json.Unmarshal(b, &back); err != nil || utf8.ValidString(s) && back != s {
			t.Fatalf("%q was read as %q, %v", s, back, err)
		}
	})
}

type inner struct {
	A int64  `json:"a"`
	B string `json:"b,omitempty"`
}

type embedded struct {
	Agent string `json:"agent_id"`
}

type sample struct {
	embedded
	N    uint64            `json:"n"`
	List []inner           `json:"list"`
	One  *inner            `json:"one,omitempty"`
	Map  map[string]string `json:"map,omitempty"`
	SHA  identity.Digest   `json:"sha"`
	Note string            `json:"note,omitempty"`
}

var (
	open  = record.Kind{Schema: "lightmetrics.sample.v2", Title: "sample record", MaxBytes: 1000}
	exact = record.Kind{Schema: "lightmetrics.sample.v2", Title: "sample record", MaxBytes: 1000, Exact: true}
)

func value() sample {
	return sample{embedded{"a<&\u2028"}, 1<<64 - 1, []inner{{A: -1}, {A: 2, B: "x"}}, &inner{A: 3}, map[string]string{"b": "1", "a": "2"}, identity.Sum(nil), ""}
}

func TestStructs(t *testing.T) {
	b := open.Marshal(value())
	const want = `{"schema":"lightmetrics.sample.v2","agent_id":"a<&` + "\u2028" + `","n":18446744073709551615,"list":[{"a":-1},{"a":2,"b":"x"}],"one":{"a":3},"map":{"a":"2","b":"1"},"sha":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}`
	if string(b) != want {
		t.Fatalf("%s, want %s", b, want)
	}
	var v sample
	if err := open.Unmarshal(b, &v); err != nil || !bytes.Equal(open.Marshal(v), b) {
		t.Fatalf("%+v, %v", v, err)
	}
}

// Every change to the bytes is corrupt, of a newer release, or an unknown field that the kind permits.
func TestWhatIsRefused(t *testing.T) {
	s := string(open.Marshal(value()))
	at := func(old, now string) string {
		out := strings.Replace(s, old, now, 1)
		if out == s {
			t.Fatalf("%q is not in %s", old, s)
		}
		return out
	}
	for name, c := range map[string]struct {
		b           string
		open, exact error
	}{
		"unknown field at the end":       {at(`55"}`, `55","x":{"y":[1,null,"é"]},"z":-4}`), nil, record.ErrNewerVersion},
		"unknown field in a list":        {at(`{"a":-1}`, `{"a":-1,"c":true}`), nil, record.ErrNewerVersion},
		"unknown field below":            {at(`{"a":3}`, `{"a":3,"c":[]}`), nil, record.ErrNewerVersion},
		"higher version":                 {at(`.v2`, `.v3`), record.ErrNewerVersion, record.ErrNewerVersion},
		"much higher version":            {at(`.v2`, `.v10`), record.ErrNewerVersion, record.ErrNewerVersion},
		"lower version":                  {at(`.v2`, `.v1`), record.ErrCorrupt, record.ErrCorrupt},
		"version that is none":           {at(`.v2`, `.v03`), record.ErrCorrupt, record.ErrCorrupt},
		"other record":                   {at(`sample`, `simple`), record.ErrCorrupt, record.ErrCorrupt},
		"unknown field first":            {at(`"agent_id"`, `"x":1,"agent_id"`), record.ErrCorrupt, record.ErrCorrupt},
		"unknown field twice":            {at(`55"}`, `55","x":1,"x":1}`), record.ErrCorrupt, record.ErrCorrupt},
		"schema twice":                   {at(`55"}`, `55","schema":"x"}`), record.ErrCorrupt, record.ErrCorrupt},
		"known field twice":              {at(`55"}`, `55","n":1}`), record.ErrCorrupt, record.ErrCorrupt},
		"empty field that is left out":   {at(`55"}`, `55","note":""}`), record.ErrCorrupt, record.ErrCorrupt},
		"unknown with white space":       {at(`55"}`, `55","x": 1}`), record.ErrCorrupt, record.ErrCorrupt},
		"unknown with a fraction":        {at(`55"}`, `55","x":1.5}`), record.ErrCorrupt, record.ErrCorrupt},
		"unknown with a long number":     {at(`55"}`, `55","x":01}`), record.ErrCorrupt, record.ErrCorrupt},
		"unknown with a needless escape": {at(`55"}`, `55","x":"\u0041"}`), record.ErrCorrupt, record.ErrCorrupt},
		"order of fields":                {at(`"list":[{"a":-1},{"a":2,"b":"x"}],"one":{"a":3}`, `"one":{"a":3},"list":[{"a":-1},{"a":2,"b":"x"}]`), record.ErrCorrupt, record.ErrCorrupt},
		"white space":                    {at(`:`, `: `), record.ErrCorrupt, record.ErrCorrupt},
		"white space in a list":          {at(`[{`, `[ {`), record.ErrCorrupt, record.ErrCorrupt},
		"newline behind":                 {s + "\n", record.ErrCorrupt, record.ErrCorrupt},
		"escapes for HTML":               {at(`<`, `\u003c`), record.ErrCorrupt, record.ErrCorrupt},
		"escaped line separator":         {at("\u2028", `\u2028`), record.ErrCorrupt, record.ErrCorrupt},
		"other case":                     {at(`"n"`, `"N"`), record.ErrCorrupt, record.ErrCorrupt},
		"missing field":                  {at(`"n":18446744073709551615,`, ``), record.ErrCorrupt, record.ErrCorrupt},
		"wrong type":                     {at(`"n":18446744073709551615`, `"n":"1"`), record.ErrCorrupt, record.ErrCorrupt},
		"order of map keys":              {at(`{"a":"2","b":"1"}`, `{"b":"1","a":"2"}`), record.ErrCorrupt, record.ErrCorrupt},
		"null":                           {at(`[{"a":-1},{"a":2,"b":"x"}]`, `null`), nil, nil},
		"cut":                            {s[:len(s)-1], record.ErrCorrupt, record.ErrCorrupt},
		"empty":                          {"", record.ErrCorrupt, record.ErrCorrupt},
		"long":                           {s + strings.Repeat(" ", 1000), record.ErrCorrupt, record.ErrCorrupt},
	} {
		for k, want := range map[*record.Kind]error{&open: c.open, &exact: c.exact} {
			var v sample
			err := k.Unmarshal([]byte(c.b), &v)
			if !errors.Is(err, want) || (err == nil) != (want == nil) || errors.Is(err, record.ErrCorrupt) && errors.Is(err, record.ErrNewerVersion) {
				t.Errorf("%s, exact %v: %v, want %v", name, k.Exact, err, want)
			}
			if record.Unreadable(err) != (want == record.ErrCorrupt) {
				t.Errorf("%s: unreadable is %v", name, record.Unreadable(err))
			}
		}
	}
}

// The two readers agree on which bytes are a record.
func FuzzReaders(f *testing.F) {
	type flat struct {
		A string `json:"a"`
		N int64  `json:"n"`
		O string `json:"o,omitempty"`
	}
	write := func(v flat) []byte {
		var w record.Writer
		w.Begin(open, 64)
		w.Text("a", v.A)
		w.Int("n", v.N)
		w.OptionalText("o", v.O)
		return w.End()
	}
	f.Add(write(flat{"x\n\u2028", -5, "o"}))
	f.Add(write(flat{"", 0, ""}))
	f.Add([]byte(`{"schema":"lightmetrics.sample.v2","a":"","n":1,"x":{"y":[1,"a"]}}`))
	f.Add([]byte(`{"schema":"lightmetrics.sample.v2","a":"","n":0,"":{}}`)) // the name of a field may be empty
	f.Add([]byte(`{"schema":"lightmetrics.sample.v3"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, k := range []record.Kind{open, exact} {
			r := record.NewReader(k, b)
			one := flat{r.Text("a", 1000), r.Int("n"), r.OptionalText("o", 1000)}
			err := r.End()
			var two flat
			err2 := k.Unmarshal(b, &two)
			if (err == nil) != (err2 == nil) || errors.Is(err, record.ErrNewerVersion) != errors.Is(err2, record.ErrNewerVersion) {
				t.Fatalf("%q: %v field by field, %v by reflection", b, err, err2)
			}
			if err == nil && one != two {
				t.Fatalf("%q: %+v and %+v", b, one, two)
			}
			if err == nil && k.Exact && !bytes.Equal(write(one), b) {
				t.Fatalf("%q is written again as %q", b, write(one))
			}
		}
	})
}

func TestRead(t *testing.T) {
	s := mem.New(nil)
	ctx := context.Background()
	put := func(key string, b []byte) {
		t.Helper()
		if _, err := s.Create(ctx, key, b, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b := open.Marshal(value())
	put("good", b)
	put("bad", []byte("{}"))
	put("long", bytes.Repeat([]byte("x"), 1001))
	put("newer", bytes.Replace(b, []byte(".v2"), []byte(".v3"), 1))
	longer := append(bytes.Replace(bytes.TrimSuffix(b, []byte("}")), []byte(".v2"), []byte(".v3"), 1), `,"more":"`+strings.Repeat("x", 1000)+`"}`...)
	put("newer and longer", longer)
	if err := open.Unmarshal(longer, new(sample)); !errors.Is(err, record.ErrNewerVersion) {
		t.Errorf("a longer record of a newer release: %v", err)
	}
	if err := record.NewReader(open, longer).End(); !errors.Is(err, record.ErrNewerVersion) {
		t.Errorf("a longer record of a newer release, field by field: %v", err)
	}
	parse := func(b []byte) (v sample, err error) { return v, open.Unmarshal(b, &v) }
	if v, info, err := record.Read(ctx, s, "good", open, parse); err != nil || v.N != 1<<64-1 || info.ETag == "" {
		t.Errorf("%+v, %+v, %v", v, info, err)
	}
	for key, want := range map[string]error{"bad": record.ErrCorrupt, "long": record.ErrCorrupt, "newer": record.ErrNewerVersion, "newer and longer": record.ErrNewerVersion, "none": objstore.ErrNotFound} {
		_, _, err := record.Read(ctx, s, key, open, parse)
		if !errors.Is(err, want) || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
		if record.Unreadable(err) != (want == record.ErrCorrupt) {
			t.Errorf("%s: unreadable is %v", key, record.Unreadable(err))
		}
	}
}

func TestErrorsSayKindKeyAndReason(t *testing.T) {
	cause := errors.New("no reason")
	err := open.Wrap("some/key", open.Wrap("", cause))
	if got := err.Error(); got != `sample record "some/key": corrupt record: no reason` || !errors.Is(err, cause) {
		t.Errorf("%s", got)
	}
	if open.Wrap("k", nil) != nil {
		t.Error("an error without a cause")
	}
	var e *record.Error
	if !errors.As(open.Wrap("other", err), &e) || e.Key != "some/key" {
		t.Errorf("%+v", e)
	}
}

func TestOneOf(t *testing.T) {
	other := record.Kind{Schema: "lightmetrics.other.v1", Title: "other record"}
	for b, want := range map[string]error{
		`{"schema":"lightmetrics.other.v1"}`: nil, `{"schema":"lightmetrics.other.v2"}`: record.ErrNewerVersion,
		`{"schema":"lightmetrics.third.v1"}`: record.ErrCorrupt, ``: record.ErrCorrupt,
	} {
		k, err := record.OneOf([]byte(b), open, other)
		if !errors.Is(err, want) || (err == nil) != (want == nil) || err == nil && k != other {
			t.Errorf("%s: %+v, %v", b, k, err)
		}
	}
}
