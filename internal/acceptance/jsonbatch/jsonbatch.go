// Package jsonbatch encodes a batch that was sent as JSON into a frame; docs/format/batch-json.md
// describes the JSON. The frame depends only on the meaning of the JSON: key order, white space,
// the order of samples and the notation of numbers do not change its bytes. So a batch that is
// sent again, through any collector, becomes the same frame, and is a duplicate.
package jsonbatch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Limits of the JSON form, in addition to those of frames: bytes of a body and samples of a batch.
const (
	MaxBytes   = 1 << 20
	MaxSamples = 10_000
)

// MediaType of the JSON form.
const MediaType = "application/json"

// types maps the names in JSON to metric types.
var types = map[string]series.Type{
	"unknown": series.Unknown, "gauge": series.Gauge, "counter": series.Counter, "delta_counter": series.DeltaCounter,
	"histogram_cumulative": series.HistogramCumulative, "histogram_delta": series.HistogramDelta, "histogram_gauge": series.HistogramGauge, "info": series.Info,
}

// nan is the value of "NaN": the bits of Prometheus's normal NaN, because equal batches must give equal bytes.
var nan = math.Float64frombits(0x7ff8000000000001)

type batch struct {
	boot    identity.Boot
	first   uint64
	labels  []series.Label
	help    []series.Label // metric and text
	samples []sample
}

type sample struct {
	name      string
	labels    []series.Label // sorted by name, without empty values
	typ       series.Type
	unit      string
	start     int64 // Unix nanoseconds; 0 is unknown
	time      int64
	value     float64
	histogram *series.Histogram
}

// Encode makes the frame of a JSON batch; the frame passes a receiver with the limits lim. Errors are
// *frame.Error: BAD_JSON for what is not a JSON batch, else the frame's own reasons.
func Encode(body []byte, lim frame.Limits) ([]byte, error) {
	if len(body) > MaxBytes {
		return nil, &frame.Error{Reason: frame.TooLarge, Detail: fmt.Sprintf("JSON of %d bytes, at most %d", len(body), MaxBytes)}
	}
	b, err := parse(body)
	if err != nil {
		return nil, err
	}
	return b.encode(lim)
}

// encode writes the samples in canonical order: by series, then by time.
func (b *batch) encode(lim frame.Limits) ([]byte, error) {
	slices.SortFunc(b.samples, func(x, y sample) int {
		return cmp.Or(cmp.Compare(x.name, y.name), slices.CompareFunc(x.labels, y.labels, compareLabels), cmp.Compare(x.typ, y.typ),
			cmp.Compare(x.unit, y.unit), cmp.Compare(x.start, y.start), cmp.Compare(x.time, y.time))
	})
	fb := frame.NewBuilderWithLimits(lim)
	if err := fb.SetResource(b.labels...); err != nil {
		return nil, err
	}
	for i := range b.samples {
		s := &b.samples[i]
		id, err := fb.AddSeries(append([]series.Label{{Name: series.MetricName, Value: s.name}}, s.labels...), s.typ, s.unit, s.start)
		if err != nil {
			return nil, s.wrap(err)
		}
		if s.histogram != nil {
			err = fb.AppendHistogram(id, s.time, *s.histogram)
		} else {
			err = fb.Append(id, s.time, s.value)
		}
		if err != nil {
			return nil, s.wrap(err)
		}
	}
	for _, h := range b.help {
		if err := fb.SetHelp(h.Name, h.Value); err != nil {
			return nil, fmt.Errorf("help of %q: %w", clip(h.Name), err)
		}
	}
	out, err := fb.Build(b.boot, b.first)
	if err != nil {
		return nil, err
	}
	// Uncompressed: the bytes of compression depend on the version of its library, so two collectors could make different frames.
	return frame.NewEncoder(frame.Options{Uncompressed: true, Limits: lim}).Encode(nil, out)
}

// wrap names the sample by metric and time. Its index would not help: samples were sorted since.
func (s *sample) wrap(err error) error {
	return fmt.Errorf("sample of %q at %d ms: %w", clip(s.name), s.time/1e6, err)
}

func compareLabels(x, y series.Label) int {
	return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Value, y.Value))
}

// parser reads tokens of JSON; path is its position in the document, for errors.
type parser struct {
	dec  *json.Decoder
	path []string
}

