package objectstore

import (
	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/mirror"
)

// driveMetrics are the figures of a store on several drives; a store on one has none of them.
type driveMetrics struct {
	status func() Drives
	errors *prometheus.Desc
	state  *prometheus.Desc
	plain  []plainMetric
}

type plainMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(Drives) float64
}

func newDriveMetrics(status func() Drives) *driveMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("lightmetrics_objectstore_mirror_"+name, help, labels, nil)
	}
	gauge := func(name, help string, f func(Drives) float64) plainMetric {
		return plainMetric{desc(name, help), prometheus.GaugeValue, f}
	}
	counter := func(name, help string, f func(Drives) float64) plainMetric {
		return plainMetric{desc(name, help), prometheus.CounterValue, f}
	}
	copying := func(f func(mirror.DriveStatus) int64) func(Drives) float64 {
		return func(s Drives) (n float64) {
			for _, d := range s.Drives {
				n += float64(f(d))
			}
			return n
		}
	}
	return &driveMetrics{
		status: status,
		errors: desc("drive_errors_total", "Calls that failed on a drive since it was opened.", "drive"),
		state:  desc("drive_in_sync", "1 while a drive has every acknowledged write.", "drive"),
		plain: []plainMetric{
			gauge("drives", "Drives that are to keep the log.", func(s Drives) float64 { return float64(len(s.Drives)) }),
			gauge("drives_in_sync", "Drives that have every acknowledged write.", func(s Drives) float64 { return float64(s.InSync) }),
			gauge("copy_bytes", "Bytes to compare of the drive that is brought in.", copying(func(d mirror.DriveStatus) int64 { return d.Total })),
			gauge("copy_compared_bytes", "Bytes that were compared of the drive that is brought in.", copying(func(d mirror.DriveStatus) int64 { return d.Compared })),
			gauge("copy_written_bytes", "Bytes that were different and written, of the drive that is brought in.", copying(func(d mirror.DriveStatus) int64 { return d.Written })),
			counter("mended_total", "Damaged copies that were put right from another drive.", func(s Drives) float64 { return float64(s.Mended) }),
			counter("other_reads_total", "Reads that the first drive could not serve, and another did.", func(s Drives) float64 { return float64(s.OtherReads) }),
			counter("scrubs_total", "Comparisons of all copies.", func(s Drives) float64 { return float64(s.Scrubs) }),
			counter("scrubbed_bytes_total", "Bytes of one copy that were compared with the others.", func(s Drives) float64 { return float64(s.ScrubbedBytes) }),
			counter("different_total", "Places where copies were not equal.", func(s Drives) float64 { return float64(s.Different) }),
			counter("beyond_repair_total", "Places of which no copy verifies.", func(s Drives) float64 { return float64(s.Damaged) }),
		},
	}
}

// Describe implements prometheus.Collector.
func (m *driveMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.errors
	ch <- m.state
	for _, p := range m.plain {
		ch <- p.desc
	}
}

// Collect implements prometheus.Collector.
func (m *driveMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.status()
	if len(s.Drives) == 0 {
		return // between two openings
	}
	for _, p := range m.plain {
		ch <- prometheus.MustNewConstMetric(p.desc, p.kind, p.value(s))
	}
	for _, d := range s.Drives {
		in := truth(d.State == mirror.Synced)
		ch <- prometheus.MustNewConstMetric(m.errors, prometheus.CounterValue, float64(d.Errors), d.Name)
		ch <- prometheus.MustNewConstMetric(m.state, prometheus.GaugeValue, in, d.Name)
	}
}
