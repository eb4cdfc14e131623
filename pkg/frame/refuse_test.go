package frame

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

func wantReason(t *testing.T, err error, want Reason) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Reason != want || !errors.Is(err, want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestHeaderRefusals(t *testing.T) {
	cases := []struct {
		name   string
		change func(f []byte) []byte
		want   Reason
	}{
		{"empty", func(f []byte) []byte { return nil }, Truncated},
		{"gzip", func(f []byte) []byte { return []byte("\x1f\x8b\x08\x00rest") }, BadMagic},
		{"frame version", func(f []byte) []byte { f[4] = 2; return f }, UnsupportedVersion},
		{"wire version", func(f []byte) []byte { f[7] = 1; return f }, UnsupportedVersion},
		{"compression 2", func(f []byte) []byte { f[5] = 2; return f }, UnsupportedFlags},
		{"series table", func(f []byte) []byte { f[5] |= flagSeriesTable; return f }, UnsupportedFlags},
		{"flag 7", func(f []byte) []byte { f[5] |= 0x80; return f }, UnsupportedFlags},
		{"reserved 10", func(f []byte) []byte { f[10] = 1; return f }, BadHeader},
		{"reserved 39", func(f []byte) []byte { f[39] = 1; return f }, BadHeader},
		{"decoded length", func(f []byte) []byte { f[16]++; return f }, BadHeader},
		{"sequence backwards", func(f []byte) []byte { f[20] = 0xff; return f }, IdentityInvalid},
		{"other sequence", func(f []byte) []byte { f[28]++; return f }, IdentityMismatch},
		{"other agent", func(f []byte) []byte { f[40]++; return f }, IdentityMismatch},
		{"other boot", func(f []byte) []byte { f[47]++; return f }, IdentityMismatch},
		{"agent not UTF-8", func(f []byte) []byte { f[40] = 0xff; return f }, IdentityInvalid},
		{"agent moved into boot", func(f []byte) []byte { f[36], f[37] = 5, 3; return f }, IdentityMismatch},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := c.change(encode(t, sampleBatch(t), Options{Uncompressed: true}))
			if len(f) > 50 {
				f = reseal(f)
			}
			wantReason(t, Decode(f, &Batch{}, Limits{}), c.want)
		})
	}
}

func TestLimitsAreChecked(t *testing.T) {
	f := encode(t, sampleBatch(t), Options{})
	for _, c := range []struct {
		lim  Limits
		want Reason
	}{
		{Limits{EncodedBytes: len(f) - 1}, TooLarge},
		{Limits{DecodedBytes: 300}, DecodedTooLarge},
		{Limits{DecodedBytes: 700}, DecodedTooLarge}, // room for the payload, not for its tables
		{Limits{Records: 54}, TooManyRecords},
		{Limits{SeriesLabels: 3}, BadLabels}, // four when the resource is merged
		{Limits{LabelNameBytes: 7}, BadLabels},
		{Limits{LabelValueBytes: 8}, BadLabels},
	} {
		wantReason(t, Decode(f, &Batch{}, c.lim), c.want)
		_, err := NewEncoder(Options{Limits: c.lim}).Encode(nil, sampleBatch(t))
		wantReason(t, err, c.want)
	}
	must(t, Decode(f, &Batch{}, Limits{EncodedBytes: len(f), Records: 55, SeriesLabels: 4}))

	// Writer and reader count the memory of tables alike.
	for _, b := range []*Batch{sampleBatch(t), histogramBatch(t), helpBatch(t)} {
		f, cost := encode(t, b, Options{}), b.tableCost()
		must(t, Decode(f, &Batch{}, Limits{DecodedBytes: cost}))
		wantReason(t, Decode(f, &Batch{}, Limits{DecodedBytes: cost - 1}), DecodedTooLarge)
	}
}

