package jsonbatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

var update = flag.Bool("update", false, "write the golden frame")

func all(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/all.json")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGolden: the bytes of a frame that is made of JSON are for ever: a batch that one version
// accepted must be a duplicate for the next. A change here is a change of the format.
func TestGolden(t *testing.T) {
	f, err := Encode(all(t), frame.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("testdata/all.lmbatch", f, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/all.lmbatch")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(f, want) {
		t.Errorf("%d bytes, %s; the golden frame has %d, %s", len(f), identity.Sum(f), len(want), identity.Sum(want))
	}
}

// TestMeaning: the frame says what the JSON says.
func TestMeaning(t *testing.T) {
	f, err := Encode(all(t), frame.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var b frame.Batch
	if err := frame.Decode(f, &b, frame.Limits{}); err != nil {
		t.Fatal(err)
	}
	if want := (identity.Batch{Agent: "till-7", Boot: "b1", SeqStart: 41, SeqEnd: 47}); b.Identity != want {
		t.Errorf("identity %s", b.Identity)
	}
	got := map[string]string{}
	for _, g := range b.Groups {
		for i := range g.Series {
			s := &g.Series[i]
			name, labels := "", ""
			for k, v := range b.Labels(s) {
				if k == series.MetricName {
					name = v
				} else {
					labels += k + "=" + v + ","
				}
			}
			for r, at := range g.Timestamps {
				at := time.Unix(0, at).UnixMilli()
				if g.Histograms != nil {
					h := g.Histograms[i*len(g.Timestamps)+r]
					got[name] += fmt.Sprint(labels, " ", s.Type, b.Strings[s.Unit], " ", at, " ", h.Schema, h.Count, h.Sum, h.ZeroCount, h.ZeroThreshold, h.PositiveSpans, h.PositiveBuckets, h.CustomValues, ";")
					continue
				}
				got[name] += fmt.Sprint(labels, " ", s.Type, b.Strings[s.Unit], s.StartTime, " ", at, " ", g.Values[i*len(g.Timestamps)+r], ";")
			}
		}
	}
	for name, want := range map[string]string{
		"orders_total": "country=fi,paid=yes,site=north, 2 1700000000000000000 1700000060000 3;country=fi,paid=yes,site=north, 2 1700000000000000000 1700000070000 100;",
		"drawer":       "site=north, 1euros0 1700000060000 NaN;",
		"limit":        "site=north, 0 0 1700000060000 +Inf;",
		"café 😀":       "site=north, 7 0 -1 -0.5;",
		"wait":         "site=north, 4seconds 1700000060000 0 4 5.5 1 0.001 [0 2] [2 1] [];",
		"size":         "site=north, 6 1700000060000 -53 3 9 0 0 [0 3] [1 1 1] [1 10];",
	} {
		if strings.ReplaceAll(got[name], " ", "") != strings.ReplaceAll(want, " ", "") {
			t.Errorf("%s:\n%s\nwant\n%s", name, got[name], want)
		}
	}
	if len(got) != 6 || len(b.Helps) != 1 || b.Helps[0].Text != "Orders taken." {
		t.Errorf("%d metrics, helps %v", len(got), b.Helps)
	}
}

// shuffled writes a decoded value with keys and samples in any order, other white space and
// other forms of its numbers.
func shuffled(rnd *rand.Rand, b *strings.Builder, v any, samples bool) {
	space := func() { b.WriteString([]string{"", " ", "\n\t"}[rnd.IntN(3)]) }
	space()
	switch v := v.(type) {
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		rnd.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		b.WriteString("{")
		for i, k := range keys {
			if i > 0 {
				b.WriteString(",")
			}
			q, _ := json.Marshal(k)
			b.Write(q)
			space()
			b.WriteString(":")
			shuffled(rnd, b, v[k], k == "samples")
		}
		b.WriteString("}")
	case []any:
		if samples {
			v = append([]any(nil), v...)
			rnd.Shuffle(len(v), func(i, j int) { v[i], v[j] = v[j], v[i] })
		}
		b.WriteString("[")
		for i, e := range v {
			if i > 0 {
				b.WriteString(",")
			}
			shuffled(rnd, b, e, false)
		}
		b.WriteString("]")
	case string: // every character escaped, now and then
		if rnd.IntN(3) > 0 {
			q, _ := json.Marshal(v)
			b.Write(q)
			break
		}
		b.WriteString(`"`)
		for _, r := range v {
			if r < 0x10000 {
				fmt.Fprintf(b, `\u%04X`, r)
			} else {
				b.WriteRune(r)
			}
		}
		b.WriteString(`"`)
	case json.Number:
		f, _ := v.Float64()
		if s := string(v); strings.ContainsAny(s, ".e") && rnd.IntN(2) == 0 {
			fmt.Fprintf(b, "%.6e", f)
		} else {
			b.WriteString(s)
		}
	}
	space()
}

// TestEqualBatchesAreEqualFrames: key order, order of samples, white space, escapes and forms
// of numbers make no difference; a value does.
func TestEqualBatchesAreEqualFrames(t *testing.T) {
	want, err := Encode(all(t), frame.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(all(t)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	texts := map[string]bool{}
	for range 300 {
		var b strings.Builder
		shuffled(rnd, &b, v, false)
		texts[b.String()] = true
		got, err := Encode([]byte(b.String()), frame.Limits{})
		if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("another frame for\n%s", b.String())
		}
	}
	if len(texts) < 290 {
		t.Errorf("only %d texts", len(texts))
	}
	other, err := Encode(bytes.Replace(all(t), []byte("1e2"), []byte("101"), 1), frame.Limits{})
	if err != nil || bytes.Equal(other, want) {
		t.Errorf("another value is the same frame, %v", err)
	}
}

// TestBadBatches: each is refused with its reason, and the message says where.
func TestBadBatches(t *testing.T) {
	one := `{"agent":"a","boot":"b","first_seq":1,"samples":[{"name":"m","time_unix_ms":1,"value":1}]}`
	if _, err := Encode([]byte(one), frame.Limits{}); err != nil {
		t.Fatal(err)
	}
	in := func(old, new string) string {
		if !strings.Contains(one, old) {
			t.Fatalf("no %s", old)
		}
		return strings.Replace(one, old, new, 1)
	}
	samples := func(n int) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, `{"name":"m","time_unix_ms":%d,"value":1}`, i)
		}
		return b.String()
	}
	sample := `{"name":"m","time_unix_ms":1,"value":1}`
	for name, c := range map[string]struct {
		text   string
		reason frame.Reason
		where  string
	}{
		"nothing":                     {``, frame.BadJSON, "EOF"},
		"not JSON":                    {`agent=a`, frame.BadJSON, "invalid character"},
		"an array":                    {`[]`, frame.BadJSON, "want an object"},
		"cut":                         {one[:60], frame.BadJSON, "EOF"},
		"two batches":                 {one + one, frame.BadJSON, "something follows"},
		"not UTF-8":                   {in(`"a"`, "\"\xff\""), frame.BadJSON, "UTF-8"},
		"half a character":            {in(`"a"`, `"\ud83d"`), frame.BadJSON, "half a character"},
		"the other half":              {in(`"a"`, `"\ude00x"`), frame.BadJSON, "half a character"},
		"an unknown key":              {in(`"boot"`, `"bot":1,"boot"`), frame.BadJSON, "bot: is no key of a batch"},
		"a key in upper case":         {in(`"boot"`, `"Boot"`), frame.BadJSON, "Boot: is no key"},
		"a key twice":                 {in(`"boot"`, `"agent":"a","boot"`), frame.BadJSON, "agent: is there twice"},
		"no boot":                     {in(`"boot":"b",`, ``), frame.BadJSON, "has no boot"},
		"no samples":                  {in(`,"samples":[`+sample+`]`, ``), frame.BadJSON, "has no samples"},
		"zero samples":                {in(sample, ``), frame.RecordCountMismatch, ""},
		"an empty agent":              {in(`"a"`, `""`), frame.IdentityInvalid, ""},
		"a long agent":                {in(`"a"`, `"`+strings.Repeat("a", 129)+`"`), frame.IdentityInvalid, ""},
		"a fraction":                  {in(`"first_seq":1`, `"first_seq":1.0`), frame.BadJSON, "first_seq: 1.0: want a whole number"},
		"a negative number":           {in(`"first_seq":1`, `"first_seq":-1`), frame.BadJSON, "first_seq"},
		"too large a number":          {in(`"first_seq":1`, `"first_seq":18446744073709551616`), frame.BadJSON, "first_seq"},
		"numbers that end":            {strings.Replace(in(`"first_seq":1`, `"first_seq":18446744073709551615`), sample, samples(2), 1), frame.IdentityInvalid, ""},
		"a number as text":            {in(`"value":1`, `"value":"1"`), frame.BadJSON, "samples[0].value: want a number"},
		"too large a value":           {in(`"value":1`, `"value":1e999`), frame.BadJSON, "samples[0].value: 1e999"},
		"null":                        {in(`"value":1`, `"value":null`), frame.BadJSON, "samples[0].value"},
		"no value":                    {in(`,"value":1`, ``), frame.BadJSON, "samples[0]: want value or histogram"},
		"no time":                     {in(`"time_unix_ms":1,`, ``), frame.BadJSON, "samples[0]: has no time_unix_ms"},
		"a time of no year":           {in(`"time_unix_ms":1`, `"time_unix_ms":9223372036855`), frame.BadJSON, "time_unix_ms"},
		"a time with fraction":        {in(`"time_unix_ms":1`, `"time_unix_ms":1e3`), frame.BadJSON, "time_unix_ms"},
		"no name":                     {in(`"name":"m",`, ``), frame.BadJSON, "has no name"},
		"an empty name":               {in(`"m"`, `""`), frame.BadLabels, ""},
		"an unknown type":             {in(`"value"`, `"type":"rate","value"`), frame.BadJSON, `no type "rate"`},
		"a label of a number":         {in(`"value"`, `"labels":{"x":1},"value"`), frame.BadJSON, "samples[0].labels.x: want a string"},
		"a long name":                 {in(`"m"`, `"`+strings.Repeat(`\u0001`, 100_000)+`"`), frame.BadLabels, `sample of "\x01`},
		"help of a long name":         {in(`"samples"`, `"help":{"`+strings.Repeat("n", 500_000)+`":"x"},"samples"`), frame.BadHelp, `help of "nnn`},
		"help of nothing":             {in(`"samples"`, `"help":{"n":"x"},"samples"`), frame.BadHelp, `help of "n"`},
		"a long help":                 {in(`"samples"`, `"help":{"m":"`+strings.Repeat("x", 5000)+`"},"samples"`), frame.BadHelp, `help of "m"`},
		"a second name":               {in(`"value"`, `"labels":{"__name__":"n"},"value"`), frame.BadLabels, ""},
		"a long label":                {in(`"value"`, `"labels":{"x":"`+strings.Repeat("v", 2049)+`"},"value"`), frame.BadLabels, ""},
		"one time twice":              {in(`]}`, `,`+sample+`]}`), frame.BadColumn, `sample of "m" at 1 ms`},
		"both":                        {in(`"value":1`, `"value":1,"histogram":{"schema":0,"count":0,"sum":0}`), frame.BadJSON, "want value or histogram"},
		"a histogram's key":           {in(`"value":1`, `"histogram":{"schema":0,"count":0,"sum":0,"total":1}`), frame.BadJSON, "samples[0].histogram.total: is no key"},
		"half a histogram":            {in(`"value":1`, `"histogram":{"schema":0,"count":0}`), frame.BadJSON, "samples[0].histogram: has no sum"},
		"a bad histogram":             {in(`"value":1`, `"histogram":{"schema":0,"count":1,"sum":1,"positive_spans":[0]}`), frame.BadHistogram, ""},
		"a value of a histogram type": {in(`"value"`, `"type":"histogram_delta","value"`), frame.BadColumn, ""},
		"too many samples":            {in(sample, samples(MaxSamples+1)), frame.TooManyRecords, ""},
		"too many bytes":              {in(`"a"`, `"a"`+strings.Repeat(" ", MaxBytes)), frame.TooLarge, ""},
		"deep":                        {in(`"value"`, `"labels":`+strings.Repeat("[", 10000)+`,"value"`), frame.BadJSON, "samples[0].labels: want an object"},
	} {
		f, err := Encode([]byte(c.text), frame.Limits{})
		if !errors.Is(err, c.reason) || f != nil || !strings.Contains(err.Error(), c.where) {
			t.Errorf("%s: %v, want %s at %q", name, err, c.reason, c.where)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%s: a message of %d bytes", name, len(err.Error()))
		}
	}
	if f, err := Encode([]byte(in(sample, samples(MaxSamples))), frame.Limits{}); err != nil || len(f) == 0 {
		t.Errorf("the most samples: %v", err)
	}
	if _, err := Encode([]byte(one), frame.Limits{Records: 1, EncodedBytes: 20}); !errors.Is(err, frame.TooLarge) {
		t.Errorf("a frame over the collector's limit: %v", err)
	}
}

// FuzzEncode: whatever is taken is a frame that decodes, with finite memory, and is made of
// the same JSON again.
func FuzzEncode(f *testing.F) {
	f.Add(all(f))
	f.Add([]byte(`{"agent":"a","boot":"b","first_seq":1,"samples":[{"name":"m","time_unix_ms":1,"value":1}]}`))
	f.Add([]byte(`{"agent":"\ud83d\ude00","boot":"b","first_seq":18446744073709551615,"samples":[{"name":"m","labels":{},"time_unix_ms":-9223372036854,"value":"NaN"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		enc, err := Encode(b, frame.Limits{})
		if err != nil {
			var fe *frame.Error
			if !errors.As(err, &fe) || fe.Reason == "" {
				t.Fatalf("no reason: %v", err)
			}
			return
		}
		var batch frame.Batch
		if err := frame.Decode(enc, &batch, frame.Limits{}); err != nil {
			t.Fatalf("made a frame that is refused: %v", err)
		}
		again, err := Encode(b, frame.Limits{})
		if err != nil || !bytes.Equal(enc, again) {
			t.Fatalf("another frame: %v", err)
		}
		if math.MaxInt64 < batch.Records() || batch.Records() > MaxSamples {
			t.Fatalf("%d records", batch.Records())
		}
	})
}
