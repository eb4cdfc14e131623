package reconciler

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/fold"
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
	segments   prometheus.Counter
	complete   prometheus.Gauge
	head       *prometheus.GaugeVec // what
	headBytes  prometheus.Gauge
	fenced     prometheus.Counter
	audits     *auditMetrics
	claims     *claimMetrics // nil where there are no regions
	// waiting is the keeper of this life.
	waiting atomic.Pointer[fold.Keeper]
}

func newJournalMetrics(reg prometheus.Registerer, watchers func() int) *journalMetrics {
	const p = "lightmetrics_reconciler_journal_"
	vec := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + name, Help: help}, []string{"result"})
		reg.MustRegister(v)
		return v
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: p + name, Help: help})
	}
	m := &journalMetrics{
		audits:     newAuditMetrics(reg, time.Now),
		segments:   prometheus.NewCounter(prometheus.CounterOpts{Name: p + "segments_total", Help: "Segments that were read."}),
		complete:   gauge("complete", "1: the journal is known to have everything that was answered; 0: a full audit has to complete it, or nobody has asked yet."),
		headBytes:  gauge("head_bytes", "Size of the head, of at most 16 MiB."),
		head:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: p + "head", Help: "What the head names: files, lists, open (runs), ended (runs), fences (ended runs that somebody else ended)."}, []string{"what"}),
		fenced:     prometheus.NewCounter(prometheus.CounterOpts{Name: p + "fenced_total", Help: "Runs without news that this reconciler has ended."}),
		polls:      vec("polls_total", "Polls of the journal, by result: ok, failed."),
		folds:      vec("folds_total", "Rounds of folding the journal, by result: moved, nothing, lost (another reconciler moved the head meanwhile), failed."),
		saves:      vec("ledger_saves_total", "Rounds of writing the checkpoint of the ledgers, by result: ok, failed."),
		hints:      vec("hints_total", "Hints at segments of the journal, by result: queued, dropped."),
		entries:    prometheus.NewCounter(prometheus.CounterOpts{Name: p + "entries_total", Help: "Entries of accepted batches that were read."}),
		journalled: prometheus.NewCounter(prometheus.CounterOpts{Name: p + "audited_total", Help: "Batches and conflicts that a full audit found in no run of the journal, and journalled."}),
		through:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "lightmetrics_reconciler_complete_through_timestamp_seconds", Help: "Everything answered before this time (store clock) has been read from the journal."}),
		runs:       prometheus.NewGauge(prometheus.GaugeOpts{Name: p + "runs", Help: "Runs of the journal that may have further segments."}),
		lagged:     prometheus.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_reconciler_watchers_lagged_total", Help: "Watches that ended because the watcher fell behind."}),
	}
	reg.MustRegister(m.entries, m.journalled, m.through, m.runs, m.lagged, m.segments, m.complete, m.head, m.headBytes, m.fenced,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p + "waiting_entries", Help: "Entries that were read, and that no folded file has."}, func() float64 {
			n, _ := m.unfolded()
			return float64(n)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p + "waiting_seconds", Help: "For how long the first of them has waited; 0 without any."}, func() float64 {
			_, age := m.unfolded()
			return float64(age) / 1e9
		}),
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

func (m *journalMetrics) unfolded() (entries int, age int64) {
	if k := m.waiting.Load(); k != nil {
		return k.Waiting()
	}
	return 0, 0
}

func (m *journalMetrics) folded(s fold.State, moved bool, err error) {
	m.fenced.Add(float64(s.Fenced))
	if err == nil {
		m.describe(s.Head)
	}
	result := resultOf(err)
	switch {
	case moved && err == nil:
		result = "moved"
	case err == nil:
		result = "nothing"
	case errors.Is(err, objstore.ErrPreconditionFailed):
		result = "lost"
	}
	m.folds.WithLabelValues(result).Inc()
}

// describe says what the head names.
func (m *journalMetrics) describe(h journal.Head) {
	counts := map[string]int{"files": len(h.Files), "lists": len(h.Lists), "open": 0, "ended": 0, "fences": 0}
	for _, r := range h.Runs {
		if r.Ended == 0 {
			counts["open"]++
			continue
		}
		counts["ended"]++
		if r.Fenced {
			counts["fences"]++
		}
	}
	for what, n := range counts {
		m.head.WithLabelValues(what).Set(float64(n))
	}
	if b, err := h.Marshal(); err == nil { // the head of a journal that nobody has folded has no bytes
		m.headBytes.Set(float64(len(b)))
	}
}

func (m *journalMetrics) saved(err error) { m.saves.WithLabelValues(resultOf(err)).Inc() }
