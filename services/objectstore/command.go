package objectstore

import (
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
)

// Command is the object store as a command.
func Command() *cobra.Command {
	return service.Command(service.Spec[Config]{
		Name:    "objectstore",
		Short:   "Run the embedded S3-compatible object store",
		Long:    "Run the embedded S3-compatible object store: conditional writes, fsynced before every answer.\nUsers are given in the settings file; there are no default credentials.",
		Default: DefaultConfig,
		New: func(c Config, tel *telemetry.Telemetry) (run.Service, error) {
			limitMemory(c)
			return New(c, Deps{Telemetry: tel})
		},
		Banner: func(c Config, svc run.Service) [][2]string {
			s := svc.(*Service)
			rows := [][2]string{{"S3", "http://" + s.Addr()}, {"data", c.Dir}}
			if a := s.AdminAddr(); a != "" {
				rows = append(rows, [2]string{"ready", "curl http://" + a + "/-/ready"})
			}
			return rows
		},
	})
}

const (
	// gcPercent lets the heap grow to this multiple while it is far from the memory limit:
	// little is alive in a store, and it would collect many times a second.
	gcPercent = 400
	// processMemory is what a store needs besides bodies: code, connections, and the
	// garbage that waits for its collection. The index has memory of its own.
	processMemory = 96 << 20
)

// limitMemory sets how the garbage collector works, unless the environment does.
func limitMemory(c Config) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(c.MaxInFlight) + processMemory)
	}
}
