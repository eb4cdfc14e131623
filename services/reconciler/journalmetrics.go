package reconciler

import (
	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
)

// journalMetrics count what is done about the journal.
type journalMetrics struct {
	polls      *prometheus.CounterVec // result
	folds      *prometheus.CounterVec // result
	saves      *prometheus.CounterVec // result
	hints      *prometheus.CounterVec // result
	entries    prometheus.Counter
	journalled prometheus.Counter
	through    prometheus.Gauge
	runs       prometheus.Gauge
	lagged     prometheus.Counter
}

func newJournalMetrics(reg prometheus.Registerer, watchers func() int) *journalMetrics {
	const p = "lightmetrics_reconciler_journal_"
	vec := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + name, Help: help}, []string{"result"})
		reg.MustRegister(v)
		return v
	}
	m := &journalMetrics{
		polls:      vec("polls_total", "Polls of the journal, by result: ok, failed."),
		folds:      vec("folds_total", "Rounds of folding the journal, by result: moved, nothing, failed."),
		saves:      vec("ledger_saves_total", "Rounds of writing the checkpoint of the ledgers, by result: ok, failed."),
		hints:      vec("hints_total", "Hints at segments of the journal, by result: queued, dropped."),
		entries:    prometheus.NewCounter(prometheus.CounterOpts{Name: p + "entries_total", Help: "Entries of accepted batches that were read."}),
		journalled: prometheus.NewCounter(prometheus.CounterOpts{Name: p + "audited_total", Help: "Batches and conflicts that a full audit found in no run of the journal, and journalled."}),
		through:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "lightmetrics_reconciler_complete_through_timestamp_seconds", Help: "Everything answered before this time (store clock) has been read from the journal."}),
		runs:       prometheus.NewGauge(prometheus.GaugeOpts{Name: p + "runs", Help: "Runs of the journal that may have further segments."}),
		lagged:     prometheus.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_reconciler_watchers_lagged_total", Help: "Watches that ended because the watcher fell behind."}),
	}
	reg.MustRegister(m.entries, m.journalled, m.through, m.runs, m.lagged,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_reconciler_watchers", Help: "Open watches."}, func() float64 { return float64(watchers()) }))
	// Created with the value 0, because an alert on their increase would miss the first failure.
	for _, v := range []*prometheus.CounterVec{m.polls, m.folds, m.saves} {
		v.WithLabelValues("failed").Add(0)
	}
	m.hints.WithLabelValues("dropped").Add(0)
	return m
}

func resultOf(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

func (m *journalMetrics) polled(p journal.Polled, err error) {
	m.polls.WithLabelValues(resultOf(err)).Inc()
	if err != nil {
		return
	}
	if !p.Through.IsZero() {
		m.through.Set(float64(p.Through.UnixNano()) / 1e9)
	}
	open := 0
	for _, r := range p.Positions.Runs {
		if !r.Ended {
			open++
		}
	}
	m.runs.Set(float64(open))
}

func (m *journalMetrics) folded(moved bool, err error) {
	result := resultOf(err)
	if err == nil {
		if result = "nothing"; moved {
			result = "moved"
		}
	}
	m.folds.WithLabelValues(result).Inc()
}

func (m *journalMetrics) saved(err error) { m.saves.WithLabelValues(resultOf(err)).Inc() }
