package objectstore

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/http1"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

type metrics struct {
	requests     *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
	syncSeconds  prometheus.Histogram
	perSync      prometheus.Histogram
	written      prometheus.Counter
	webhookPosts *prometheus.CounterVec
	webhookSent  *prometheus.CounterVec
	webhookLost  *prometheus.CounterVec
	reclaimed    prometheus.Counter
	slowBodies   prometheus.Counter
	rewritten    prometheus.Counter
	lifecycle    *prometheus.CounterVec

	lifecycleLocked prometheus.Counter

	connsRefused, connsDisplaced prometheus.Counter
	front                        atomic.Pointer[http1.Server]

	mu     sync.RWMutex
	answer map[answered]served // the series of requests: looking them up costs more than counting

	engine atomic.Pointer[engine.Engine] // replaced after a rebuild of the index
	fsyncs atomic.Int64                  // of the engines before the present one, and of places
	places atomic.Pointer[spread.Store]  // nil without places

	keeping keeping
}

// stats are those of the open engine; zero while the index is rebuilt.
func (m *metrics) stats() (s engine.Stats) {
	if e := m.engine.Load(); e != nil {
		s = e.Stats()
	}
	s.Fsyncs += m.fsyncs.Load()
	return s
}

// connections of clients; those of a start that failed are none.
func (m *metrics) connections() float64 {
	if f := m.front.Load(); f != nil {
		return float64(f.Conns())
	}
	return 0
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: "lightmetrics_objectstore_" + name, Help: help}
	}
	hist := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: "lightmetrics_objectstore_" + name, Help: help, Buckets: buckets}
	}
	latency := prometheus.ExponentialBuckets(0.00025, 2, 16)
	m := &metrics{
		answer:          map[answered]served{},
		requests:        prometheus.NewCounterVec(opts("requests_total", "Requests by operation and status."), []string{"op", "status"}),
		seconds:         prometheus.NewHistogramVec(hist("request_seconds", "Time to answer, by operation.", latency), []string{"op"}),
		syncSeconds:     prometheus.NewHistogram(hist("fsync_seconds", "Time of the log's fsyncs.", latency)),
		perSync:         prometheus.NewHistogram(hist("writes_per_fsync", "Records that one fsync made durable.", prometheus.ExponentialBuckets(1, 2, 11))),
		written:         prometheus.NewCounter(opts("log_written_bytes_total", "Bytes written to the log.")),
		webhookPosts:    prometheus.NewCounterVec(opts("webhook_posts_total", "POSTs to webhooks by outcome."), []string{"webhook", "outcome"}),
		webhookSent:     prometheus.NewCounterVec(opts("webhook_events_total", "Events that webhooks took."), []string{"webhook"}),
		webhookLost:     prometheus.NewCounterVec(opts("webhook_missed_records_total", "Log records that were reclaimed before a webhook read them."), []string{"webhook"}),
		slowBodies:      prometheus.NewCounter(opts("slow_bodies_total", "Bodies that were cut off because they stalled while others waited for their memory.")),
		rewritten:       prometheus.NewCounter(opts("rewritten_bytes_total", "Bytes of bodies that were encrypted again with the current key.")),
		lifecycle:       prometheus.NewCounterVec(opts("lifecycle_actions_total", "What lifecycle rules did: expire objects, remove versions and delete markers, abort uploads."), []string{"action"}),
		lifecycleLocked: prometheus.NewCounter(opts("lifecycle_locked_total", "Versions that lifecycle rules left because a lock keeps them, in every pass again.")),
		connsRefused:    prometheus.NewCounter(opts("connections_refused_total", "Connections that were closed at once because max_connections had requests.")),
		connsDisplaced:  prometheus.NewCounter(opts("connections_displaced_total", "Connections without a request that were closed for new ones at max_connections.")),
		reclaimed:       prometheus.NewCounter(opts("reclaimed_bytes_total", "Bytes of log segments that were dropped.")),
	}
	gauge := func(name, help string, f func(engine.Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_objectstore_" + name, Help: help},
			func() float64 { return f(m.stats()) })
	}
	for _, action := range []string{"expire", "remove", "abort"} {
		m.lifecycle.WithLabelValues(action) // so that a rate is 0 and not absent before the first
	}
	for _, c := range []prometheus.Collector{
		&placeMetrics{of: &m.places}, &redundancyMetrics{of: &m.keeping}, m.requests, m.seconds, m.syncSeconds, m.perSync, m.written, m.webhookPosts, m.webhookSent, m.webhookLost, m.reclaimed, m.slowBodies, m.rewritten, m.lifecycle, m.lifecycleLocked, m.connsRefused, m.connsDisplaced, newBucketCollector(m),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "lightmetrics_objectstore_fsyncs_total", Help: "Fsyncs of the log, of body files and of their directories."},
			func() float64 { return float64(m.stats().Fsyncs) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_objectstore_connections", Help: "Connections of clients."}, m.connections),
		gauge("objects", "Objects in the store.", func(s engine.Stats) float64 { return float64(s.Objects) }),
		gauge("object_bytes", "Sum of the sizes of all objects.", func(s engine.Stats) float64 { return float64(s.ObjectBytes) }),
		gauge("noncurrent_versions", "Versions that are not the current one, and delete markers.", func(s engine.Stats) float64 { return float64(s.Hidden) }),
		gauge("noncurrent_version_bytes", "Sum of the sizes of all versions that are not the current one.", func(s engine.Stats) float64 { return float64(s.HiddenBytes) }),
		gauge("segments", "Segments of the log.", func(s engine.Stats) float64 { return float64(s.Segments) }),
		gauge("coded_segments", "Segments of the log that are coded on the places, and no more on the drives of the log.", func(s engine.Stats) float64 { return float64(s.CodedSegments) }),
		gauge("coded_segment_bytes", "Length of these segments.", func(s engine.Stats) float64 { return float64(s.CodedBytes) }),
		gauge("uncoded_segments", "Segments that are to be coded and are not yet.", func(s engine.Stats) float64 { return float64(s.UncodedSegments) }),
		gauge("log_bytes", "Length of all segments that are on the drives of the log.", func(s engine.Stats) float64 { return float64(s.LogBytes) }),
		gauge("log_live_bytes", "Bytes of the log that are in use.", func(s engine.Stats) float64 { return float64(s.LiveBytes) }),
		gauge("index_disk_bytes", "Size of the index on disk.", func(s engine.Stats) float64 { return float64(s.IndexDiskBytes) }),
		gauge("damaged", "Places of the store that were found damaged and not repaired.", func(s engine.Stats) float64 { return float64(s.Damaged) }),
		gauge("uncertain", "1 while lost writes have unknown keys: conditions of absent keys are refused until lmctl store repair.",
			func(s engine.Stats) float64 { return truth(s.Uncertain) }),
		gauge("full", "1 while the disk is full: objects are read and deleted only.", func(s engine.Stats) float64 { return truth(s.Full) }),
		gauge("reserve_bytes", "Disk that is kept for deletes, reclaiming and the index.", func(s engine.Stats) float64 { return float64(s.ReserveBytes) }),
		gauge("disk_free_bytes", "Free disk beside the reserve; NaN when it is not known.", func(s engine.Stats) float64 {
			if s.FreeBytes < 0 {
				return math.NaN()
			}
			return float64(s.FreeBytes)
		}),
		gauge("rewrite_left_bytes", "Bytes of bodies that are not encrypted with the current key.", func(s engine.Stats) float64 { return float64(s.StaleBytes) }),
		gauge("key_missing_bytes", "Bytes of bodies that are encrypted with a key that was not given.", func(s engine.Stats) float64 { return float64(s.LockedBytes) }),
		gauge("poisoned", "1 after a failed fsync: the store only reads.", func(s engine.Stats) float64 { return truth(s.Poisoned) }),
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) batch(s engine.BatchStats) {
	if s.Written > 0 {
		m.syncSeconds.Observe(s.Sync.Seconds())
		m.perSync.Observe(float64(s.Written))
		m.written.Add(float64(s.Bytes))
	}
}