func parse(body []byte) (*batch, error) {
	p := &parser{dec: json.NewDecoder(bytes.NewReader(body))}
	// Numbers stay text until their type is known: as float64, a first_seq above 2^53 would be rounded.
	p.dec.UseNumber()
	// The decoder would replace invalid bytes by U+FFFD, so that two different texts became one.
	if !utf8.Valid(body) {
		return nil, p.refuse("not UTF-8")
	}
	if loneSurrogate(body) {
		return nil, p.refuse(`a \u escape of half a character`)
	}
	b := &batch{}
	if err := p.batch(b); err != nil {
		return nil, err
	}
	// A second value after the batch would be lost silently.
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, p.refuse("something follows the batch")
	}
	return b, nil
}

func (p *parser) batch(b *batch) error {
	need := required{"agent": true, "boot": true, "first_seq": true, "samples": true}
	return p.object(need, func(key string) (err error) {
		switch key {
		case "agent":
			b.boot.Agent, err = p.text()
		case "boot":
			b.boot.Boot, err = p.text()
		case "first_seq":
			b.first, err = p.unsigned()
		case "labels":
			b.labels, err = p.labels()
		case "help":
			b.help, err = p.labels()
		case "samples":
			err = p.array(func() error {
				// Checked before the sample is parsed, so that memory stays bounded.
				if len(b.samples) == MaxSamples {
					return &frame.Error{Reason: frame.TooManyRecords, Detail: fmt.Sprintf("more than %d samples", MaxSamples)}
				}
				var s sample
				if err := p.sample(&s); err != nil {
					return err
				}
				b.samples = append(b.samples, s)
				return nil
			})
		default:
			err = p.refuse("is no key of a batch")
		}
		return err
	})
}

func (p *parser) sample(s *sample) error {
	valued := false
	need := required{"name": true, "time_unix_ms": true}
	err := p.object(need, func(key string) (err error) {
		switch key {
		case "name":
			s.name, err = p.text()
		case "labels":
			s.labels, err = p.labels()
		case "type":
			s.typ, err = p.typ()
		case "unit":
			s.unit, err = p.text()
		case "start_unix_ms":
			s.start, err = p.millis()
		case "time_unix_ms":
			s.time, err = p.millis()
		case "value":
			valued = true
			s.value, err = p.float()
		case "histogram":
			s.histogram = &series.Histogram{}
			err = p.histogram(s.histogram)
		default:
			err = p.refuse("is no key of a sample")
		}
		return err
	})
	if err == nil && valued == (s.histogram != nil) {
		return p.refuse("want value or histogram, one of them")
	}
	return err
}

func (p *parser) histogram(h *series.Histogram) error {
	need := required{"schema": true, "count": true, "sum": true}
	return p.object(need, func(key string) (err error) {
		switch key {
		case "schema":
			h.Schema, err = p.int32()
		case "count":
			h.Count, err = p.float()
		case "sum":
			h.Sum, err = p.float()
		case "zero_count":
			h.ZeroCount, err = p.float()
		case "zero_threshold":
			h.ZeroThreshold, err = p.float()
		case "positive_spans":
			h.PositiveSpans, err = list(p, p.int32)
		case "positive_buckets":
			h.PositiveBuckets, err = list(p, p.float)
		case "negative_spans":
			h.NegativeSpans, err = list(p, p.int32)
		case "negative_buckets":
			h.NegativeBuckets, err = list(p, p.float)
		case "custom_values":
			h.CustomValues, err = list(p, p.float)
		default:
			err = p.refuse("is no key of a histogram")
		}
		return err
	})
}

// required names the keys that an object must have.
type required map[string]bool

// refuse makes a BAD_JSON error that names the path.
func (p *parser) refuse(format string, args ...any) error {
	where := strings.Join(p.path, "")
	if where == "" {
		where = "batch"
	}
	return &frame.Error{Reason: frame.BadJSON, Detail: strings.TrimPrefix(where, ".") + ": " + fmt.Sprintf(format, args...)}
}

func (p *parser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			// A bare EOF would mean to callers that the document has ended.
			err = io.ErrUnexpectedEOF
		}
		return nil, p.refuse("byte %d: %v", p.dec.InputOffset(), err)
	}
	return t, nil
}

// object calls fn for each key; fn reads the key's value. A key that occurs twice is refused, because readers disagree on which one counts.
func (p *parser) object(need required, fn func(key string) error) error {
	t, err := p.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return p.refuse("want an object")
	}
	seen := map[string]bool{}
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return err
		}
		key := t.(string) // the decoder returns nothing else where a key is expected
		p.path = append(p.path, "."+clip(key))
		if seen[key] {
			return p.refuse("is there twice")
		}
		seen[key] = true
		if err := fn(key); err != nil {
			return err
		}
		p.path = p.path[:len(p.path)-1]
	}
	if _, err := p.token(); err != nil {
		return err
	}
	// Sorted, so that the same body always gets the same message.
	for _, key := range slices.Sorted(keys(need)) {
		if !seen[key] {
			return p.refuse("has no %s", key)
		}
	}
	return nil
}

