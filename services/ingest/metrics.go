package ingest

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// metrics of a collector. No label value comes from a sender, so their number is bounded.
type metrics struct {
	batches  *prometheus.CounterVec // outcome, reason
	records  *prometheus.CounterVec // outcome
	bytes    *prometheus.CounterVec // outcome
	latency  *prometheus.HistogramVec
	hellos   *prometheus.CounterVec // reason; empty for accepted streams
	sheds    *prometheus.CounterVec // resource
	notified *prometheus.CounterVec // outcome
	landed   *prometheus.CounterVec // outcome
	putBack  prometheus.Counter
	probes   *prometheus.CounterVec // outcome

	ownWrites *prometheus.CounterVec
	inlined   prometheus.Counter
	spared    prometheus.Counter
	unneeded  prometheus.Counter
	skipped   *prometheus.CounterVec // why
	corrupt   *prometheus.CounterVec // step

	segments, journalFailures, fences prometheus.Counter
	segmentEntries, journalWait       prometheus.Histogram

	outcomes [accept.Conflict + 1]atomic.Pointer[outcomeMetrics] // nil before the first batch

	framesRead      *prometheus.CounterVec // outcome
	framesReadBytes prometheus.Counter

	orphanReports *prometheus.CounterVec // outcome
}

var ackBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

