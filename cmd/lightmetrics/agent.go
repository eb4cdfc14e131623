package main

import (
	"lightmetrics.dev/lightmetrics/agent"
	"strings"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
)

// agentCommand is the agent as a command.
func agentCommand() *cobra.Command {
	return service.Command(service.Spec[agent.Config]{
		Name:    "agent",
		Short:   "Run an agent: queue this host's metrics and scrapes, send them to collectors",
		Long:    "Run an agent: it reads this host and Prometheus endpoints, keeps batches on disk until a collector has\naccepted them, and sends each to one collector after the other until one does.",
		Default: agent.DefaultConfig,
		New: func(c agent.Config, tel *telemetry.Telemetry) (run.Service, error) {
			return agent.New(c, agent.Deps{Telemetry: tel})
		},
		Reload: func(c agent.Config, svc run.Service) error { return svc.(*agent.Agent).Reload(c) },
		Banner: func(c agent.Config, svc run.Service) [][2]string {
			a := svc.(*agent.Agent)
			rows := [][2]string{
				{"agent id", a.ID()},
				{"queue", c.DataDir},
				{"collectors", strings.Join(c.Send.Collectors, ", ")},
			}
			if len(c.Send.Fallback) > 0 {
				rows = append(rows, [2]string{"fallback", strings.Join(c.Send.Fallback, ", ")})
			}
			if addr := a.HTTPAddr(); addr != "" {
				rows = append(rows, [2]string{"status", "http://" + addr + "/"})
			}
			return rows
		},
	})
}
