// Package metrics has the metrics of a rollup worker. docs/guide/rollup.md lists them.
package metrics

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/schedule"
)

// Metrics of a worker, all shards together where a metric has no label for them. Those behind
// Snapshots are of its live-state snapshots.
type Metrics struct {
	Shards     prometheus.Gauge
	Pending    *prometheus.GaugeVec   // shard
	Lag        *prometheus.GaugeVec   // shard
	Deferred   *prometheus.GaugeVec   // shard, why
	AgentHours *prometheus.GaugeVec   // shard
	Requested  *prometheus.GaugeVec   // shard
	Polls      *prometheus.CounterVec // outcome
	Segments   prometheus.Counter
	Hints      prometheus.Counter
	Peers      *peerframes.Metrics
	PeerBytes  prometheus.Gauge
	Arrived    prometheus.Counter
	CatchUps   prometheus.Counter
	Overlaps   prometheus.Counter
	Lookups    prometheus.Counter
	// ProgressAge and ProgressWrites are of the records of the shards' progress.
	ProgressAge    *prometheus.GaugeVec   // shard
	ProgressWrites *prometheus.CounterVec // outcome
	HelpsWrites    *prometheus.CounterVec // outcome
	Ahead          prometheus.Counter
	Early          *prometheus.CounterVec // why
	ClockSteps     prometheus.Counter
	ClockAhead     prometheus.Gauge
	Jobs           *prometheus.CounterVec // outcome
	JobTime        prometheus.Histogram
	Resized        prometheus.Counter
	Died           prometheus.Counter
	SetAside       prometheus.Counter
	FrameBytes     prometheus.Counter
	Extended       prometheus.Counter
	Unreadable     prometheus.Counter
	Unconserved    prometheus.Counter
	Generations    *prometheus.CounterVec // resolution
	Late           prometheus.Counter
	Deltas         prometheus.Counter
	DeltaBytes     prometheus.Counter
	Folded         prometheus.Counter
	InDeltas       *prometheus.GaugeVec     // shard
	Records        *prometheus.CounterVec   // fate
	Samples        *prometheus.CounterVec   // resolution
	Bytes          *prometheus.CounterVec   // resolution
	Refused        *prometheus.CounterVec   // reason
	Phase          *prometheus.HistogramVec // phase
	Damaged        *prometheus.CounterVec   // what
	Requests       *prometheus.CounterVec   // outcome
	Reprocessed    *prometheus.CounterVec   // outcome

	Collected        *prometheus.CounterVec // action
	Swept            prometheus.Counter
	Forgotten        prometheus.Counter
	References       *prometheus.GaugeVec   // state
	Compactions      *prometheus.CounterVec // resolution
	Compacted        *prometheus.CounterVec // resolution
	CompactionBytes  *prometheus.CounterVec // resolution, of: sources, objects
	MaintenanceFails *prometheus.CounterVec // what
	Expired          *prometheus.CounterVec // resolution
	RemovedFrames    prometheus.Counter

	Snapshots        prometheus.Counter
	SnapshotPacks    *prometheus.CounterVec // kind
	SnapshotBytes    prometheus.Counter
	SnapshotSkipped  prometheus.Counter
	SnapshotDeleted  *prometheus.CounterVec // what
	SnapshotFailures prometheus.Counter
	PackReads        prometheus.Counter
	PackFailures     prometheus.Counter
	SnapshotPending  *prometheus.GaugeVec // shard
	SnapshotNumber   *prometheus.GaugeVec // shard
}

// register makes metrics and registers each of them.
type register struct{ reg prometheus.Registerer }

const prefix = "lightmetrics_rollup_"

func (r register) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
	r.reg.MustRegister(c)
	return c
}

func (r register) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	r.reg.MustRegister(c)
	return c
}

func (r register) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
	r.reg.MustRegister(g)
	return g
}

func (r register) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
	r.reg.MustRegister(g)
	return g
}

func (r register) times(name, help string, first float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: prometheus.ExponentialBuckets(first, 4, 9)}, labels)
	r.reg.MustRegister(h)
	return h
}

