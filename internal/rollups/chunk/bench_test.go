package chunk

import (
	"math"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
)

func benchFiles(b *testing.B) *Files {
	for _, series := range pieces(tsbs.Generate(1, 25, 359), 1) {
		if len(series[0].T) > 100 {
			return write(b, Options{}, series)
		}
	}
	b.Fatal("no hour with many rows")
	return nil
}

// BenchmarkReadIndex opens the index of 2,525 series, and selects one metric.
func BenchmarkReadIndex(b *testing.B) {
	f := benchFiles(b)
	b.ReportAllocs()
	b.SetBytes(int64(len(f.Index)))
	for b.Loop() {
		x, err := ReadIndex(f.Index, Limits{})
		if err != nil {
			b.Fatal(err)
		}
		if n := len(x.Select(Equal(nameLabel, "cpu_usage_user"))); n != 25 {
			b.Fatal(n)
		}
	}
}

// BenchmarkSelectHost selects a metric of a host in an index that is open.
func BenchmarkSelectHost(b *testing.B) {
	x := readIndex(b, benchFiles(b).Index)
	b.ReportAllocs()
	for b.Loop() {
		if n := len(x.Select(Equal(nameLabel, "cpu_usage_user"), Equal("hostname", "host_7"))); n != 1 {
			b.Fatal(n)
		}
	}
}

// BenchmarkColdSeries reads one metric of 25 hosts, 359 rows each, with a decoder that has seen nothing.
func BenchmarkColdSeries(b *testing.B) {
	f := benchFiles(b)
	x := readIndex(b, f.Index)
	series := x.Select(Equal(nameLabel, "cpu_usage_user"))
	d := NewDecoder(x, Limits{})
	var c Columns
	b.ReportAllocs()
	for b.Loop() {
		d.Reset(x)
		d.Put(0, f.Chunk)
		for _, i := range series {
			if _, err := d.Series(i, math.MinInt64, math.MaxInt64, ColV, &c); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkWrite makes the chunk and the index of 2,525 series of 359 rows.
func BenchmarkWrite(b *testing.B) {
	var series []*Series
	for _, ss := range pieces(tsbs.Generate(1, 25, 359), 1) {
		if len(ss[0].T) > 100 {
			series = ss
		}
	}
	w := NewWriter(Options{})
	b.ReportAllocs()
	samples := 0
	for b.Loop() {
		w.Reset()
		samples = 0
		for _, s := range series {
			if err := w.Add(s); err != nil {
				b.Fatal(err)
			}
		}
		f, err := w.Finish()
		if err != nil {
			b.Fatal(err)
		}
		samples = int(f.Samples)
	}
	b.ReportMetric(float64(b.N)*float64(samples)/b.Elapsed().Seconds()/1e6, "Msamples/s")
}

// BenchmarkReadAll decodes every series of the chunk of BenchmarkWrite.
func BenchmarkReadAll(b *testing.B) {
	f := benchFiles(b)
	x := readIndex(b, f.Index)
	d := NewDecoder(x, Limits{})
	var c Columns
	b.ReportAllocs()
	for b.Loop() {
		d.Reset(x)
		d.Put(0, f.Chunk)
		for i := range x.Len() {
			if _, err := d.Series(i, math.MinInt64, math.MaxInt64, AllColumns, &c); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.N)*float64(f.Samples)/b.Elapsed().Seconds()/1e6, "Msamples/s")
}
