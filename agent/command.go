package agent

import (
	"strings"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
)

// Command is the agent as a command.
func Command() *cobra.Command {
	return cli.Command(cli.Spec[Config]{
		Name:    "agent",
		Short:   "Run an agent: queue this host's metrics and scrapes, send them to collectors",
		Long:    "Run an agent: it reads this host and Prometheus endpoints, keeps batches on disk until a collector has\naccepted them, and sends each to one collector after the other until one does.",
		Default: DefaultConfig,
		New: func(c Config, tel *telemetry.Telemetry) (run.Service, error) {
			return New(c, Deps{Telemetry: tel})
		},
		Reload: func(c Config, svc run.Service) error { return svc.(*Agent).Reload(c) },
		Banner: func(c Config, svc run.Service) [][2]string {
			a := svc.(*Agent)
			rows := [][2]string{
				{"agent id", a.id},
				{"queue", c.DataDir},
				{"collectors", strings.Join(c.Send.Collectors, ", ")},
			}
			if addr := a.HTTPAddr(); addr != "" {
				rows = append(rows, [2]string{"status", "http://" + addr + "/"})
			}
			return rows
		},
	})
}