// New registers the metrics of one worker.
func New(reg prometheus.Registerer) *Metrics {
	r := register{reg}
	m := &Metrics{
		Shards:         r.gauge("shards", "Shards that this worker owns."),
		Pending:        r.gauges("pending_batches", "Batches that no block covers yet, by shard.", "shard"),
		Lag:            r.gauges("lag_seconds", "Time since the end of the oldest ended hour that has batches to roll up, by shard; 0 when there is none.", "shard"),
		Deferred:       r.gauges("deferred_batches", "Batches that wait for something else than their hour, by shard: unreadable (the frame can't be read), failing (of hours that fail for good), evicted (forgotten to make room, until the journal is read again), deferred (what is needed to take them can't be read now), set_aside (their agent has too much in an hour).", "shard", "why"),
		AgentHours:     r.gauges("agent_hours_aside", "Hours of agents that are set aside, by shard: too large to be rolled up.", "shard"),
		Requested:      r.gauges("repair_requests_pending", "Hours with an operator's request to rebuild them, by shard.", "shard"),
		Polls:          r.counters("journal_polls_total", "Polls of the acceptance journal by outcome: ok, failed.", "outcome"),
		Segments:       r.counter("journal_segments_total", "Segments of the journal that polls read."),
		Hints:          r.counter("journal_hints_total", "Segments of the journal that a watch named."),
		Peers:          peerframes.NewMetrics(reg, "rollup"),
		PeerBytes:      r.gauge("arrived_frames_bytes", "Bytes of frames that collectors sent and that are in memory, most of them until they are packed; see follow.frames_memory."),
		Arrived:        r.counter("batches_taken_total", "Batches that owners of shards took from the journal, those that blocks cover already included."),
		CatchUps:       r.counter("catch_ups_total", "Times that a shard read the journal from the positions of its progress: at the begin of an ownership, and after batches had been forgotten for lack of room."),
		Overlaps:       r.counter("overlapping_batches_total", "Pairs of accepted batches of one boot with the same record numbers: each number counts for the batch that was accepted first."),
		Lookups:        r.counter("boot_listings_total", "Boots whose manifests were listed: the first batch of each boot after a change of the shard's owner, and batches that do not continue their boot."),
		ProgressAge:    r.gauges("progress_age_seconds", "Time since the record of the shard's progress was written or found to be up to date, by shard.", "shard"),
		ProgressWrites: r.counters("progress_writes_total", "Writes of the records of shards' progress by outcome: ok, refused (somebody else has written it), failed.", "outcome"),
		HelpsWrites:    r.counters("helps_writes_total", "Writes of the record of the helps of metrics by outcome: ok, refused (another worker has written it), failed, damaged (it could not be read, and is replaced).", "outcome"),
		Ahead:          r.counter("batches_ahead_total", "Batches with samples of hours far ahead: an agent's clock is wrong, or this worker's."),
		Early:          r.counters("early_generations_total", "Generations of hours that were not over: far ahead, or expedited (no room for more pending batches).", "why"),
		ClockSteps:     r.counter("clock_steps_total", "Times that a shard's loop saw the clock go back by more than a minute."),
		ClockAhead:     r.gauge("clock_ahead_seconds", "How far this machine's clock was ahead of the store's when retention last asked; by more than 300 it removes nothing."),
		Jobs:           r.counters("jobs_total", "Generations of hours by outcome: completed, failed, canceled.", "outcome"),
		JobTime:        r.times("job_duration_seconds", "Length of jobs.", 0.01).WithLabelValues().(prometheus.Histogram),
		Resized:        r.counter("generations_resized_total", "Generations that were aborted because a part took more than jobs.memory, or killed its worker; the next has more parts."),
		Died:           r.counter("jobs_died_total", "Jobs whose worker was killed while it made an hour, as the next worker found."),
		SetAside:       r.counter("agents_set_aside_total", "Agents that were set aside for an hour, since it does not fit into memory with them."),
		FrameBytes:     r.counter("frame_bytes_read_total", "Bytes of frames that were read."),
		Extended:       r.counter("generations_extended_total", "Generations that were made of the former one and new frames, and not of all frames."),
		Unreadable:     r.counter("unreadable_frames_total", "Frames of accepted batches that could not be read; the hour waits or is rolled up without them."),
		Unconserved:    r.counter("conservation_failures_total", "Generations that were not published because records were not conserved. Must be 0."),
		Generations:    r.counters("generations_published_total", "Generations that this worker committed, by resolution.", "resolution"),
		Late:           r.counter("late_generations_total", "Generations above the first that this worker committed, raw resolution: hours rolled up again for late batches."),
		Records:        r.counters("records_total", "Records of the inputs of committed raw generations: published, other_hours, overlapped, duplicates.", "fate"),
		Samples:        r.counters("samples_published_total", "Rows of committed blocks, by resolution.", "resolution"),
		Bytes:          r.counters("published_bytes_total", "Bytes of chunks and indexes of committed blocks, by resolution.", "resolution"),
		Refused:        r.counters("publications_refused_total", "Publications that were not this worker's to commit, or failed: exists, lost, conflict, aborted, fenced, undecided, failed.", "reason"),
		Phase:          r.times("publication_phase_seconds", "Length of the phases of publications.", 0.001, "phase"),
		Damaged:        r.counters("damaged_total", "Reads that met a block's record, or a plan, that can't be read: its hour waits for lmctl rollup repair.", "what"),
		Requests:       r.counters("repair_requests_total", "Operators' requests to rebuild an hour, by outcome: done, failed (and tried again).", "outcome"),
		Reprocessed:    r.counters("reprocess_steps_total", "Messages of requests to reprocess, by outcome: completed, handed_over, failed, buried, busy, duplicate, lost.", "outcome"),
		Deltas:         r.counter("deltas_written_total", "Deltas that were written: late batches that wait in them for the next generation of their hours."),
		DeltaBytes:     r.counter("delta_bytes_total", "Bytes of deltas that were written."),
		Folded:         r.counter("folds_total", "Generations that were made of hours because of their batches in deltas."),
		InDeltas:       r.gauges("delta_batches", "Batches in deltas that some block lacks, by shard.", "shard"),

		Collected:        r.counters("collected_total", "Keys that the delayed collection decided about, by action.", "action"),
		Swept:            r.counter("swept_keys_total", "Superseded blocks, objects of no block, and plans that may be needed no more, that a sweep put on the delayed queue."),
		Forgotten:        r.counter("references_forgotten_total", "Reference records of deleted objects that were dropped."),
		References:       r.gauges("references", "Reference records at the last look through them, which the owner of shard 0 takes once a day, by state: live, condemned.", "state"),
		Compactions:      r.counters("compactions_total", "Compactions that this worker committed, by resolution.", "resolution"),
		Compacted:        r.counters("compacted_blocks_total", "Blocks that point at a compaction by this worker, by resolution.", "resolution"),
		CompactionBytes:  r.counters("compaction_bytes_total", "Bytes of what compactions merged (sources) and what they wrote (objects), by resolution.", "resolution", "of"),
		MaintenanceFails: r.counters("maintenance_failures_total", "Passes of compaction, retention and the removal of raw frames that failed and are tried again.", "what"),
		Expired:          r.counters("expired_blocks_total", "Blocks that retention removed, by resolution.", "resolution"),
		RemovedFrames:    r.counter("removed_raw_frames_total", "Accepted batches whose raw frames retention removed."),

		Snapshots:        r.counter("snapshots_committed_total", "Live-state snapshots that this worker committed."),
		SnapshotPacks:    r.counters("snapshot_packs_total", "Packs of frames that were written: new, merged.", "kind"),
		SnapshotBytes:    r.counter("snapshot_pack_bytes_total", "Bytes of packs that were written."),
		SnapshotSkipped:  r.counter("snapshot_batches_skipped_total", "Batches that snapshots go without, as their frames can't be read or are too long."),
		SnapshotDeleted:  r.counters("snapshot_deleted_total", "Old objects that were deleted: snapshot, pack.", "what"),
		SnapshotFailures: r.counter("snapshot_failures_total", "Snapshots that failed and were tried again, and objects of former ones that can't be read."),
		PackReads:        r.counter("pack_reads_total", "Packs of live-state snapshots that jobs read in place of the blobs of their frames."),
		PackFailures:     r.counter("pack_read_failures_total", "Packs that could not be read, or had other bytes, so that jobs read the blobs of these frames."),
		SnapshotPending:  r.gauges("snapshot_pending_batches", "Batches that no snapshot holds yet, by shard.", "shard"),
		SnapshotNumber:   r.gauges("snapshot_number", "Number of the newest snapshot, by shard.", "shard"),
	}
	m.zero()
	return m
}