// answered is a kind of answer. There are as many as operations and statuses.
type answered struct {
	op     string
	status int
}

// served are the series of a kind of answer.
type served struct {
	requests prometheus.Counter
	seconds  prometheus.Observer
}

func (m *metrics) request(op string, status int, took time.Duration) {
	kind := answered{op, status}
	m.mu.RLock()
	s, ok := m.answer[kind]
	m.mu.RUnlock()
	if !ok {
		s = served{m.requests.WithLabelValues(op, strconv.Itoa(status)), m.seconds.WithLabelValues(op)}
		m.mu.Lock()
		m.answer[kind] = s
		m.mu.Unlock()
	}
	s.requests.Inc()
	s.seconds.Observe(took.Seconds())
}

// hook creates the counters of a webhook with 0, so that the increase from none to one is visible
// to alert rules.
func (m *metrics) hook(name string) {
	for _, outcome := range []string{"taken", "failed"} {
		m.webhookPosts.WithLabelValues(name, outcome)
	}
	m.webhookSent.WithLabelValues(name)
	m.webhookLost.WithLabelValues(name)
}

func (m *metrics) post(hook string) func(int, error) {
	return func(events int, err error) {
		if err != nil {
			m.webhookPosts.WithLabelValues(hook, "failed").Inc()
			return
		}
		m.webhookPosts.WithLabelValues(hook, "taken").Inc()
		m.webhookSent.WithLabelValues(hook).Add(float64(events))
	}
}