func keys(r required) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range r {
			if !yield(k) {
				return
			}
		}
	}
}

// array calls fn for each element; fn reads it.
func (p *parser) array(fn func() error) error {
	t, err := p.token()
	if err != nil {
		return err
	}
	if t != json.Delim('[') {
		return p.refuse("want an array")
	}
	for i := 0; p.dec.More(); i++ {
		p.path = append(p.path, "["+strconv.Itoa(i)+"]")
		if err := fn(); err != nil {
			return err
		}
		p.path = p.path[:len(p.path)-1]
	}
	_, err = p.token()
	return err
}

func list[T any](p *parser, one func() (T, error)) ([]T, error) {
	var out []T
	err := p.array(func() error {
		v, err := one()
		out = append(out, v)
		return err
	})
	return out, err
}

func (p *parser) text() (string, error) {
	t, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", p.refuse("want a string")
	}
	return s, nil
}

// labels reads an object of texts. They come sorted by name; an empty value is the same as no
// label, as in Prometheus, and is left out.
func (p *parser) labels() ([]series.Label, error) {
	var out []series.Label
	err := p.object(nil, func(name string) error {
		value, err := p.text()
		if err == nil && value != "" {
			out = append(out, series.Label{Name: name, Value: value})
		}
		return err
	})
	slices.SortFunc(out, compareLabels)
	return out, err
}

func (p *parser) typ() (series.Type, error) {
	name, err := p.text()
	if err != nil {
		return 0, err
	}
	t, ok := types[name]
	if !ok {
		return 0, p.refuse("no type %q", clip(name))
	}
	return t, nil
}

// number returns the text of a number as it is written.
func (p *parser) number() (string, error) {
	t, err := p.token()
	if err != nil {
		return "", err
	}
	n, ok := t.(json.Number)
	if !ok {
		return "", p.refuse("want a number")
	}
	return string(n), nil
}

func (p *parser) unsigned() (uint64, error) {
	n, err := p.number()
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseUint(n, 10, 64)
	if err != nil {
		return 0, p.refuse("%s: want a whole number from 0 to 2^64-1", clip(n))
	}
	return v, nil
}

// millis reads a time in milliseconds and returns nanoseconds.
func (p *parser) millis() (int64, error) {
	n, err := p.number()
	if err != nil {
		return 0, err
	}
	const limit = math.MaxInt64 / 1_000_000
	v, err := strconv.ParseInt(n, 10, 64)
	if err != nil || v > limit || v < -limit {
		return 0, p.refuse("%s: want whole milliseconds since 1970 that fit into 64 bits of nanoseconds", clip(n))
	}
	return v * 1_000_000, nil
}

func (p *parser) int32() (int32, error) {
	n, err := p.number()
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseInt(n, 10, 32)
	if err != nil {
		return 0, p.refuse("%s: want a whole number of 32 bits", clip(n))
	}
	return int32(v), nil
}

// float reads a number, or one of the texts "NaN", "+Inf" and "-Inf", which JSON has no numbers for.
func (p *parser) float() (float64, error) {
	t, err := p.token()
	if err != nil {
		return 0, err
	}
	switch v := t.(type) {
	case json.Number:
		f, err := strconv.ParseFloat(string(v), 64)
		if err != nil {
			return 0, p.refuse("%s does not fit into a float64", clip(string(v)))
		}
		return f, nil
	case string:
		switch v {
		case "NaN":
			return nan, nil
		case "+Inf":
			return math.Inf(1), nil
		case "-Inf":
			return math.Inf(-1), nil
		}
	}
	return 0, p.refuse(`want a number, "NaN", "+Inf" or "-Inf"`)
}

// loneSurrogate reports a \u escape of one half of a surrogate pair. The decoder would replace it
// by U+FFFD, so that two different texts became one.
func loneSurrogate(b []byte) bool {
	half := func(b []byte) (int64, bool) {
		if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
			return 0, false
		}
		v, err := strconv.ParseInt(string(b[2:6]), 16, 32)
		return v, err == nil && v >= 0xd800 && v < 0xe000
	}
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		v, is := half(b[i:])
		if !is {
			i++ // skip the escaped character, which may be a backslash
			continue
		}
		low, pair := half(b[i+6:])
		if v >= 0xdc00 || !pair || low < 0xdc00 {
			return true
		}
		i += 11 // a pair is 12 bytes; the loop adds one
	}
	return false
}

// clip keeps untrusted text in messages short.
func clip(s string) string {
	if len(s) > 40 {
		return strings.ToValidUTF8(s[:40], "") + "…"
	}
	return s
}