func TestBatchRefusals(t *testing.T) {
	cases := []struct {
		name   string
		change func(b *Batch)
		want   Reason
	}{
		{"no name", func(b *Batch) { b.Groups[0].Series[0].Labels = b.Groups[0].Series[0].Labels[1:] }, BadLabels},
		{"no labels", func(b *Batch) { b.Groups[0].Series[0].Labels = nil }, BadLabels},
		{"labels not sorted", func(b *Batch) { l := b.Groups[0].Series[0].Labels; l[0], l[1] = l[1], l[0] }, BadLabels},
		{"label twice", func(b *Batch) { l := b.Groups[0].Series[0].Labels; l[1] = l[0] }, BadLabels},
		{"reference beyond the table", func(b *Batch) { b.Groups[0].Series[0].Labels[1].Value = 1000 }, BadLabels},
		{"resource not sorted", func(b *Batch) { b.Resource[0], b.Resource[1] = b.Resource[1], b.Resource[0] }, BadLabels},
		{"resource with a metric name", func(b *Batch) { b.Resource = b.Groups[0].Series[0].Labels[:1] }, BadLabels},
		{"not UTF-8", func(b *Batch) { b.Strings[2] = "\xff" }, BadLabels},
		{"long value", func(b *Batch) { b.Strings[b.Resource[0].Value] = strings.Repeat("v", 2049) }, BadLabels},
		{"long unit", func(b *Batch) { b.Strings[b.Groups[0].Series[2].Unit] = strings.Repeat("u", 257) }, BadLabels},
		{"unknown type", func(b *Batch) { b.Groups[0].Series[0].Type = series.Info + 1 }, BadPayload},
		{"samples of a histogram type", func(b *Batch) { b.Groups[0].Series[0].Type = series.HistogramDelta }, BadPayload},
		{"equal timestamps", func(b *Batch) { b.Groups[0].Timestamps[3] = b.Groups[0].Timestamps[2] }, BadColumn},
		{"a record too few", func(b *Batch) { b.Identity.SeqEnd++ }, RecordCountMismatch},
		{"a record too many", func(b *Batch) { b.Identity.SeqEnd-- }, RecordCountMismatch},
		{"no groups", func(b *Batch) { b.Groups = nil }, RecordCountMismatch},
		{"empty agent", func(b *Batch) { b.Identity.Agent = "" }, IdentityInvalid},
		{"many records", func(b *Batch) { b.Identity.SeqEnd = 2e6 }, TooManyRecords},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := sampleBatch(t)
			c.change(b)
			wantReason(t, b.Validate(Limits{}), c.want)
			_, err := Encode(nil, b)
			wantReason(t, err, c.want)
			wantReason(t, Decode(unchecked(b), &Batch{}, Limits{}), c.want)
		})
	}
}

func TestHistogramRefusals(t *testing.T) {
	cases := map[string]func(h *series.Histogram){
		"schema":                  func(h *series.Histogram) { h.Schema = -10 },
		"bounds elsewhere":        func(h *series.Histogram) { h.CustomValues = []float64{1} },
		"negative count":          func(h *series.Histogram) { h.Count = -1 },
		"negative bucket":         func(h *series.Histogram) { h.PositiveBuckets[0] = -1 },
		"NaN zero threshold":      func(h *series.Histogram) { h.ZeroThreshold = -1 },
		"span without length":     func(h *series.Histogram) { h.PositiveSpans = []int32{0} },
		"fewer buckets":           func(h *series.Histogram) { h.PositiveBuckets = h.PositiveBuckets[1:] },
		"span backwards":          func(h *series.Histogram) { h.PositiveSpans[2] = -1 },
		"beyond float64":          func(h *series.Histogram) { h.Schema, h.PositiveSpans[0] = 3, 1<<14 },
		"beyond float64, below 1": func(h *series.Histogram) { h.Schema, h.PositiveSpans[0] = 3, -1<<14-1 },
		"beyond 32 bits": func(h *series.Histogram) {
			h.Schema, h.NegativeSpans, h.NegativeBuckets = 52, []int32{1 << 30, 0, 1 << 30, 0}, nil
		},
		"custom below": func(h *series.Histogram) {
			*h = series.Histogram{Schema: series.CustomBounds, PositiveSpans: []int32{-1, 1}, PositiveBuckets: []float64{1}}
		},
		"custom beyond": func(h *series.Histogram) {
			*h = series.Histogram{Schema: series.CustomBounds, PositiveSpans: []int32{1, 1}, PositiveBuckets: []float64{1}}
		},
		"custom unsorted": func(h *series.Histogram) {
			*h = series.Histogram{Schema: series.CustomBounds, CustomValues: []float64{2, 1}}
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			b := histogramBatch(t)
			change(&b.Groups[0].Histograms[1])
			wantReason(t, b.Validate(Limits{}), BadHistogram)
			wantReason(t, Decode(unchecked(b), &Batch{}, Limits{}), BadHistogram)
		})
	}
}

