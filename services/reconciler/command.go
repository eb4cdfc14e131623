package reconciler

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/objstore/s3"
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

// Command is "lightmetrics reconciler".
func Command() *cobra.Command {
	return cli.Command(cli.Spec[settings]{
		Name:  "reconciler",
		Short: "Turn accepted manifests into derived state, audit and repair it",
		Long: "Finds accepted manifests (events, collectors' hints, scans, audits), writes what is derived from them,\n" +
			"keeps the ledger of each (agent, boot), and passes reconciled manifests on. Any number may run.",
		Default: func() settings { return settings{Config: DefaultConfig(), Store: s3.DefaultConfig()} },
		New: func(c settings, tel *telemetry.Telemetry) (run.Service, error) {
			store, err := storage.Open(context.Background(), c.Store, storage.Options{Process: "reconciler", Registry: tel.Registry})
			if err != nil {
				return nil, err
			}
			return New(c.Config, Deps{Store: store, Telemetry: tel})
		},
		Banner: func(c settings, svc run.Service) [][2]string {
			s := svc.(*Service)
			http := c.TLS.HTTPScheme() + "://" + s.HTTPAddr().String()
			return [][2]string{
				{"http", http}, {"grpc", c.TLS.GRPCScheme() + "://" + s.GRPCAddr().String()}, {"bucket", c.Store.Bucket + "/" + c.Store.Prefix},
				{"events", http + "/v1/events"}, {"status", "curl " + http + "/v1/status"},
			}
		},
	})
}
