package frame

import (
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

func add(t *testing.T, b *Builder, labels ...series.Label) SeriesID {
	t.Helper()
	id, err := b.AddSeries(labels, series.Gauge, "", 0)
	must(t, err)
	return id
}

// Records are numbered group by group, series by series, row by row.
func TestBuilderRecordOrder(t *testing.T) {
	b := NewBuilder()
	names := []string{"a", "b", "c", "d"}
	var ids []SeriesID
	for _, n := range names {
		ids = append(ids, add(t, b, series.Label{Name: series.MetricName, Value: n}))
	}
	idle := add(t, b, series.Label{Name: series.MetricName, Value: "idle"})
	for ts := range int64(3) { // as scrapes come: row by row
		for i, id := range ids {
			if i == 1 && ts == 1 {
				continue // b misses a row
			}
			must(t, b.Append(id, ts, float64(10*i)+float64(ts)))
		}
	}
	batch, err := b.Build(boot, 1000)
	must(t, err)
	if batch.Identity.SeqStart != 1000 || batch.Identity.SeqEnd != 1010 || batch.Records() != 11 || b.Records() != 11 {
		t.Errorf("identity %v, %d records", batch.Identity, batch.Records())
	}
	var order []string
	var values []float64
	for g := range batch.Groups {
		for s := range batch.Groups[g].Series {
			order = append(order, batch.Name(&batch.Groups[g].Series[s]))
		}
		values = append(values, batch.Groups[g].Values...)
	}
	if !slices.Equal(order, []string{"a", "c", "d", "b"}) {
		t.Errorf("series %v", order)
	}
	if !slices.Equal(values, []float64{0, 1, 2, 20, 21, 22, 30, 31, 32, 10, 12}) {
		t.Errorf("values %v", values)
	}
	if lo, hi := TimeRange(batch); lo != 0 || hi != 2 {
		t.Errorf("time range %d to %d", lo, hi)
	}
	_ = idle
}

func TestBuilderSeries(t *testing.T) {
	b := NewBuilder()
	x := add(t, b, series.Label{Name: "z", Value: "1"}, series.Label{Name: series.MetricName, Value: "up"}, series.Label{Name: "a", Value: "2"}, series.Label{Name: "empty", Value: ""})
	if y := add(t, b, series.Label{Name: "a", Value: "2"}, series.Label{Name: "z", Value: "1"}, series.Label{Name: series.MetricName, Value: "up"}); y != x {
		t.Errorf("series %d and %d", x, y)
	}
	for _, other := range []struct {
		typ   series.Type
		unit  string
		start int64
	}{{series.Counter, "", 0}, {series.Gauge, "s", 0}, {series.Gauge, "", 1}} {
		y, err := b.AddSeries([]series.Label{{Name: "a", Value: "2"}, {Name: "z", Value: "1"}, {Name: series.MetricName, Value: "up"}}, other.typ, other.unit, other.start)
		if err != nil || y == x {
			t.Errorf("%v: series %d, %v", other, y, err)
		}
	}
	must(t, b.Append(x, 1, 1))
	batch, err := b.Build(boot, 0)
	must(t, err)
	got := batch.AppendLabels(nil, &batch.Groups[0].Series[0])
	if want := []series.Label{{Name: series.MetricName, Value: "up"}, {Name: "a", Value: "2"}, {Name: "z", Value: "1"}}; !slices.Equal(got, want) {
		t.Errorf("labels %v", got)
	}
}

// A series that is refused leaves nothing behind, and the batch goes on.
func TestBuilderRefusesOneSeries(t *testing.T) {
	b := NewBuilder()
	for _, labels := range [][]series.Label{
		{{Name: "job", Value: "no name"}},
		{{Name: series.MetricName, Value: "x"}, {Name: "l", Value: "bad \xff"}},
		{{Name: series.MetricName, Value: "x"}, {Name: "l", Value: "1"}, {Name: "l", Value: "2"}},
		{{Name: series.MetricName, Value: "x"}, {Name: "", Value: "1"}},
		nil,
	} {
		_, err := b.AddSeries(labels, series.Gauge, "", 0)
		wantReason(t, err, BadLabels)
	}
	_, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: "x"}}, series.Info+1, "", 0)
	wantReason(t, err, BadPayload)
	_, err = b.AddSeries([]series.Label{{Name: series.MetricName, Value: "x"}}, series.Gauge, "\xff", 0)
	wantReason(t, err, BadLabels)
	wantReason(t, b.SetResource(series.Label{Name: "r", Value: "\xff"}), BadLabels)
	wantReason(t, b.SetResource(series.Label{Name: series.MetricName, Value: "r"}), BadLabels)
	_, err = b.Build(boot, 1)
	wantReason(t, err, RecordCountMismatch)

	id := add(t, b, series.Label{Name: series.MetricName, Value: "good"})
	wantReason(t, b.SetResource(series.Label{Name: "late", Value: "1"}), BadLabels)
	must(t, b.Append(id, 5, 1))
	wantReason(t, b.Append(id, 5, 2), BadColumn)
	wantReason(t, b.Append(id, 4, 2), BadColumn)
	wantReason(t, b.AppendHistogram(id, 6, series.Histogram{}), BadColumn)
	h, err := b.AddSeries([]series.Label{{Name: series.MetricName, Value: "h"}}, series.HistogramGauge, "", 0)
	must(t, err)
	wantReason(t, b.Append(h, 6, 1), BadColumn)
	wantReason(t, b.AppendHistogram(h, 6, series.Histogram{Schema: 60}), BadHistogram)
	batch, err := b.Build(boot, 1)
	must(t, err)
	if want := []string{"", series.MetricName, "good", "h"}; !slices.Equal(batch.Strings, want) {
		t.Errorf("strings %q, want %q", batch.Strings, want)
	}
	if batch.Records() != 1 {
		t.Errorf("%d records", batch.Records())
	}
}

