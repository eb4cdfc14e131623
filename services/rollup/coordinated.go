package rollup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"lightmetrics.dev/lightmetrics/pkg/ownerclient"
	refremote "lightmetrics.dev/lightmetrics/pkg/publish/remote"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	workremote "lightmetrics.dev/lightmetrics/pkg/work/remote"
)

// Coordinated makes a worker among others: a coordinator gives it shards, and keeps
// pending work. Store and Telemetry of d are needed, Refs are
// the coordinator's when d has none.
func Coordinated(cfg Config, d Deps) (*Service, error) {
	if cfg.ID == "" {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		cfg.ID = "rollup-" + hex.EncodeToString(b[:])
	}
	c := cfg.Coordinator
	if c.WorkerID == "" {
		c.WorkerID = cfg.ID // not the host's name: two workers of a host are two
	}
	o, err := ownerclient.New(c, "rollup", cfg.Shards, ownerclient.Deps{Log: d.Telemetry.Log, Registry: d.Telemetry.Registry})
	if err != nil {
		return nil, fmt.Errorf("rollup: %w", err)
	}
	conn, err := dial(c)
	if err != nil {
		return nil, fmt.Errorf("rollup: coordinator: %w", err)
	}
	pending := workremote.New(conn, 0)
	d.Ownership, d.Queue, d.Table, d.Close = granted{o}, pending, pending, conn.Close
	if d.Refs == nil {
		d.Refs = refremote.New(conn, 0)
	}
	s, err := New(cfg, d)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// dial makes one connection to whichever coordinator answers.
func dial(c ownerclient.Config) (*grpc.ClientConn, error) {
	r := manual.NewBuilderWithScheme("coordinators")
	var st resolver.State
	for _, a := range c.Addresses {
		st.Addresses = append(st.Addresses, resolver.Address{Addr: a, ServerName: host(a)})
	}
	r.InitialState(st)
	return rpc.Dial("coordinators:///any", c.Client, grpc.WithResolvers(r))
}

// host is what the coordinator's certificate must name.
func host(address string) string {
	h, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return h
}

// granted is the ownership that a coordinator gives.
type granted struct{ o *ownerclient.Owner }

// Err says why the worker can own nothing now: no lease of a coordinator.
func (g granted) Err() error { return g.o.Err() }

// Own holds a session with a coordinator.
func (g granted) Own(ctx context.Context, _ uint32, work func(context.Context, Grant) error) error {
	return g.o.Run(ctx, func(ctx context.Context, og ownerclient.Grant) error {
		return work(ctx, Grant{Shard: og.Shard, Fence: og.Fence, Check: og.Check})
	})
}