func newMetrics(r *prometheus.Registry, s *Service) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_ingest_" + name, Help: help}, labels)
	}
	one := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_ingest_" + name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lightmetrics_ingest_" + name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		batches: counter("batches_total", "Batches that were answered, by outcome (accepted, duplicate, conflict, rejected, retry) and reason.", "outcome", "reason"),
		records: counter("records_total", "Records of batches with an outcome.", "outcome"),
		bytes:   counter("frame_bytes_total", "Bytes of frames with an outcome.", "outcome"),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lightmetrics_ingest_ack_duration_seconds", Help: "Time from the admission of a batch to its answer.",
			Buckets: ackBuckets,
		}, []string{"outcome"}),
		hellos:   counter("hellos_total", "Streams that sent a hello, by the reason of their refusal; empty for those that were accepted.", "reason"),
		sheds:    counter("sheds_total", "Batches and streams that were refused for lack of a resource, by resource.", "resource"),
		notified: counter("notifications_total", "Hints about manifests and segments that were handed to a reconciler (sent) or not (dropped).", "outcome"),
		putBack: prometheus.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_ingest_frames_put_back_total",
			Help: "Quarantined frames that the store had lost, and that were put back from their sender's parked copy."}),
		landed: counter("landed_total", "Batches that left the local spool, by outcome (accepted, duplicate, conflict, parked).", "outcome"),
		probes: counter("store_probes_total", "Probes of the store's semantics, by outcome.", "outcome"),

		spared:    one("markers_spared_total", "Answers about a blob without a read of its condemned marker (marker_reads: epochs)."),
		inlined:   one("inlined_total", "Batches that were accepted with their frame in the manifest (inline_below)."),
		unneeded:  one("blobs_unneeded_total", "Blobs that were written or found, and that nothing refers to, because the manifest that exists carries the frame."),
		ownWrites: counter("own_writes_total", "Creates whose answer was lost and whose object was found to be this collector's own."),
		skipped:   counter("generations_skipped_total", "Generations of blobs that could not be relied on, by reason.", "why"),
		corrupt:   counter("corrupt_records_total", "Records in the bucket that do not parse, by step.", "step"),

		segments:        one("journal_segments_total", "Segments of the journal that this collector wrote."),
		journalFailures: one("journal_failures_total", "Requests of the journal that failed and are repeated."),
		fences:          one("journal_fences_total", "Runs of this collector that another service ended."),
		segmentEntries:  histogram("journal_segment_entries", "Batches in a segment.", prometheus.ExponentialBuckets(1, 4, 8)),
		framesRead:      counter("frames_read_total", "Frames that followers of the journal asked for, by outcome (sent, missing).", "outcome"),
		orphanReports:   counter("orphan_reports_total", "Reports to the garbage collection of submissions that ended without an outcome, by outcome (ok, failed).", "outcome"),
		framesReadBytes: one("frames_read_bytes_total", "Bytes of frames that were sent to followers of the journal."),
		journalWait:     histogram("journal_wait_seconds", "How long the first batch of a segment waited until the segment was durable.", ackBuckets),
	}
	gauge := func(name, help string, fn func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_ingest_" + name, Help: help}, fn)
	}
	for _, c := range []prometheus.Collector{
		m.batches, m.records, m.bytes, m.latency, m.hellos, m.sheds, m.inlined, m.spared, m.unneeded, m.ownWrites, m.skipped, m.corrupt, m.notified, m.landed, m.putBack, m.probes,
		m.segments, m.journalFailures, m.fences, m.segmentEntries, m.journalWait, m.framesRead, m.framesReadBytes, m.orphanReports,
		gauge("unresolved_frames", "Frames of submissions that ended without an outcome and were not sent again, and of blobs that nothing refers to, which wait to be reported to the garbage collection.", func() float64 { return float64(s.abandoned.waiting.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "lightmetrics_ingest_unresolved_frames_dropped_total", Help: "Such frames that are left to the sweep of the garbage collection, because too many waited."},
			func() float64 { return float64(s.abandoned.dropped.Load()) }),
		gauge("frames_kept", "Frames in memory for followers of the journal.", func() float64 {
			n, _ := s.recent.stats()
			return float64(n)
		}),
		gauge("frames_kept_bytes", "Memory of these frames; see journal.frames_memory.", func() float64 {
			_, n := s.recent.stats()
			return float64(n)
		}),
		gauge("journal_waiting", "Batches whose outcome is in no durable segment of the journal yet.", func() float64 {
			if c := s.writing.Load(); c != nil {
				return float64(c.Waiting())
			}
			return 0
		}),
		gauge("journal_failing_seconds", "For how long requests of the journal have failed; 0 after one that succeeded.", func() float64 {
			if c := s.writing.Load(); c != nil {
				if since, err := c.Failing(); err != nil {
					return s.now().Sub(since).Seconds()
				}
			}
			return 0
		}),
		gauge("unlanded_batches", "Batches that are accepted on this disk and not in the bucket (local_spool).", func() float64 { return float64(s.unlanded()) }),
		gauge("in_flight_bytes", "Bytes of admitted frames that are not answered yet.", func() float64 { return float64(s.inFlight.Load()) }),
		gauge("streams", "Open streams.", func() float64 { return float64(s.streams.Load()) }),
		gauge("receivers_waiting", "Connections whose large message waits for a receive slot.", func() float64 { return float64(s.gate.waiting.Load()) }),
		gauge("agents_at_series_limit", "Agents that had a batch refused for its series within the last limits.series_window.", func() float64 { return float64(s.agents.atSeriesLimit()) }),
		gauge("clock_behind_seconds", "How far this machine's clock was behind the store's at the last create; negative is ahead.", func() float64 {
			return time.Duration(s.clock.behind.Load()).Seconds()
		}),
		gauge("store_policy_violations", "Checks of the bucket's policy that failed in the last probe: 0 where acceptance records can't be changed, or where store.policy is off.", func() float64 {
			if f := s.found.Load(); f != nil {
				return float64(len(f.policy.violations))
			}
			return 0
		}),
		gauge("resolutions_age_seconds", "For how long this collector has not read all that operators decided about conflicts and senders; see resolutions_interval.", func() float64 {
			if at := s.resolutionsRead.Load(); at != 0 {
				return s.now().Sub(time.Unix(0, at)).Seconds()
			}
			return 0
		}),
		gauge("condemned_epoch", "The epoch of condemned names that this collector holds; 0 with marker_reads: always, or where no collection keeps a log of epochs.", func() float64 {
			if c := s.condemned.Load(); c != nil {
				if set, _ := c.log.Held(); set != nil {
					return float64(set.Epoch())
				}
			}
			return 0
		}),
		gauge("condemned_names", "Names that this collector holds as condemned. At 250,000 all markers are read again.", func() float64 {
			if c := s.condemned.Load(); c != nil {
				if set, _ := c.log.Held(); set != nil {
					return float64(set.Len())
				}
			}
			return 0
		}),
		gauge("ready", "1 if the store is qualified and submissions are accepted.", func() float64 {
			if s.NotReady() == nil {
				return 1
			}
			return 0
		}),
		gauge("draining", "1 while the collector stops.", func() float64 {
			select {
			case <-s.drain:
				return 1
			default:
				return 0
			}
		}),
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	m.begin()
	return m, nil
}

// begin creates the counters that alerts watch with the value 0: PromQL sees no increase from an absent series to 1.
func (m *metrics) begin() {
	m.batches.WithLabelValues(accept.Conflict.String(), "")
	for _, reason := range []string{ReasonSeriesLimit, ReasonBatchSeriesLimit, ReasonLabelBytesLimit, ReasonTimeInFuture} {
		m.batches.WithLabelValues("rejected", reason)
	}
	for _, resource := range []string{"in_flight_bytes", "bodies", "requests", "streams", "frames"} {
		m.sheds.WithLabelValues(resource)
	}
	for _, outcome := range []string{"sent", "missing"} {
		m.framesRead.WithLabelValues(outcome)
	}
	for _, step := range accept.Steps() {
		m.corrupt.WithLabelValues(string(step))
	}
}

func (m *metrics) failed(f rpc.Failure, took time.Duration) {
	m.countRefused(f)
	outcome := "rejected"
	if retryable(f) {
		outcome = "retry"
	}
	m.latency.WithLabelValues(outcome).Observe(took.Seconds())
}

// countRefused counts a batch that was refused.
func (m *metrics) countRefused(f rpc.Failure) {
	outcome := "rejected"
	if retryable(f) {
		outcome = "retry"
	}
	m.batches.WithLabelValues(outcome, f.Reason).Inc()
}

func (m *metrics) decided(r accept.Result, bytes int, took time.Duration) {
	c := m.outcomes[r.Outcome].Load()
	if c == nil { // found once, since to find metrics by their labels costs more than to count
		outcome := r.Outcome.String()
		c = &outcomeMetrics{
			batches: m.batches.WithLabelValues(outcome, ""), bytes: m.bytes.WithLabelValues(outcome),
			records: m.records.WithLabelValues(outcome), latency: m.latency.WithLabelValues(outcome),
		}
		m.outcomes[r.Outcome].Store(c)
	}
	if r.Outcome == accept.Accepted && r.Manifest.Inline {
		m.inlined.Inc()
	}
	c.batches.Inc()
	c.bytes.Add(float64(bytes))
	c.records.Add(float64(r.Manifest.Identity.Count()))
	c.latency.Observe(took.Seconds())
}

// outcomeMetrics are those of batches with one outcome.
type outcomeMetrics struct {
	batches, bytes, records prometheus.Counter
	latency                 prometheus.Observer
}

// events are the callbacks of the acceptance protocol.
func (m *metrics) events(log *slog.Logger) accept.Events {
	return accept.Events{
		MarkerSpared:      m.spared.Inc,
		OwnWrite:          func(string) { m.ownWrites.WithLabelValues().Inc() },
		GenerationSkipped: func(_ string, why accept.Skip) { m.skipped.WithLabelValues(string(why)).Inc() },
		CorruptRecord: func(step accept.Step, key string, err error) {
			m.corrupt.WithLabelValues(string(step)).Inc()
			log.Error("corrupt record: an operator must check it", "step", step, "key", key, "error", err)
		},
	}
}
