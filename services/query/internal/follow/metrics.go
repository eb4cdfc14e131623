package follow

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
)

type metrics struct {
	taken         *prometheus.CounterVec
	records       prometheus.Counter
	frameBytes    prometheus.Counter
	lateness      prometheus.Histogram
	polls         *prometheus.CounterVec
	pollSeconds   prometheus.Histogram
	segments      prometheus.Counter
	fetchFailures prometheus.Counter
	watchEnds     prometheus.Counter
	hints         prometheus.Counter
	helps         *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, f *Follower) *metrics {
	p := promauto.With(reg)
	m := &metrics{
		taken: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_batches_total",
			Help: "Accepted batches that were taken, by outcome."}, []string{"outcome"}),
		records:    p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_records_total", Help: "Records that were inserted."}),
		frameBytes: p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_frame_bytes_total", Help: "Bytes of frames that were inserted."}),
		lateness: p.NewHistogram(prometheus.HistogramOpts{Name: "lightmetrics_query_visible_seconds",
			Help:    "Time from acceptance (the collector's clock) to being queryable here.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}}),
		polls: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_journal_polls_total",
			Help: "Polls of the acceptance journal, by outcome."}, []string{"outcome"}),
		pollSeconds: p.NewHistogram(prometheus.HistogramOpts{Name: "lightmetrics_query_journal_poll_seconds",
			Help: "Time of a poll of the acceptance journal.", Buckets: prometheus.ExponentialBuckets(.005, 4, 10)}),
		segments:      p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_journal_segments_total", Help: "Segments of the acceptance journal that polls read."}),
		fetchFailures: p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_fetch_failures_total", Help: "Frames that could not be fetched because the store did not answer; they are tried again."}),
		watchEnds:     p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_watch_ends_total", Help: "Watches of reconcilers and collectors that ended."}),
		hints:         p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_hints_total", Help: "Segments of the journal that a watch named."}),
		helps: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_helps_reads_total",
			Help: "Reads of the helps of metrics in blocks, at the start of the node, by outcome."}, []string{"outcome"}),
	}
	for _, outcome := range []string{"ok", "failed"} {
		m.polls.WithLabelValues(outcome) // alerts see the first failure
	}
	gauge := func(name, help string, fn func() float64) {
		p.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, fn)
	}
	gauge("lightmetrics_query_complete_through_timestamp_seconds", "Everything answered before it is accounted for; 0 before the first poll of the journal.", func() float64 {
		if t := f.Status().CompleteThrough; !t.IsZero() {
			return float64(t.UnixMilli()) / 1e3
		}
		return 0
	})
	gauge("lightmetrics_query_unreadable_batches", "Accepted batches that can't be read.", func() float64 { return float64(f.Status().Unread) })
	gauge("lightmetrics_query_queued_batches", "Batches whose frames are still to be fetched.", func() float64 { return float64(f.queue.waiting()) })
	gauge("lightmetrics_query_spoolers", "Collectors whose own disks may hold accepted batches that nobody can read.", func() float64 { return float64(len(f.Status().Spoolers)) })
	gauge("lightmetrics_query_boots", "Known (agent, boot) pairs.", func() float64 { return float64(f.Status().Boots) })
	stat := func(name, help string, fn func(live.Stats) float64) {
		gauge(name, help, func() float64 { return fn(f.d.Live.Stats()) })
	}
	stat("lightmetrics_query_live_series", "Series in memory.", func(s live.Stats) float64 { return float64(s.Series) })
	stat("lightmetrics_query_live_samples", "Records in memory.", func(s live.Stats) float64 { return float64(s.Samples) })
	stat("lightmetrics_query_live_batches", "Batches in memory.", func(s live.Stats) float64 { return float64(s.Batches) })
	stat("lightmetrics_query_live_bytes", "Estimated heap bytes of the data in memory.", func(s live.Stats) float64 { return float64(s.Bytes) })
	stat("lightmetrics_query_live_packed_bytes", "Part of the data in memory that is encoded samples, as memory is scarce.", func(s live.Stats) float64 { return float64(s.PackedBytes) })
	p.NewCounterFunc(prometheus.CounterOpts{Name: "lightmetrics_query_live_copied_samples_total",
		Help: "Samples that were copied in memory to merge batches."}, func() float64 { return float64(f.d.Live.Stats().Copied) })
	evicted := func(why string, fn func(live.Evicted) uint64) {
		p.NewCounterFunc(prometheus.CounterOpts{Name: "lightmetrics_query_live_evicted_batches_total",
			Help:        "Batches that were evicted because a memory bound was exceeded, by reason.",
			ConstLabels: prometheus.Labels{"reason": why}}, func() float64 { return float64(fn(f.d.Live.Stats().Evicted)) })
	}
	evicted("future", func(e live.Evicted) uint64 { return e.Future })
	evicted("agent_share", func(e live.Evicted) uint64 { return e.Agent })
	evicted("oldest", func(e live.Evicted) uint64 { return e.Oldest })
	return m
}

func (m *metrics) poll(got journal.Polled, err error, took time.Duration) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.polls.WithLabelValues(outcome).Inc()
	m.pollSeconds.Observe(took.Seconds())
	m.segments.Add(float64(got.Segments))
}

func (m *metrics) inserted(o live.Outcome, frameBytes int, records uint64) {
	switch o {
	case live.Inserted:
		m.taken.WithLabelValues("inserted").Inc()
		m.records.Add(float64(records))
		m.frameBytes.Add(float64(frameBytes))
	case live.Repeat:
		m.taken.WithLabelValues("repeat").Inc()
	case live.Expired:
		m.taken.WithLabelValues("expired").Inc()
	}
}

func (m *metrics) lag(d time.Duration) { m.lateness.Observe(positive(d).Seconds()) }
