package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/agent/batch"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
)

type metrics struct {
	dropped        *prometheus.CounterVec
	droppedBatches prometheus.Counter
	queued         prometheus.Counter
	records        prometheus.Counter
	bytes          prometheus.Counter
}

// dropOldest is the reason of samples that the policy drop_oldest drops.
const dropOldest = "queue_dropped_oldest"

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lightmetrics_agent_dropped_samples_total", Help: "Samples that will never be sent, by reason."}, []string{"reason"}),
		droppedBatches: counter("lightmetrics_agent_dropped_batches_total", "Queued batches that the policy drop_oldest dropped; each may have been accepted before."),
		queued:         counter("lightmetrics_agent_queued_batches_total", "Batches that got an identity."),
		records:        counter("lightmetrics_agent_queued_records_total", "Records that got a sequence number."),
		bytes:          counter("lightmetrics_agent_queued_bytes_total", "Frame bytes that were queued."),
	}
	for _, r := range []string{batch.DropInputBusy, batch.DropQueueFull, batch.DropQueue, batch.DropSeries, batch.DropOrder, dropOldest} {
		m.dropped.WithLabelValues(r)
	}
	reg.MustRegister(m.dropped, m.droppedBatches, m.queued, m.records, m.bytes)
	return m
}

func (m *metrics) drop(reason string, samples int) {
	m.dropped.WithLabelValues(reason).Add(float64(samples))
}

func (m *metrics) dropOldest(e queue.Entry) {
	m.droppedBatches.Inc()
	m.drop(dropOldest, int(e.Identity.Count()))
}

func (m *metrics) batch(e queue.Entry) {
	m.queued.Inc()
	m.records.Add(float64(e.Identity.Count()))
	m.bytes.Add(float64(e.Bytes))
}

// stateCollector gives the agent's state at the time of the scrape.
type stateCollector struct{ agent *Agent }

var (
	descBatches      = prometheus.NewDesc("lightmetrics_agent_queue_batches", "Batches on disk by state.", []string{"state"}, nil)
	descBytes        = prometheus.NewDesc("lightmetrics_agent_queue_bytes", "Frame bytes on disk by state.", []string{"state"}, nil)
	descDisk         = prometheus.NewDesc("lightmetrics_agent_queue_disk_bytes", "Disk that the queue uses.", nil, nil)
	descMax          = prometheus.NewDesc("lightmetrics_agent_queue_max_bytes", "Disk that the queue may use.", nil, nil)
	descLag          = prometheus.NewDesc("lightmetrics_agent_lag_seconds", "Age of the oldest pending batch; 0 without one.", nil, nil)
	descParked       = prometheus.NewDesc("lightmetrics_agent_conflicts_parked", "Batches that wait for an operator because another frame, or another queue, holds their identity. Alert above 0.", nil, nil)
	descSkipped      = prometheus.NewDesc("lightmetrics_agent_skipped_records_total", "Records that could not be queued and left a gap of sequence numbers, in the life of the queue directory.", nil, nil)
	descRefusing     = prometheus.NewDesc("lightmetrics_agent_queue_refusing", "1 when the last batch could not be queued.", nil, nil)
	descDisconnected = prometheus.NewDesc("lightmetrics_agent_disconnected_seconds", "Time without a stream to any collector; 0 with one.", nil, nil)
	descFailing      = prometheus.NewDesc("lightmetrics_agent_collector_failing", "1 when the last attempt to use the collector failed.", []string{"collector"}, nil)
	descAlert        = prometheus.NewDesc("lightmetrics_agent_alert", "1 while a person is needed, by the id that /status gives the alert.", []string{"id"}, nil)
	descCertificate  = prometheus.NewDesc("lightmetrics_agent_client_certificate_expiry_timestamp_seconds", "When a client certificate ends, Unix seconds.", []string{"file"}, nil)
	descNextSeq      = prometheus.NewDesc("lightmetrics_agent_next_sequence", "Next sequence number of the current boot.", nil, nil)
)

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (c stateCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

func (c stateCollector) Collect(ch chan<- prometheus.Metric) {
	st, now := c.agent.queue.Stats(), c.agent.now()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descBatches, float64(st.Pending), "pending")
	gauge(descBatches, float64(st.Parked), "parked")
	gauge(descBatches, float64(st.Dead), "dead")
	gauge(descBytes, float64(st.PendingBytes), "pending")
	gauge(descBytes, float64(st.ParkedBytes), "parked")
	gauge(descBytes, float64(st.DeadBytes), "dead")
	gauge(descDisk, float64(st.DiskBytes))
	gauge(descMax, float64(st.MaxBytes))
	lag := 0.0
	if st.Oldest != nil {
		lag = max(0, now.Sub(st.Oldest.Created).Seconds())
	}
	gauge(descLag, lag)
	gauge(descParked, float64(st.Parked))
	_, _, next := c.agent.queue.Boot()
	gauge(descNextSeq, float64(next))
	ch <- prometheus.MustNewConstMetric(descSkipped, prometheus.CounterValue, float64(st.Skipped))
	gauge(descRefusing, flag(st.Refusing))
	status := c.agent.Status()
	disconnected := 0.0
	if d := status.Sender.DisconnectedSince; d != nil {
		disconnected = max(0, now.Sub(*d).Seconds())
	}
	gauge(descDisconnected, disconnected)
	for _, s := range status.Sender.Collectors {
		gauge(descFailing, flag(s.State == send.Failing), s.Address)
	}
	raised := map[string]bool{}
	for _, a := range status.Alerts {
		raised[a.ID] = true
	}
	for _, id := range alertIDs() {
		gauge(descAlert, flag(raised[id]), id)
	}
	for _, x := range c.agent.certificates() {
		gauge(descCertificate, float64(x.notAfter.Unix()), x.file)
	}
}
