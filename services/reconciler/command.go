package reconciler

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/derived/inventory"
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
		Short: "Follow and fold the journal, keep the ledgers, audit and repair",
		Long: "Follows the journal of accepted batches and folds it, keeps the ledger of each (agent, boot), audits what\n" +
			"was accepted against the journal, checks frames, and passes hints on to query nodes. Any number may run.",
		Default: DefaultConfig,
		New: func(c Config, tel *telemetry.Telemetry) (run.Service, error) {
			store, err := storage.Open(context.Background(), c.Store, storage.Options{Process: "reconciler", Registry: tel.Registry})
			if err != nil {
				return nil, err
			}
			d := Deps{Store: store, Telemetry: tel}
			if c.Events.Queue.URL != "" {
				if d.Events, err = sqs.Open(context.Background(), c.Events.Queue, c.Store); err != nil {
					return nil, err
				}
			}
			if c.Audit.Inventory.Prefix != "" {
				if d.Inventory, err = inventories(c); err != nil {
					return nil, err
				}
			}
			if c.Repairs.Replica.Bucket != "" {
				if d.Replica, err = storage.Open(context.Background(), c.Repairs.Replica, storage.Options{}); err != nil {
					return nil, fmt.Errorf("repairs.replica: %w", err)
				}
			}
			if c.Region == "" {
				return New(c, d)
			}
			conn, err := coordinator.Dial(coordinator.Config{Addresses: c.Coordinator.Addresses, Client: c.Coordinator.Client})
			if err != nil {
				return nil, err
			}
			d.Claims = coordinator.NewClaims(conn, 0)
			s, err := New(c, d)
			if err != nil {
				_ = conn.Close()
				return nil, err
			}
			s.OnStop(func() { _ = conn.Close() })
			return s, nil
		},
		Banner: func(c Config, svc run.Service) [][2]string {
			url := svc.(*Service).HTTPURL()
			return [][2]string{bucket.Banner(c.Store), {"status", "curl " + url + "/v1/status"}}
		},
	})
}

// inventories opens the bucket that S3 Inventory writes to: the same store, without the authority's prefix.
func inventories(c Config) (func(context.Context, string) (audit.Inventory, error), error) {
	at := c.Store
	at.Bucket, at.Prefix = cmp.Or(c.Audit.Inventory.Bucket, c.Store.Bucket), ""
	store, err := storage.Open(context.Background(), at, storage.Options{})
	if err != nil {
		return nil, err
	}
	return inventory.Config{Store: store, Bucket: at.Bucket, Prefix: c.Audit.Inventory.Prefix, Source: c.Store.Bucket, SourcePrefix: c.Store.Prefix}.Open, nil
}
