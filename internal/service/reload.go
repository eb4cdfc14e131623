package service

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// reloader reads the settings of a running service again. Settings that a start would
// refuse change nothing.
type reloader[C any] struct {
	spec         Spec[C]
	service      run.Service
	tel          *telemetry.Telemetry
	readSettings func() (C, telemetry.Config, error)
	// The settings in force.
	cfg  C
	tcfg telemetry.Config

	successful, at prometheus.Gauge
	failures       prometheus.Counter
}

func newReloader[C any](s Spec[C], svc run.Service, tel *telemetry.Telemetry, cfg C, tcfg telemetry.Config, again func() (C, telemetry.Config, error)) *reloader[C] {
	r := &reloader[C]{spec: s, service: svc, tel: tel, readSettings: again, cfg: cfg, tcfg: tcfg,
		successful: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lightmetrics_config_last_reload_successful",
			Help: "1 when the settings in force are those that were read last, 0 when the last reload was refused."}),
		at: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lightmetrics_config_last_reload_success_timestamp_seconds",
			Help: "When settings were read and applied last, Unix seconds; the start counts."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_config_reload_failures_total",
			Help: "Reloads of the settings that were refused."}),
	}
	tel.Registry.MustRegister(r.successful, r.at, r.failures)
	r.successful.Set(1)
	r.at.Set(now())
	return r
}

func now() float64 { return float64(time.Now().UnixMilli()) / 1000 }

// reload reads and applies the settings once, and reports the outcome in log and metrics.
func (r *reloader[C]) reload() {
	applied, waiting, err := r.apply()
	if err != nil {
		r.failures.Inc()
		r.successful.Set(0)
		r.tel.Log.Error("the settings were not reloaded; those before stay in force", "error", err)
		return
	}
	r.successful.Set(1)
	r.at.Set(now())
	r.tel.Log.Info("the settings were reloaded", "applied", applied)
	if len(waiting) > 0 {
		r.tel.Log.Warn("these settings have changed and need a restart", "settings", waiting)
	}
}

func (r *reloader[C]) apply() (applied, waiting []string, err error) {
	next, tnext, err := r.readSettings()
	if err != nil {
		return nil, nil, err
	}
	// Copies: a service that refuses the reload must leave the settings in force unchanged.
	cfg, tcfg := r.cfg, r.tcfg
	applied, waiting = config.Reload(&cfg, &next, r.spec.Name)
	tapplied, twaiting := config.Reload(&tcfg, &tnext, "telemetry")
	if r.spec.Reload != nil {
		if err := r.spec.Reload(cfg, r.service); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", r.spec.Name, err)
		}
	}
	r.tel.SetLevel(tcfg.LogLevel)
	// From here on every file is checked at its next use, and not only when its interval between checks is
	// over.
	tlsfile.Refresh()
	// Last, after everything that can fail: the next reload compares with what is really in force.
	r.cfg, r.tcfg = cfg, tcfg
	return append(applied, tapplied...), append(waiting, twaiting...), nil
}
