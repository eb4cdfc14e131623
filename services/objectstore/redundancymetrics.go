package objectstore

import (
	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/redundancy"
)

// redundancyMetrics describe how redundant bodies are; there are none without places.
type redundancyMetrics struct{ of *keeping }

var (
	redundancyFiles = prometheus.NewDesc("lightmetrics_objectstore_redundancy_files",
		"Files of bodies on the places, by state.", []string{"state"}, nil)
	redundancyMissing = prometheus.NewDesc("lightmetrics_objectstore_redundancy_missing_files",
		"Files that were on a place and are to be made again.", nil, nil)
	redundancyQueued = prometheus.NewDesc("lightmetrics_objectstore_redundancy_queued_bodies",
		"Bodies that need a file written, read back, moved or removed.", nil, nil)
	redundancyOldest = prometheus.NewDesc("lightmetrics_objectstore_redundancy_backlog_seconds",
		"How long the body has waited that waits longest.", nil, nil)
	redundancyDead = prometheus.NewDesc("lightmetrics_objectstore_redundancy_dead_letters",
		"Bodies that were tried too often.", nil, nil)
	redundancyDown = prometheus.NewDesc("lightmetrics_objectstore_redundancy_ledger_down",
		"1 while the ledger takes no changes: bodies stay as they are until a restart.", nil, nil)
	redundancyPolicy = prometheus.NewDesc("lightmetrics_objectstore_redundancy_policy_version",
		"Version of the policy in force.", nil, nil)
	redundancyOverdue = prometheus.NewDesc("lightmetrics_objectstore_redundancy_scrub_overdue_seconds",
		"How long reading back all files is behind its period.", nil, nil)
	redundancyMade = prometheus.NewDesc("lightmetrics_objectstore_redundancy_made_files_total",
		"Files that were written to places after the write of their body.", nil, nil)
	redundancyMadeBytes = prometheus.NewDesc("lightmetrics_objectstore_redundancy_made_bytes_total",
		"Bytes of these files.", nil, nil)
	redundancyRead = prometheus.NewDesc("lightmetrics_objectstore_redundancy_read_bytes_total",
		"Bytes of files that were read back.", nil, nil)
	redundancyDamaged = prometheus.NewDesc("lightmetrics_objectstore_redundancy_damaged_files_total",
		"Files that were found damaged.", nil, nil)
	redundancyMoved = prometheus.NewDesc("lightmetrics_objectstore_redundancy_moved_files_total",
		"Files that were moved to another place.", nil, nil)
	placeUsed = prometheus.NewDesc("lightmetrics_objectstore_place_used_bytes",
		"Bytes of the files that the store has on a place.", []string{"place"}, nil)
	placeRoom = prometheus.NewDesc("lightmetrics_objectstore_place_room_bytes",
		"What the store may have on a place, its files included; none where that is not known.", []string{"place"}, nil)
	placeFull = prometheus.NewDesc("lightmetrics_objectstore_place_full",
		"1 while a place gets no more files.", []string{"place"}, nil)
	redundancyRemoved = prometheus.NewDesc("lightmetrics_objectstore_redundancy_removed_files_total",
		"Files that were removed because their bodies are kept by others, or are gone.", nil, nil)
)

// Describe implements prometheus.Collector.
func (*redundancyMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{redundancyFiles, redundancyMissing, redundancyQueued, redundancyOldest, redundancyDead, redundancyDown, redundancyPolicy,
		redundancyOverdue, redundancyMade, redundancyMadeBytes, redundancyRead, redundancyDamaged, redundancyMoved, redundancyRemoved, placeUsed, placeRoom, placeFull} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *redundancyMetrics) Collect(ch chan<- prometheus.Metric) {
	keeper := m.of.get()
	if keeper == nil {
		return
	}
	s, err := keeper.Status()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(redundancyDown, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, f := range s.Files {
		gauge(redundancyFiles, float64(f.Files), f.State)
	}
	gauge(redundancyMissing, float64(s.Missing))
	gauge(redundancyQueued, float64(s.Queued))
	gauge(redundancyOldest, s.OldestSeconds)
	gauge(redundancyDead, float64(s.DeadLetters))
	gauge(redundancyDown, truth(s.Error != ""))
	gauge(redundancyPolicy, float64(s.Policy.Version))
	gauge(redundancyOverdue, s.Overdue().Seconds())
	for _, p := range s.Places {
		gauge(placeUsed, float64(p.Used), p.Name)
		gauge(placeFull, truth(p.Full), p.Name)
		if p.Room > 0 {
			gauge(placeRoom, float64(p.Room), p.Name)
		}
	}
	m.count(ch, s.Counters)
}

func (*redundancyMetrics) count(ch chan<- prometheus.Metric, c redundancy.Counters) {
	for _, v := range []struct {
		desc *prometheus.Desc
		n    int64
	}{
		{redundancyMade, c.FilesMade}, {redundancyMadeBytes, c.BytesMade}, {redundancyRead, c.BytesRead},
		{redundancyDamaged, c.FilesDamaged}, {redundancyMoved, c.FilesMoved}, {redundancyRemoved, c.FilesRemoved},
	} {
		ch <- prometheus.MustNewConstMetric(v.desc, prometheus.CounterValue, float64(v.n))
	}
}
