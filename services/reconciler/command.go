package reconciler

import (
	"context"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/objstore/storage"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/internal/service/bucket"
)

// Command is the command "lightmetrics reconciler".
func Command() *cobra.Command {
	return service.Command(service.Spec[Config]{
		Name:  "reconciler",
		Short: "Turn accepted manifests into derived state, audit and repair it",
		Long: "Finds accepted manifests (events, collectors' hints, scans, audits), writes what is derived from them,\n" +
			"keeps the ledger of each (agent, boot), and passes reconciled manifests on. Any number may run.",
		Default: DefaultConfig,
		New: func(c Config, tel *telemetry.Telemetry) (run.Service, error) {
			store, err := storage.Open(context.Background(), c.Store, storage.Options{Process: "reconciler", Registry: tel.Registry})
			if err != nil {
				return nil, err
			}
			return New(c, Deps{Store: store, Telemetry: tel})
		},
		Banner: func(c Config, svc run.Service) [][2]string {
			url := svc.(*Service).HTTPURL()
			return [][2]string{bucket.Banner(c.Store), {"events", url + "/v1/events"}, {"status", "curl " + url + "/v1/status"}}
		},
	})
}
