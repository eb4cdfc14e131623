package ingest

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/objstore/storage"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/internal/service/bucket"
)

// Command is the command that runs a collector.
func Command() *cobra.Command {
	return service.Command(service.Spec[Config]{
		Name:    "ingest",
		Short:   "Run a collector: accept batches into the object store",
		Long:    "Run a collector: it authenticates senders, validates frames and accepts batches into the object store.\nAny number of collectors may share one bucket and prefix.",
		Default: DefaultConfig,
		New: func(c Config, tel *telemetry.Telemetry) (run.Service, error) {
			store, err := storage.Open(context.Background(), c.Store.Config, storage.Options{
				Process: "ingest", Registry: tel.Registry, Policy: c.storePolicy(),
			})
			if err != nil {
				return nil, err
			}
			LimitMemory(c)
			return New(c, Deps{Store: store, Telemetry: tel})
		},
		Reload: func(c Config, svc run.Service) error {
			svc.(*Service).Reload(c)
			return nil
		},
		Banner: func(c Config, svc run.Service) [][2]string {
			return [][2]string{bucket.Banner(c.Store.Config), {"acceptance", c.Acceptance}, {"batches", svc.(*Service).HTTPURL() + "/v1/batches"}, {"status", svc.(*Service).HTTPURL() + "/status"}}
		},
	})
}

// processMemory is the memory, in bytes, that a collector needs besides frames: code,
// connections, the store's client and garbage.
const processMemory = 64 << 20

// gcPercent lets the heap grow by this percentage while it is far from the memory limit. A
// collector keeps little alive, so with Go's default it would run its garbage collection
// many times a second.
const gcPercent = 400

// LimitMemory sets Go's memory limit to what the settings' limits allow, so that garbage is collected
// more often near it, and rarely far below it. GOGC and GOMEMLIMIT of the environment win.
func LimitMemory(c Config) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := int64(c.MemoryLimit)
	if limit == 0 {
		l := c.Limits
		limit = int64(l.InFlightBytes) + int64(l.DecodingBytes) + int64(l.Receivers)*int64(l.FrameBytes) + int64(c.Journal.FramesMemory) + processMemory
		if c.InlineBelow > 0 {
			limit += int64(l.InFlightBytes) // a manifest with its frame is a copy of it
		}
		if l.AgentSeries > 0 {
			limit += int64(l.AgentsTracked) * agentSeriesBytes
		}
	}
	debug.SetMemoryLimit(limit)
}
