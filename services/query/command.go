package query

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

// Command is "lightmetrics query".
func Command() *cobra.Command {
	return cli.Command(cli.Spec[settings]{
		Name:  "query",
		Short: "Answer PromQL over accepted batches",
		Long: "Follows accepted batches and answers the Prometheus HTTP API, gRPC and JSON. Every answer says how complete\n" +
			"it is. Any number of query nodes may run; each sees everything that was accepted.",
		Default: func() settings { return settings{Config: DefaultConfig(), Store: s3.DefaultConfig()} },
		New: func(c settings, tel *telemetry.Telemetry) (run.Service, error) {
			store, err := storage.Open(context.Background(), c.Store, storage.Options{Process: "query", Registry: tel.Registry})
			if err != nil {
				return nil, err
			}
			return New(c.Config, Deps{Store: store, Telemetry: tel, SetMemoryLimit: setMemoryLimit()})
		},
		Banner: func(c settings, svc run.Service) [][2]string {
			s := svc.(*Service)
			http := c.TLS.HTTPScheme() + "://" + s.HTTPAddr().String()
			return [][2]string{
				{"http", http}, {"grpc", c.TLS.GRPCScheme() + "://" + s.GRPCAddr().String()}, {"bucket", c.Store.Bucket + "/" + c.Store.Prefix},
				{"prometheus", "curl '" + http + "/api/v1/query?query=up'"}, {"grafana", "data source Prometheus, URL " + http},
			}
		},
	})
}
