package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Client reaches etcd. Every request has a deadline: without a leader etcd answers nothing.
type Client struct {
	Etcd    *clientv3.Client
	Prefix  string
	Timeout time.Duration
	// direct takes the transactions of claims where the member is in this process; nil: Etcd does.
	direct etcdserverpb.KVClient

	cluster  atomic.Uint64
	revision atomic.Int64 // greatest that etcd has told of
	restores atomic.Int64
}

// Keep-alive of connections to etcd: a member that hangs is noticed within both.
const (
	dialTimeout      = 5 * time.Second
	keepAliveTime    = 5 * time.Second
	keepAliveTimeout = 3 * time.Second
	// maxReconnectDelay is far below gRPC's two minutes: leases run out meanwhile.
	maxReconnectDelay = time.Second
)

// Dial makes a client; it connects when it is used. endpoint, when set, is the embedded
// member's. Close it. No request outlives last, which should outlive the callers' contexts: leases are ended after those.
func Dial(last context.Context, c Config, endpoint string, log *slog.Logger) (*Client, error) {
	tls, err := c.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	endpoints := c.Endpoints
	if endpoint != "" {
		endpoints = []string{endpoint}
	}
	e, err := clientv3.New(clientv3.Config{
		// An election that is left, and the lease of one, are waited for by this context alone, for as long as etcd has no quorum.
		Context:   last,
		Endpoints: endpoints, TLS: tls, Username: c.Username, Password: c.Password.Reveal(),
		DialTimeout: dialTimeout, DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout, PermitWithoutStream: true,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnectDelay},
			MinConnectTimeout: dialTimeout,
		})},
		Logger: zap.New(zapToSlog{h: log.With("part", "etcd client").Handler()}),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client for %v: %w", endpoints, err)
	}
	return &Client{Etcd: e, Prefix: c.Prefix, Timeout: c.RequestTimeout}, nil
}

// Close ends the client.
func (c *Client) Close() error { return c.Etcd.Close() }

// Bound is ctx with the deadline of one request. It ends with the client, too.
func (c *Client) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	stop := context.AfterFunc(c.Etcd.Ctx(), cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// get reads a key, linearizably; nil when it is absent.
func (c *Client) get(ctx context.Context, key string) (*kv, error) {
	ctx, cancel := c.Bound(ctx)
	defer cancel()
	r, err := c.Etcd.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("etcd: get %s: %w", key, err)
	}
	if len(r.Kvs) == 0 {
		return nil, nil
	}
	return r.Kvs[0], nil
}

// txn runs a transaction; key names it in errors.
func (c *Client) txn(ctx context.Context, key string, cmps []clientv3.Cmp, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	before := c.revision.Load()
	ctx, cancel := c.Bound(ctx)
	defer cancel()
	r, err := c.Etcd.Txn(ctx).If(cmps...).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("etcd: write %s: %w", key, err)
	}
	if err := c.at(r.Header, before); err != nil {
		return nil, fmt.Errorf("etcd: write %s: %w", key, err)
	}
	return r, nil
}

// ErrBehind: etcd is another one than before, or was restored from a backup.
var ErrBehind = errors.New("etcd has lost revisions that it had")

// at notes where etcd is. before is the greatest revision that was known when the
// (linearizable) request was sent: a lower one now means that etcd has forgotten.
func (c *Client) at(h *etcdserverpb.ResponseHeader, before int64) error {
	first := c.cluster.CompareAndSwap(0, h.ClusterId)
	if was := c.cluster.Load(); !first && was != h.ClusterId || h.Revision < before {
		c.restores.Add(1)
		c.cluster.Store(h.ClusterId)
		c.revision.Store(h.Revision)
		return fmt.Errorf("%w: cluster %x revision %d, before cluster %x revision %d", ErrBehind, h.ClusterId, h.Revision, was, before)
	}
	// Requests run concurrently and answers come in any order, so only a greater revision replaces the one that is
	// known.
	for {
		was := c.revision.Load()
		if h.Revision <= was || c.revision.CompareAndSwap(was, h.Revision) {
			return nil
		}
	}
}

// Restores counts how often etcd was found to have forgotten.
func (c *Client) Restores() int64 { return c.restores.Load() }
