package frame

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// allocated is what f takes from the heap, in bytes, collected or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Bombs are refused before their memory is taken: by the ratio when they declare
// what they expand to, by the declared length when they do not.
func TestBombs(t *testing.T) {
	b := sampleBatch(t)
	zeros := make([]byte, 60<<20)
	bomb := compress(t, zeros, zstd.WithSingleSegment(true))
	streamed := compress(t, zeros[:32<<20], zstd.WithSingleSegment(true))
	cases := []struct {
		name    string
		data    []byte
		decoded int
		want    Reason
	}{
		{"declared", bomb, len(zeros), RatioTooHigh},
		{"beyond the limit", bomb, 65 << 20, DecodedTooLarge},
		{"declared short", bomb, 64 << 10, BadCompression},
		{"declared short, within the ratio", streamed, 100 * len(streamed), BadCompression},
		{"patched content size", patchContentSize(streamed, 64<<10), 64 << 10, BadCompression},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := rawFrame(b.Identity, Zstd, c.data, c.decoded)
			d := NewDecoder()
			must(t, d.Decode(encode(t, b, Options{}), &Batch{}, Limits{})) // coders are warm
			var err error
			n := allocated(func() { err = d.Decode(f, &Batch{}, Limits{}) })
			wantReason(t, err, c.want)
			if n > 1<<20 {
				t.Errorf("%d bytes allocated for a frame of %d", n, len(f))
			}
		})
	}
}

// patchContentSize rewrites the 4-byte content size of a single-segment zstd frame.
func patchContentSize(z []byte, size uint32) []byte {
	out := append([]byte{}, z...)
	out[5], out[6], out[7], out[8] = byte(size), byte(size>>8), byte(size>>16), byte(size>>24)
	return out
}

// A payload whose tables would cost far more memory than its bytes is refused:
// many strings of a byte, and long strings that share all but a byte.
func TestTablesHaveABudget(t *testing.T) {
	b := sampleBatch(t)
	var w payloadWriter
	payload := append([]byte{}, w.write(b)...)
	identity := payload[:2+payload[1]]
	fill := func(n int, v ...byte) []byte { return bytes.Repeat(v, n) }
	long := append([]byte{0x80, 0x80, 0x04}, fill(1000, 1)...) // 64 KiB, then 1 each
	for name, c := range map[string]struct{ prefixes, lengths, text []byte }{
		"many": {fill(1<<20, 0), fill(1<<20, 1), fill(1<<20, 'x')},
		"long": {append([]byte{0}, fill(1000, 0x80, 0x80, 0x04)...), long, fill(1<<16+1000, 'x')},
	} {
		p := appendBytes(append([]byte{}, identity...), 2, c.prefixes)
		p = appendBytes(p, 3, c.lengths)
		p = appendBytes(p, 4, c.text)
		f := rawFrame(b.Identity, None, p, len(p))
		d := NewDecoder()
		var err error
		taken := allocated(func() { err = d.Decode(f, &Batch{}, Limits{DecodedBytes: 4 << 20}) })
		wantReason(t, err, DecodedTooLarge)
		if taken > 1<<20 {
			t.Errorf("%s: %d bytes allocated", name, taken)
		}
	}
}

// matrix has one group of 20 series.
func matrix(tb testing.TB, rows int) *Batch {
	b := NewBuilder()
	for s := range 20 {
		id, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: "m"}, {Name: "i", Value: string(rune('a' + s))}}, series.Gauge, "", 0)
		must(tb, err)
		for r := range rows {
			v := float64(r * s)
			if s%3 == 1 {
				v /= 7 // no short decimal
			}
			must(tb, b.Append(id, int64(r+1)*1e9, v))
		}
	}
	batch, err := b.Build(boot, 1)
	must(tb, err)
	return batch
}

// Neither direction allocates, whatever the number of samples, up to 20,000.
func TestNoAllocationPerSample(t *testing.T) {
	for _, rows := range []int{1, 10, 1000} {
		batch := matrix(t, rows)
		e, d := NewEncoder(Options{}), NewDecoder()
		var into Batch
		var f []byte
		encode := func() {
			var err error
			f, err = e.Encode(f[:0], batch)
			must(t, err)
		}
		decode := func() { must(t, d.Decode(f, &into, Limits{})) }
		encode()
		decode()
		if n := testing.AllocsPerRun(20, encode); n > strayAllocs {
			t.Errorf("%d rows: encode allocates %v times", rows, n)
		}
		if n := testing.AllocsPerRun(20, decode); n > strayAllocs {
			t.Errorf("%d rows: decode allocates %v times", rows, n)
		}
		series := &into.Groups[0].Series[3]
		labels := 0
		if n := testing.AllocsPerRun(20, func() {
			for range into.Labels(series) {
				labels++
			}
		}); n > 0 || labels == 0 {
			t.Errorf("labels: %v allocations, %d labels", n, labels)
		}
	}
}

func TestBuilderReusesItsMemory(t *testing.T) {
	b := NewBuilder()
	labels := []series.Label{{Name: series.MetricName, Value: "m"}, {Name: "i", Value: ""}}
	build := func() {
		b.Reset()
		must(t, b.SetResource(series.Label{Name: "host", Value: "h"}))
		for s := range 20 {
			labels[1].Value = "abcdefghijklmnopqrst"[s : s+1]
			id, err := b.AddSeries(labels, series.Gauge, "bytes", 0)
			must(t, err)
			for r := range 50 {
				must(t, b.Append(id, int64(r), 1))
			}
		}
		_, err := b.Build(boot, 1)
		must(t, err)
	}
	build()
	if n := testing.AllocsPerRun(20, build); n > strayAllocs {
		t.Errorf("%v allocations", n)
	}
}
