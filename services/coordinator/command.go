package coordinator

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/objstore/s3"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/storage"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
)

// settings of the command: the service's, and the store that counts terms.
type settings struct {
	Config
	Store s3.Config `koanf:"store" needs:"store.bucket"`
}

// Validate checks both parts; a store is not needed.
func (c settings) Validate() error {
	if c.Store.Bucket == "" {
		return c.Config.Validate()
	}
	return errors.Join(c.Config.Validate(), c.Store.Validate())
}

// Command is "lightmetrics coordinator".
func Command() *cobra.Command {
	return cli.Command(cli.Spec[settings]{
		Name:  "coordinator",
		Short: "Give every shard one owner",
		Long: "Assigns the shards of rollup workers, reconcilers and snapshotters, and keeps leases and ownership in etcd:\n" +
			"a member inside the process, or an external cluster. Any number of coordinators may share one etcd.\n" +
			"With a bucket (coordinator.store) fences grow even when etcd is restored from a backup.",
		Default: func() settings { return settings{Config: DefaultConfig(), Store: s3.DefaultConfig()} },
		New: func(c settings, tel *telemetry.Telemetry) (run.Service, error) {
			d := Deps{Telemetry: tel}
			if c.Store.Bucket != "" {
				store, err := storage.Open(context.Background(), c.Store, storage.Options{Registry: tel.Registry})
				if err != nil {
					return nil, err
				}
				d.Terms = etcd.StoreTerms{Store: store}
			}
			return New(c.Config, d)
		},
		Banner: func(c settings, svc run.Service) [][2]string {
			s := svc.(*Service)
			etcd := "a member in " + c.Etcd.Embedded.DataDir
			if c.Etcd.External() {
				etcd = strings.Join(c.Etcd.Endpoints, ",")
			}
			fences := "grow as long as etcd is not restored from a backup (coordinator.store is not set)"
			if c.Store.Bucket != "" {
				fences = "terms in " + c.Store.Bucket + "/" + c.Store.Prefix
			}
			return [][2]string{
				{"http", c.TLS.HTTPScheme() + "://" + s.HTTPAddr().String()}, {"grpc", c.TLS.GRPCScheme() + "://" + s.GRPCAddr().String()}, {"etcd", etcd}, {"fences", fences},
				{"next", "lmctl shards list --addr " + c.TLS.GRPCScheme() + "://" + s.GRPCAddr().String()},
			}
		},
	})
}
