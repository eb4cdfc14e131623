package coordinator

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/objstore/storage"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
)

// Command is "lightmetrics coordinator".
func Command() *cobra.Command {
	return service.Command(service.Spec[Config]{
		Name:  "coordinator",
		Short: "Give every shard one owner",
		Long: "Assigns the shards of rollup workers, and keeps leases and ownership in etcd:\n" +
			"a member inside the process, or an external cluster. Any number of coordinators may share one etcd.\n" +
			"With a bucket (coordinator.store) fences grow even when etcd is restored from a backup.",
		Default: DefaultConfig,
		New: func(c Config, tel *telemetry.Telemetry) (run.Service, error) {
			d := Deps{Telemetry: tel, SetGCPercent: setGCPercent()}
			if c.Store.Bucket != "" {
				store, err := storage.Open(context.Background(), c.Store, storage.Options{Registry: tel.Registry})
				if err != nil {
					return nil, err
				}
				d.Store = store
			}
			for _, r := range c.Identity.Regions {
				// Their requests are not in this process's metrics of a store, which are those of one bucket.
				store, err := storage.Open(context.Background(), r.store(), storage.Options{})
				if err != nil {
					return nil, fmt.Errorf("region %s: %w", r.Name, err)
				}
				if d.Regions == nil {
					d.Regions = map[claims.Region]regions.Store{}
				}
				d.Regions[claims.Region(r.Name)] = store
			}
			return New(c, d)
		},
		Banner: func(c Config, svc run.Service) [][2]string {
			etcd := "a member in " + c.Etcd.Embedded.DataDir
			if c.Etcd.External() {
				etcd = strings.Join(c.Etcd.Endpoints, ",")
			}
			fences := "grow as long as etcd is not restored from a backup (coordinator.store is not set)"
			if c.Store.Bucket != "" {
				fences = "terms in " + c.Store.Bucket + "/" + c.Store.Prefix
			}
			return [][2]string{
				{"etcd", etcd}, {"fences", fences}, {"next", "lmctl shards list --addr " + svc.(*Service).GRPCURL()},
			}
		},
	})
}
