package rollup

import (
	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// metrics of a worker. The guide lists them.
type metrics struct {
	shards       prometheus.Gauge
	pending      *prometheus.GaugeVec // shard
	lag          *prometheus.GaugeVec // shard
	behind       *prometheus.GaugeVec // shard, why
	ahead        prometheus.Counter
	early        *prometheus.CounterVec // why
	clockSteps   prometheus.Counter
	clockAhead   prometheus.Gauge
	generations  *prometheus.CounterVec // resolution
	late         prometheus.Counter
	extended     prometheus.Counter
	refused      *prometheus.CounterVec // reason
	conservation prometheus.Counter
	unreadable   prometheus.Counter
	jobs         *prometheus.CounterVec // outcome
	reprocessed  *prometheus.CounterVec // outcome
	jobTime      prometheus.Histogram
	records      *prometheus.CounterVec // fate
	samples      *prometheus.CounterVec // resolution
	bytes        *prometheus.CounterVec // resolution
	frameBytes   prometheus.Counter
	segments     *prometheus.CounterVec // what
	phase        *prometheus.HistogramVec
	collected    *prometheus.CounterVec // action
	swept        prometheus.Counter
	damaged      *prometheus.CounterVec // what
	orders       *prometheus.CounterVec // outcome
	ordered      *prometheus.GaugeVec   // shard
	resized      prometheus.Counter
	died         prometheus.Counter
	setAside     prometheus.Counter
	asides       *prometheus.GaugeVec // shard
	compact      *compactMetrics
}

func newMetrics(reg prometheus.Registerer) *metrics {
	const p = "lightmetrics_rollup_"
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: p + name, Help: help})
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: p + name, Help: help}, labels)
	}
	m := &metrics{
		shards:       prometheus.NewGauge(prometheus.GaugeOpts{Name: p + "shards", Help: "Shards that this worker owns."}),
		pending:      gauge("pending_batches", "Batches that no block covers yet, by shard.", "shard"),
		lag:          gauge("lag_seconds", "Time since the end of the oldest ended hour that has batches to roll up, by shard; 0 when there is none.", "shard"),
		behind:       gauge("put_off_batches", "Batches that wait for something else than their hour, by shard: left_out (the frame can't be read), stuck (of hours that fail for good), shelved (forgotten to make room, until the next look at all segments), set_aside (their agent has too much in an hour); and segments that can't be taken now.", "shard", "why"),
		ahead:        counter("batches_ahead_total", "Batches with samples of hours far ahead: an agent's clock is wrong, or this worker's."),
		early:        vec("early_generations_total", "Generations of hours that were not over: far ahead, or crowded (no room for more pending batches).", "why"),
		clockSteps:   counter("clock_steps_total", "Times that a shard's loop saw the clock go back by more than a minute."),
		clockAhead:   prometheus.NewGauge(prometheus.GaugeOpts{Name: p + "clock_ahead_seconds", Help: "How far this machine's clock was ahead of the store's when retention last asked; by more than 300 it removes nothing."}),
		generations:  vec("generations_published_total", "Generations that this worker committed, by resolution.", "resolution"),
		late:         counter("late_generations_total", "Generations above the first that this worker committed, raw resolution: hours rolled up again for late batches."),
		extended:     counter("generations_extended_total", "Generations that were made of the former one and new frames, and not of all frames."),
		refused:      vec("publications_refused_total", "Publications that were not this worker's to commit, or failed: exists, lost, conflict, aborted, fenced, undecided, failed.", "reason"),
		conservation: counter("conservation_failures_total", "Generations that were not published because records were not conserved. Must be 0."),
		unreadable:   counter("unreadable_frames_total", "Frames of accepted batches that could not be read; the hour waits or goes on without them."),
		jobs:         vec("jobs_total", "Generations of hours by outcome: completed, failed, canceled.", "outcome"),
		reprocessed:  vec("reprocess_steps_total", "Messages of orders to reprocess, by outcome: completed, handed_over, failed, buried, busy, duplicate, lost.", "outcome"),
		jobTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: p + "job_duration_seconds",
			Help: "Length of jobs.", Buckets: prometheus.ExponentialBuckets(0.01, 4, 9)}),
		records:    vec("records_total", "Records of the inputs of committed raw generations: published, other_hours, overlapped, duplicates.", "fate"),
		samples:    vec("samples_published_total", "Rows of committed sets, by resolution.", "resolution"),
		bytes:      vec("published_bytes_total", "Bytes of chunks and indexes of committed sets, by resolution.", "resolution"),
		frameBytes: counter("frame_bytes_read_total", "Bytes of frames that were read."),
		segments:   vec("intake_segments_total", "Intake segments: read, deleted; corrupt and foreign (of another number of shards) ones, which are left alone; and tries that are to be made again later.", "what"),
		phase: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: p + "publication_phase_seconds",
			Help: "Length of the phases of publications.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}, []string{"phase"}),
		collected: vec("collected_total", "Keys that the delayed collection decided about, by action.", "action"),
		damaged:   vec("damaged_total", "Looks that met a published record, or a plan, that can't be read: its hour waits for lmctl rollup repair.", "what"),
		orders:    vec("orders_total", "Generations made, or tried, on an operator's order: done, failed.", "outcome"),
		ordered:   gauge("orders_pending", "Hours that operators ordered to be made anew, by shard.", "shard"),
		resized:   counter("generations_resized_total", "Generations that were given up because a part took more than jobs.memory, or killed its worker; the next has more parts."),
		died:      counter("jobs_died_total", "Jobs whose worker was killed while it made an hour, as the next worker found."),
		setAside:  counter("agents_set_aside_total", "Agents that were set aside for an hour, since it does not fit into memory with them."),
		asides:    gauge("agent_hours_aside", "Hours of agents that are set aside, by shard: too large to be rolled up.", "shard"),
		swept:     counter("swept_keys_total", "Superseded sets and objects of no set that a sweep put on the delayed queue."),
	}
	reg.MustRegister(m.shards, m.pending, m.lag, m.behind, m.ahead, m.early, m.clockSteps, m.clockAhead, m.generations, m.late, m.extended, m.refused, m.conservation, m.unreadable, m.jobs, m.reprocessed, m.jobTime,
		m.records, m.samples, m.bytes, m.frameBytes, m.segments, m.phase, m.collected, m.swept, m.damaged, m.orders, m.ordered, m.resized, m.died, m.setAside, m.asides)
	m.compact = newCompactMetrics(reg)
	for _, res := range timegrid.Resolutions() {
		m.generations.WithLabelValues(res.String())
	}
	for _, what := range []string{"record", "plan", "object"} {
		m.damaged.WithLabelValues(what)
	}
	for _, outcome := range []string{"done", "failed"} {
		m.orders.WithLabelValues(outcome)
	}
	for _, why := range []early{isAhead, isCrowded} {
		m.early.WithLabelValues(string(why))
	}
	for _, r := range []string{"exists", "lost", string(publish.OutcomeConflict), string(publish.OutcomeAborted), string(publish.OutcomeFenced),
		string(publish.OutcomeUndecided), string(publish.OutcomeFailed)} {
		m.refused.WithLabelValues(r)
	}
	return m
}

// generation counts a set that this worker committed.
func (m *metrics) generation(res timegrid.Resolution, gen uint64, block *catalog.Block) {
	m.generations.WithLabelValues(res.String()).Inc()
	m.samples.WithLabelValues(res.String()).Add(float64(block.Counts.Samples))
	for _, o := range block.Objects {
		m.bytes.WithLabelValues(res.String()).Add(float64(o.ChunkBytes + o.IndexBytes))
	}
	if res != timegrid.Raw {
		return
	}
	if gen > 1 {
		m.late.Inc()
	}
	c := block.Counts
	for fate, n := range map[string]uint64{"published": c.Published, "other_hours": c.OtherHours, "overlapped": c.Overlapped, "duplicates": c.Duplicates} {
		m.records.WithLabelValues(fate).Add(float64(n))
	}
}
