package rollup

import (
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// Coordinated makes a worker among others: a coordinator gives it shards, and keeps
// pending work. Store and Telemetry of d are needed, Refs are
// the coordinator's when d has none.
func Coordinated(cfg Config, d Deps) (*Service, error) {
	if cfg.ID == "" {
		cfg.ID = service.RandomID("rollup")
	}
	c := cfg.Coordinator
	if c.WorkerID == "" {
		c.WorkerID = cfg.ID // not the host's name: two workers of a host are two
	}
	o, err := coordinator.NewOwner(c, "rollup", cfg.Shards, coordinator.Deps{Log: d.Telemetry.Log, Registry: d.Telemetry.Registry})
	if err != nil {
		return nil, fmt.Errorf("rollup: %w", err)
	}
	conn, err := coordinator.Dial(c)
	if err != nil {
		return nil, fmt.Errorf("rollup: %w", err)
	}
	pending := coordinator.NewPendingWork(conn, 0)
	d.Ownership, d.Queue, d.Table, d.Close = ownership.Coordinated{Owner: o}, pending, pending, conn.Close
	if d.Refs == nil {
		d.Refs = coordinator.NewRefs(conn, 0)
	}
	s, err := New(cfg, d)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}
