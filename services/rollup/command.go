package rollup

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/objstore/storage"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	refmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/internal/service/bucket"
)

// Command is "lightmetrics rollup".
func Command() *cobra.Command {
	return service.Command(service.Spec[Config]{
		Name:  "rollup",
		Short: "Roll accepted batches up into chunks, hour by hour",
		Long: "Owns shards, follows the acceptance journal, and publishes each hour as raw series and as buckets of 1 m, 5 m and 1 h.\n" +
			"Late batches make the next generation of exactly their hours.",
		Default: DefaultConfig,
		New: func(c Config, tel *telemetry.Telemetry) (run.Service, error) {
			store, err := storage.Open(context.Background(), c.Store, storage.Options{Process: "rollup", Registry: tel.Registry})
			if err != nil {
				return nil, err
			}
			if len(c.Coordinator.Addresses) > 0 {
				return Coordinated(c, Deps{Store: store, Telemetry: tel})
			}
			return New(c, Deps{Store: store, Telemetry: tel, Refs: refmem.New()})
		},
		Banner: func(c Config, svc run.Service) [][2]string {
			owner := "this worker alone: all shards; no other may run"
			if len(c.Coordinator.Addresses) > 0 {
				owner = strings.Join(c.Coordinator.Addresses, ", ")
			}
			return [][2]string{{"coordinator", owner}, bucket.Banner(c.Store), {"shards", "curl " + svc.(*Service).HTTPURL() + "/v1/rollup/shards"}}
		},
	})
}
