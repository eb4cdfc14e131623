package telemetry

import (
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// version is set by the linker in releases (-X …/internal/platform/telemetry.version=v1.2.3).
var version = ""

// Version of this build: the release, else the module's version, else "devel".
func Version() string {
	if version != "" {
		return version
	}
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" && bi.Main.Version != "(devel)" {
		return bi.Main.Version
	}
	return "devel"
}

func buildInfo(service string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "lightmetrics_build_info",
		Help:        "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"service": service, "version": Version()},
	})
	g.Set(1)
	return g
}
