package frame

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

var update = flag.Bool("update", false, "write the golden files")

type golden struct {
	name  string
	batch func(testing.TB) *Batch
	opts  Options
}

var goldens = []golden{
	{"samples-plain", sampleBatch, Options{Uncompressed: true}},
	{"samples-zstd", sampleBatch, Options{}},
	{"histograms-plain", histogramBatch, Options{Uncompressed: true}},
	{"histograms-zstd", histogramBatch, Options{}},
	{"helps-plain", helpBatch, Options{Uncompressed: true}},
	{"helps-zstd", helpBatch, Options{}},
}

func (g golden) read(tb testing.TB) []byte {
	tb.Helper()
	f, err := os.ReadFile(filepath.Join("testdata", g.name+Extension))
	must(tb, err)
	return f
}

func TestGolden(t *testing.T) {
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			want := g.batch(t)
			f := encode(t, want, g.opts)
			if *update {
				must(t, os.MkdirAll("testdata", 0o755))
				must(t, os.WriteFile(filepath.Join("testdata", g.name+Extension), f, 0o644))
			}
			file := g.read(t)
			if !bytes.Equal(f, file) {
				t.Errorf("encoded:\n%s\ngolden:\n%s", hex.Dump(f), hex.Dump(file))
			}
			var got Batch
			must(t, NewDecoder().Decode(file, &got, Limits{}))
			if d := diffBatch(want, &got); d != "" {
				t.Error(d)
			}
		})
	}
}

// The bytes of the example in docs/format/frame.md.
func TestExactBytes(t *testing.T) {
	b := NewBuilder()
	id, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: "up"}}, series.Gauge, "", 0)
	must(t, err)
	must(t, b.Append(id, 1_800_000_000_000_000_000, 1))
	must(t, b.Append(id, 1_800_000_010_000_000_000, 1))
	batch, err := b.Build(boot, 5)
	must(t, err)
	f := encode(t, batch, Options{Uncompressed: true})
	want := "" +
		"894c4d42" + "01" + "00" + "0100" + "3800" + "0000" + // magic, frame version, flags, wire version, header length, reserved
		"4a000000" + "4a000000" + // encoded and decoded length
		"0500000000000000" + "0600000000000000" + // seq_start, seq_end
		"06" + "02" + "0000" + // lengths of the ids, reserved
		"686f73742d31" + "6231" + // host-1, b1
		"PAYLOADC" + "HEADERCR" +
		"0a10" + "0a06686f73742d31" + "12026231" + "1805" + "2006" + // identity
		"1202" + "0000" + "1a02" + "0802" + "220a" + "5f5f6e616d655f5f" + "7570" + // string prefixes, lengths, rests
		"3222" + // group
		"0802" + // rows
		"120b" + "80c8afa025" + "80d4d4ab01" + "01" + // timestamps: unit, first, difference
		"1a01" + "01" + // label counts
		"2201" + "00" + "2a01" + "00" + // label names, label values: the next string each
		"3201" + "01" + // types
		"4a01" + "10" + "5202" + "0200" // value modes, values
	got := hex.EncodeToString(f)
	for _, crc := range []struct {
		at   int
		mark string
		of   []byte
	}{{48, "PAYLOADC", f[56:]}, {52, "HEADERCR", f[:52]}} {
		le := binary.LittleEndian.AppendUint32(nil, crc32.Checksum(crc.of, crc32.MakeTable(crc32.Castagnoli)))
		want = strings.Replace(want, crc.mark, hex.EncodeToString(le), 1)
	}
	if got != want {
		t.Errorf("frame is\n%s, want\n%s", got, want)
	}
	if doc := documented(t); got != doc {
		t.Errorf("frame is\n%s, the document has\n%s", got, doc)
	}
}

// documented is the example of docs/format/frame.md: hex up to three spaces.
func documented(t *testing.T) string {
	doc, err := os.ReadFile("../../docs/format/frame.md")
	must(t, err)
	_, example, ok := strings.Cut(string(doc), "## Example")
	parts := strings.Split(example, "```")
	if !ok || len(parts) < 2 {
		t.Fatal("no example in docs/format/frame.md")
	}
	out := ""
	for line := range strings.Lines(parts[1]) {
		bytes, _, _ := strings.Cut(strings.TrimSpace(line), "   ")
		out += strings.ReplaceAll(bytes, " ", "")
	}
	return out
}

func TestEveryTruncationIsTyped(t *testing.T) {
	d := NewDecoder()
	for _, g := range goldens {
		f := g.read(t)
		for n := range f {
			var b Batch
			if err := d.Decode(f[:n], &b, Limits{}); !errors.Is(err, Truncated) {
				t.Fatalf("%s cut to %d bytes: %v, want %s", g.name, n, err, Truncated)
			}
			h, err := ParseHeader(f[:n])
			if whole := n >= headerLen(g.batch(t).Identity); whole != (err == nil) {
				t.Fatalf("%s cut to %d bytes: header %+v, %v", g.name, n, h, err)
			}
		}
		var b Batch
		if err := d.Decode(append(f, 0), &b, Limits{}); !errors.Is(err, TrailingBytes) {
			t.Fatalf("%s with a byte more: %v", g.name, err)
		}
	}
}

func TestEveryBitFlipIsRefused(t *testing.T) {
	d := NewDecoder()
	for _, g := range goldens {
		f := g.read(t)
		n := headerLen(g.batch(t).Identity)
		for i := range 8 * len(f) {
			f[i/8] ^= 1 << (i % 8)
			var b Batch
			err := d.Decode(f, &b, Limits{})
			if e := (*Error)(nil); !errors.As(err, &e) || e.Reason == "" || e.Detail == "" {
				t.Fatalf("%s with bit %d flipped: %v", g.name, i, err)
			}
			if _, err := ParseHeader(f); (err == nil) != (i/8 >= n) {
				t.Fatalf("%s with bit %d flipped: header gives %v", g.name, i, err)
			}
			f[i/8] ^= 1 << (i % 8)
		}
	}
}
