package objectstore

import (
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
)

// Command gives the object store as a command.
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
			rows := [][2]string{{"S3", c.scheme() + "://" + s.Addr()}, {"data", c.Dir}}
			if a := s.AdminAddr(); a != "" {
				rows = append(rows, [2]string{"ready", "curl http://" + a + "/-/ready"})
			}
			return rows
		},
	})
}

const (
	// gcPercent lets the heap grow to five times its live size while it is far from the memory
	// limit. Little is alive in a store, so with the default it would collect many times a second.
	gcPercent = 400
	// processMemory, bytes, is what a store needs besides bodies: code, connections, and garbage that
	// was not collected yet. The index bounds its own memory.
	processMemory = 96 << 20
	// placesMemory, bytes, is what places need: readers that decode, bodies that are coded, the ledger.
	placesMemory = 256 << 20
)

// limitMemory sets the garbage collector's goals, unless the environment sets them.
func limitMemory(c Config) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		n := int64(c.MaxInFlight) + processMemory
		if len(c.Places) > 0 {
			n += placesMemory
		}
		debug.SetMemoryLimit(n)
	}
}