// zero makes the series whose absence an alert rule could not tell from none having happened.
func (m *Metrics) zero() {
	for _, res := range timegrid.Resolutions() {
		m.Generations.WithLabelValues(res.String())
	}
	for _, what := range []string{"record", "plan", "object"} {
		m.Damaged.WithLabelValues(what)
	}
	for _, outcome := range []string{"done", "failed"} {
		m.Requests.WithLabelValues(outcome)
	}
	for _, outcome := range []string{"ok", "failed"} {
		m.Polls.WithLabelValues(outcome)
	}
	for _, why := range []schedule.Early{schedule.FarAhead, schedule.Expedited} {
		m.Early.WithLabelValues(string(why))
	}
	for _, r := range []string{"exists", "lost", string(publish.OutcomeConflict), string(publish.OutcomeAborted), string(publish.OutcomeFenced),
		string(publish.OutcomeUndecided), string(publish.OutcomeFailed)} {
		m.Refused.WithLabelValues(r)
	}
}

// Publish counts a block that this worker committed.
func (m *Metrics) Publish(block *catalog.Block) {
	res := block.Name.Resolution
	m.Generations.WithLabelValues(res.String()).Inc()
	m.Samples.WithLabelValues(res.String()).Add(float64(block.Counts.Samples))
	for _, o := range block.Objects {
		m.Bytes.WithLabelValues(res.String()).Add(float64(o.ChunkBytes + o.IndexBytes))
	}
	if res != timegrid.Raw {
		return // its records are counted once, not once for each resolution
	}
	if block.Name.Generation > 1 {
		m.Late.Inc()
	}
	c := block.Counts
	for fate, n := range map[string]uint64{"published": c.Published, "other_hours": c.OtherHours, "overlapped": c.Overlapped, "duplicates": c.Duplicates} {
		m.Records.WithLabelValues(fate).Add(float64(n))
	}
}

// Damage counts an error that says that something which is stored can't be read.
func (m *Metrics) Damage(err error) {
	switch {
	case errors.Is(err, record.ErrCorrupt) && rollup.PlanKind.Is(err):
		m.Damaged.WithLabelValues("plan").Inc()
	case errors.Is(err, record.ErrCorrupt):
		m.Damaged.WithLabelValues("record").Inc()
	case err != nil && objstore.Unreadable(err):
		m.Damaged.WithLabelValues("object").Inc()
	}
}

// ObserveClock takes how far this machine's clock is ahead of the store's.
func (m *Metrics) ObserveClock(ahead time.Duration) { m.ClockAhead.Set(ahead.Seconds()) }

// ForgetShard drops the series of a shard that is not this worker's any more, so that they are
// not shown with their last values for ever.
func (m *Metrics) ForgetShard(id shard.ID) {
	shard := id.String()
	for _, v := range []*prometheus.GaugeVec{m.Pending, m.Lag, m.Requested, m.AgentHours, m.InDeltas, m.ProgressAge} {
		v.DeleteLabelValues(shard)
	}
	m.Deferred.DeletePartialMatch(prometheus.Labels{"shard": shard})
}