// Whatever lies within float64 has a bucket, in every schema.
func TestEveryFloatHasABucket(t *testing.T) {
	for schema := int32(-9); schema <= 18; schema++ {
		last := int32(math.Ceil(math.Ldexp(1024, int(schema))))
		for _, at := range []int32{last, -last - last/16} { // down to 2^-1074
			b := histogramBatch(t)
			b.Groups[0].Histograms[1] = series.Histogram{Schema: schema, Count: 1, PositiveSpans: []int32{at, 1}, PositiveBuckets: []float64{1}}
			if err := b.Validate(Limits{}); err != nil {
				t.Errorf("schema %d: %v", schema, err)
			}
		}
	}
}

// Fields beyond the schema, out of order or twice would let two readers see two batches.
func TestPayloadFieldsAreStrict(t *testing.T) {
	b := sampleBatch(t)
	var w payloadWriter
	payload := strings.Clone(string(w.write(b)))
	for name, p := range map[string]string{
		"unknown field":     payload + "\x7a\x00",
		"identity again":    payload + payload[:2+payload[1]],
		"nothing":           "",
		"identity only":     payload[:2+payload[1]],
		"group tag alone":   payload + "\x2a",
		"group too long":    payload + "\x2a\xff\xff\xff\xff\x7f",
		"endless varint":    payload + "\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"group of nothing":  payload + "\x2a\x00",
		"other wire type":   payload + "\x28\x00",
		"two-byte tag":      payload + "\xaa\x00\x00",
		"cut in the middle": payload[:len(payload)/2],
	} {
		err := Decode(rawFrame(b.Identity, None, []byte(p), len(p)), &Batch{}, Limits{})
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		} else if e.Reason != BadPayload && e.Reason != IdentityMismatch && e.Reason != RecordCountMismatch {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func compress(t *testing.T, p []byte, o ...zstd.EOption) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil, o...)
	must(t, err)
	defer func() { must(t, z.Close()) }()
	return z.EncodeAll(p, nil)
}

func TestCompressionRefusals(t *testing.T) {
	b := sampleBatch(t)
	var w payloadWriter
	payload := w.write(b)
	good := compress(t, payload, zstd.WithSingleSegment(true))
	must(t, Decode(rawFrame(b.Identity, Zstd, good, len(payload)), &Batch{}, Limits{}))
	skippable := []byte{0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 0}
	cases := map[string]struct {
		data    []byte
		decoded int
	}{
		"not zstd":          {payload, len(payload)},
		"declares less":     {good, len(payload) - 1},
		"declares more":     {good, len(payload) + 1},
		"two frames":        {append(append([]byte{}, good...), good...), len(payload)},
		"frame and garbage": {append(append([]byte{}, good...), 0), len(payload)},
		"skippable before":  {append(append([]byte{}, skippable...), good...), len(payload)},
		"skippable after":   {append(append([]byte{}, good...), skippable...), len(payload)},
		"cut":               {good[:len(good)-1], len(payload)},
		"empty":             {nil, len(payload)},
	}
	for name, c := range cases {
		err := Decode(rawFrame(b.Identity, Zstd, c.data, c.decoded), &Batch{}, Limits{})
		if !errors.Is(err, BadCompression) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSequenceAtTheEnd(t *testing.T) {
	b := sampleBatch(t)
	n := b.Identity.Count()
	b.Identity.SeqStart, b.Identity.SeqEnd = ^uint64(0)-n+1, ^uint64(0)
	info, err := Inspect(encode(t, b, Options{}), Limits{})
	must(t, err)
	if info.Identity != b.Identity || info.Records != n {
		t.Errorf("%+v", info)
	}
	builder := NewBuilder()
	id, err := builder.AddSeries([]series.Label{{Name: series.MetricName, Value: "x"}}, series.Gauge, "", 0)
	must(t, err)
	must(t, builder.Append(id, 1, 1))
	must(t, builder.Append(id, 2, 1))
	_, err = builder.Build(boot, ^uint64(0))
	wantReason(t, err, IdentityInvalid)
	_, err = builder.Build(identity.Boot{Agent: "a"}, 1)
	wantReason(t, err, IdentityInvalid)
}