func TestBuilderLimitsRecords(t *testing.T) {
	b := NewBuilderWithLimits(Limits{Records: 2})
	id := add(t, b, series.Label{Name: series.MetricName, Value: "x"})
	must(t, b.Append(id, 1, 1))
	must(t, b.Append(id, 2, 1))
	wantReason(t, b.Append(id, 3, 1), TooManyRecords)
}

func TestResolvedLabels(t *testing.T) {
	batch := sampleBatch(t)
	got := batch.AppendLabels(nil, &batch.Groups[0].Series[1])
	want := []series.Label{{Name: series.MetricName, Value: "requests_total"}, {Name: "host", Value: "h1"}, {Name: "region", Value: "override"}, {Name: "zone", Value: "a"}}
	if !slices.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
	got = batch.AppendLabels(nil, &batch.Groups[1].Series[0])
	want = []series.Label{{Name: series.MetricName, Value: "once"}, {Name: "host", Value: "h1"}, {Name: "region", Value: "eu-west-1"}}
	if !slices.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
	for name := range batch.Labels(&batch.Groups[0].Series[0]) {
		if name == "host" {
			break // a caller may stop
		}
	}
}

func TestInspect(t *testing.T) {
	batch := sampleBatch(t)
	f := encode(t, batch, Options{})
	got, err := Inspect(f, Limits{})
	must(t, err)
	want := Summary{
		Identity: batch.Identity, FrameVersion: 1, WireVersion: 1, Compression: Zstd, FrameBytes: len(f),
		DecodedBytes: got.DecodedBytes, Records: 55, MinTime: -5, MaxTime: 1_800_000_080_000_000_000,
	}
	if got != want || got.DecodedBytes <= len(f)/2 {
		t.Errorf("%+v, want %+v", got, want)
	}
	var b Batch
	if again, err := NewDecoder().DecodeSummary(f, &b, Limits{}); err != nil || again != want {
		t.Errorf("%+v, %v", again, err)
	}
}
