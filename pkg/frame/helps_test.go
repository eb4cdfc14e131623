package frame

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"lightmetrics.dev/lightmetrics/pkg/series"
	framev1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/frame/v1"
)

// helpBatch has two series of up, one of load, the others without a help.
func helpBatch(tb testing.TB) *Batch {
	tb.Helper()
	b := NewBuilder()
	for _, s := range [][2]string{{"load", "1"}, {"other", "1"}, {"up", "1"}, {"up", "2"}} {
		id, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: s[0]}, {Name: "i", Value: s[1]}}, series.Gauge, "", 0)
		must(tb, err)
		must(tb, b.Append(id, 1_800_000_000_000_000_000, 1))
	}
	must(tb, b.SetHelp("up", "Whether the target was réachable."))
	must(tb, b.SetHelp("load", "Load, 1 minute."))
	batch, err := b.Build(boot, 5)
	must(tb, err)
	return batch
}

// TestHelps: what is set for a metric arrives, once for all its series, by ascending name.
func TestHelps(t *testing.T) {
	want := helpBatch(t)
	var got Batch
	d := NewDecoder()
	must(t, d.Decode(encode(t, want, Options{}), &got, Limits{}))
	if diff := diffBatch(want, &got); diff != "" {
		t.Error(diff)
	}
	if len(got.Helps) != 2 || got.Strings[got.Helps[0].Name] != "load" || got.Strings[got.Helps[1].Name] != "up" ||
		got.Helps[1].Text != "Whether the target was réachable." {
		t.Errorf("%+v of %q", got.Helps, got.Strings)
	}
	// The memory that a batch with helps lent shows no helps in one without.
	must(t, d.Decode(encode(t, sampleBatch(t), Options{}), &got, Limits{}))
	if len(got.Helps) != 0 {
		t.Errorf("%+v", got.Helps)
	}
}

// TestHelpsAddToTheEnd: a payload without helps is what it was before there were any, and helps
// change nothing of the bytes before them.
func TestHelpsAddToTheEnd(t *testing.T) {
	b := helpBatch(t)
	var w payloadWriter
	with := bytes.Clone(w.write(b))
	b.Helps = nil
	without := w.write(b)
	if !bytes.HasPrefix(with, without) || with[len(without)] != 9<<3|wireBytes {
		t.Errorf("with helps\n%x, without\n%x", with, without)
	}
}

func TestBuilderHelps(t *testing.T) {
	b := NewBuilder()
	id := add(t, b, series.Label{Name: series.MetricName, Value: "up"}, series.Label{Name: "job", Value: "j"})
	add(t, b, series.Label{Name: series.MetricName, Value: "no_records"})
	must(t, b.Append(id, 1, 1))
	for name, text := range map[string]string{"down": "x", "": "x", "up": "", "no_records": "\xff"} {
		wantReason(t, b.SetHelp(name, text), BadHelp)
	}
	wantReason(t, b.SetHelp("up", strings.Repeat("x", 2049)), BadHelp)
	must(t, b.SetHelp("up", strings.Repeat("x", 2048)))
	must(t, b.SetHelp("no_records", "left out"))
	must(t, b.SetHelp("job", "names a label, no series"))
	must(t, b.SetHelp("up", "the last one"))
	batch, err := b.Build(boot, 1)
	must(t, err)
	if len(batch.Helps) != 1 || batch.Helps[0].Text != "the last one" {
		t.Errorf("%+v", batch.Helps)
	}
	must(t, batch.Validate(Limits{}))
	b.Reset()
	must(t, b.Append(add(t, b, series.Label{Name: series.MetricName, Value: "up"}), 1, 1))
	if batch, err = b.Build(boot, 1); err != nil || len(batch.Helps) != 0 {
		t.Errorf("after Reset: %+v, %v", batch.Helps, err)
	}
}

