package objectstore

import (
	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
)

// Command is the object store as a command.
func Command() *cobra.Command {
	return cli.Command(cli.Spec[Config]{
		Name:    "objectstore",
		Short:   "Run the embedded S3-compatible object store",
		Long:    "Run the embedded S3-compatible object store: conditional writes, fsynced before every answer.\nUsers are given in the settings file; there are no default credentials.",
		Default: DefaultConfig,
		New: func(c Config, tel *telemetry.Telemetry) (run.Service, error) {
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
