package rollup

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/objstore/s3"
	refmem "lightmetrics.dev/lightmetrics/pkg/publish/mem"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/storage"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
)

// settings of the command: the service's, and its store.
type settings struct {
	Config
	Store s3.Config `koanf:"store"`
}

// Validate checks both parts.
func (c settings) Validate() error { return errors.Join(c.Config.Validate(), c.Store.Validate()) }

// Command is "lightmetrics rollup".
func Command() *cobra.Command {
	return cli.Command(cli.Spec[settings]{
		Name:  "rollup",
		Short: "Roll accepted batches up into chunks, hour by hour",
		Long: "Owns shards, follows their intake, and publishes each hour as raw series and as buckets of 1 m, 5 m and 1 h.\n" +
			"Late batches make the next generation of exactly their hours.",
		Default: func() settings { return settings{Config: DefaultConfig(), Store: s3.DefaultConfig()} },
		New: func(c settings, tel *telemetry.Telemetry) (run.Service, error) {
			store, err := storage.Open(context.Background(), c.Store, storage.Options{Process: "rollup", Registry: tel.Registry})
			if err != nil {
				return nil, err
			}
			if len(c.Coordinator.Addresses) > 0 {
				return Coordinated(c.Config, Deps{Store: store, Telemetry: tel})
			}
			return New(c.Config, Deps{Store: store, Telemetry: tel, Refs: refmem.New()})
		},
		Banner: func(c settings, svc run.Service) [][2]string {
			http := c.TLS.HTTPScheme() + "://" + svc.(*Service).HTTPAddr().String()
			owner := "this worker alone: all shards; no other may run"
			if len(c.Coordinator.Addresses) > 0 {
				owner = strings.Join(c.Coordinator.Addresses, ", ")
			}
			return [][2]string{{"http", http}, {"coordinator", owner}, {"bucket", c.Store.Bucket + "/" + c.Store.Prefix}, {"shards", "curl " + http + "/v1/rollup/shards"}}
		},
	})
}
