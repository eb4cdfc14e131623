package query

import (
	"context"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs"
	"lightmetrics.dev/lightmetrics/internal/objstore/storage"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/internal/service/bucket"
)

// Command is "lightmetrics query".
func Command() *cobra.Command {
	return service.Command(service.Spec[Config]{
		Name:  "query",
		Short: "Answer PromQL over accepted batches",
		Long: "Follows accepted batches and answers the Prometheus HTTP API, gRPC and JSON. Every answer says how complete\n" +
			"it is. Any number of query nodes may run; each sees everything that was accepted.",
		Default: DefaultConfig,
		New: func(c Config, tel *telemetry.Telemetry) (run.Service, error) {
			store, err := storage.Open(context.Background(), c.Store, storage.Options{Process: "query", Registry: tel.Registry})
			if err != nil {
				return nil, err
			}
			d := Deps{Store: store, Telemetry: tel, SetMemoryLimit: setMemoryLimit()}
			if c.Events.Queue.URL != "" {
				if d.Events, err = sqs.Open(context.Background(), c.Events.Queue, c.Store); err != nil {
					return nil, err
				}
			}
			return New(c, d)
		},
		Banner: func(c Config, svc run.Service) [][2]string {
			url := svc.(*Service).HTTPURL()
			return [][2]string{
				bucket.Banner(c.Store), {"prometheus", "curl '" + url + "/api/v1/query?query=up'"}, {"grafana", "data source Prometheus, URL " + url},
			}
		},
	})
}