// Every rule of docs/format/frame.md about helps, broken one at a time, in a Batch.
func TestHelpRefusals(t *testing.T) {
	for name, change := range map[string]func(b *Batch){
		"empty":           func(b *Batch) { b.Helps[0].Text = "" },
		"too long":        func(b *Batch) { b.Helps[0].Text = strings.Repeat("x", 2049) },
		"not UTF-8":       func(b *Batch) { b.Helps[1].Text = "a\xff" },
		"cut character":   func(b *Batch) { b.Helps[0].Text, b.Helps[1].Text = "a\xc3", "\xa9" },
		"twice":           func(b *Batch) { b.Helps[1].Name = b.Helps[0].Name },
		"descending":      func(b *Batch) { slices.Reverse(b.Helps) },
		"beyond strings":  func(b *Batch) { b.Helps[1].Name = uint32(len(b.Strings)) },
		"string 0":        func(b *Batch) { b.Helps[0].Name = 0 },
		"name of a label": func(b *Batch) { b.Helps[0].Name = b.Groups[0].Series[0].Labels[1].Name },
	} {
		b := helpBatch(t)
		change(b)
		t.Run(name, func(t *testing.T) {
			wantReason(t, b.Validate(Limits{}), BadHelp)
			wantReason(t, Decode(unchecked(b), &Batch{}, Limits{}), BadHelp)
		})
	}
	f := encode(t, helpBatch(t), Options{})
	must(t, Decode(f, &Batch{}, Limits{HelpBytes: 34}))
	wantReason(t, Decode(f, &Batch{}, Limits{HelpBytes: 33}), BadHelp)
}

// Columns that disagree with each other, that end early or stand elsewhere.
func TestHelpColumnRefusals(t *testing.T) {
	cases := map[string]struct {
		change func(m *framev1.Batch)
		want   Reason
	}{
		"no names":       {func(m *framev1.Batch) { m.HelpNames = nil }, BadHelp},
		"no lengths":     {func(m *framev1.Batch) { m.HelpLengths = nil }, BadHelp},
		"no texts":       {func(m *framev1.Batch) { m.Helps = "" }, BadHelp},
		"a name more":    {func(m *framev1.Batch) { m.HelpNames = append(m.HelpNames, 1) }, BadHelp},
		"a length more":  {func(m *framev1.Batch) { m.HelpLengths = append(m.HelpLengths, 0) }, BadHelp},
		"a text more":    {func(m *framev1.Batch) { m.Helps += "x" }, BadHelp},
		"names that add": {func(m *framev1.Batch) { m.HelpNames[1] = 1<<32 - 1 }, BadHelp},
	}
	for name, c := range cases {
		b := helpBatch(t)
		var w payloadWriter
		var m framev1.Batch
		must(t, proto.Unmarshal(w.write(b), &m))
		c.change(&m)
		payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(&m)
		must(t, err)
		t.Run(name, func(t *testing.T) {
			wantReason(t, Decode(rawFrame(b.Identity, None, payload, len(payload)), &Batch{}, Limits{}), c.want)
		})
	}
	b := helpBatch(t)
	var w payloadWriter
	payload := w.write(b)
	cut := payload[:len(payload)-1]
	wantReason(t, Decode(rawFrame(b.Identity, None, cut, len(cut)), &Batch{}, Limits{}), BadPayload)
	twice := append(bytes.Clone(payload), 11<<3|wireBytes, 0)
	wantReason(t, Decode(rawFrame(b.Identity, None, twice, len(twice)), &Batch{}, Limits{}), BadPayload)
}

func TestHelpText(t *testing.T) {
	for in, want := range map[string]string{
		"":                              "",
		"Bytes received.":               "Bytes received.",
		"a\xff\xfeb":                    "a?b",
		strings.Repeat("x", 3000):       strings.Repeat("x", 2048),
		strings.Repeat("x", 2047) + "é": strings.Repeat("x", 2047),
		strings.Repeat("x", 2046) + "é": strings.Repeat("x", 2046) + "é",
		strings.Repeat("\x80", 5000):    "",
	} {
		if got := HelpText([]byte(in)); got != want || !utf8.ValidString(got) {
			t.Errorf("%.20q… of %d bytes: %.20q… of %d, want %d", in, len(in), got, len(got), len(want))
		}
	}
}
